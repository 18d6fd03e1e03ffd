"""What jobs of one kind are called in their run: "test (3.11)"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backstay.workflow.expressions.expression import as_text

#: Longer items are numbered instead.
LONGEST = 40


def spread_keys(key: str, items: Sequence[Any]) -> list[str]:
    """By their items where these are short and tell them apart; else by their numbers."""
    texts: list[str] = []
    for item in items:
        text = as_text(item) if isinstance(item, (str, int, float)) else ""
        if not text or len(text) > LONGEST or not text.isprintable():
            break
        texts.append(text)
    if len(set(texts)) < len(items):
        texts = [str(number) for number in range(len(items))]
    return [f"{key} ({text})" for text in texts]
