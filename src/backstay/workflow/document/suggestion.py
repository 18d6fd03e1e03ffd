"""What somebody may have meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

#: Longer words are not mistyped, they are something else; and comparing them takes time.
LONGEST = 60


def meant(word: str, known: Iterable[str]) -> str:
    """A question to be added to a complaint, or nothing."""
    names = [name for name in known if len(name) <= LONGEST][:1000]
    close = get_close_matches(word, names, n=1, cutoff=0.6) if len(word) <= LONGEST else []
    return f"; did you mean {close[0]!r}?" if close else ""
