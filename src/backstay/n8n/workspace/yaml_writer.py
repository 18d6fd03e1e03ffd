"""Write plain data as YAML, in block or flow style."""

from __future__ import annotations

import json
import re
from typing import Any

from backstay.n8n.json_types import is_list, is_mapping
from backstay.n8n.workspace.json_layout import NumberLiteral

#: Strings that no YAML parser reads as anything but text, so they need no quotes.
_BARE = re.compile(r"[A-Za-z_](?:[A-Za-z0-9_./-]*[A-Za-z0-9_/])?")
_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


def scalar(value: Any) -> str:
    """Return a scalar, or an empty collection, as YAML."""
    if isinstance(value, (dict, list)) or value is None or isinstance(value, (bool, int)):
        return json.dumps(value)
    if isinstance(value, NumberLiteral):
        return value.text
    text = str(value)
    if _BARE.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())


def flow(value: Any) -> str:
    """Return a value in flow style, on one line."""
    if is_mapping(value):
        return "{" + ", ".join(f"{scalar(key)}: {flow(item)}" for key, item in value.items()) + "}"
    if is_list(value):
        return "[" + ", ".join(flow(item) for item in value) + "]"
    return scalar(value)


def block(value: Any) -> list[str]:
    """Return a value in block style, as lines."""
    lines: list[str] = []
    if is_mapping(value):
        for key, item in value.items():
            if isinstance(item, (dict, list)) and item:
                lines.append(f"{scalar(key)}:")
                lines += ["  " + line for line in block(item)]
            else:
                lines.append(f"{scalar(key)}: {scalar(item)}")
    else:
        for item in value:
            inner = block(item) if isinstance(item, (dict, list)) and item else [scalar(item)]
            lines += [("- " if at == 0 else "  ") + line for at, line in enumerate(inner)]
    return lines
