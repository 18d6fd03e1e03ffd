"""Building blocks of problem messages: quoted excerpts, positions and did-you-mean hints."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from backstay.errors import Problem

#: Characters of the document that a message quotes.
LONGEST_QUOTE = 60
#: Longer words are not typing errors, and comparing them is slow.
LONGEST_WORD = 60
#: A hint compares the word with at most this many names.
MOST_NAMES = 1000


def quote(text: str) -> str:
    return repr(text if len(text) <= LONGEST_QUOTE else text[: LONGEST_QUOTE - 1] + "…")


def problem_at(message: str, text: str, offset: int) -> Problem:
    """Make a problem with the line and column of a character of the document."""
    before = text[:offset]
    return Problem(message, before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1)


def suggest(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean …?" with the closest known name, or ""."""
    names = [name for name in known if len(name) <= LONGEST_WORD][:MOST_NAMES]
    close = get_close_matches(word, names, n=1, cutoff=0.6) if len(word) <= LONGEST_WORD else []
    return f"; did you mean {close[0]!r}?" if close else ""
