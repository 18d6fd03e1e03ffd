"""Secrets that shall not be read in logs, outputs and errors: every character of every occurrence is hidden.

Text comes in pieces, and a secret may be cut by any of them: what could still become one is held back until it is
clear. So what a stream shows is the same however it was cut.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from urllib.parse import quote

MASK = "***"
#: Anything shorter would hide ordinary text, and is guessed in no time.
SHORTEST = 4
#: Longer ones are masked in parts, so that what is held back stays small.
LONGEST = 16_384


def variants(secret: str) -> set[str]:
    """A secret, its lines if it has several, and how it looks in URLs, JSON and base64."""
    parts = {secret, secret.strip(), *(line.strip() for line in secret.splitlines())}
    found: set[str] = set()
    for part in (whole[start : start + LONGEST] for whole in parts for start in range(0, len(whole), LONGEST)):
        if len(part) < SHORTEST:
            continue
        raw = part.encode(errors="surrogatepass")
        coded = (
            part,
            quote(raw, safe=""),
            json.dumps(part)[1:-1],
            json.dumps(part, ensure_ascii=False)[1:-1],
            base64.b64encode(raw).decode().rstrip("="),
            base64.urlsafe_b64encode(raw).decode().rstrip("="),
        )
        found.update(form[:LONGEST] for form in coded)
    return found


class Secrets:
    """What must not be shown. It only grows, and maskers heed at once what is added."""

    __slots__ = ("_all", "texts")

    def __init__(self, given: Iterable[str] = ()) -> None:
        self._all: set[str] = set()
        self.texts: tuple[str, ...] = ()
        for secret in given:
            self.add(secret)

    def add(self, secret: str) -> bool:
        """False: it is too short to be hidden."""
        new = variants(secret)
        if not new <= self._all:
            self._all |= new
            self.texts = tuple(sorted(self._all))
        return bool(new)

    def hide(self, text: str) -> str:
        """A text that is known to its end."""
        if not self.texts:
            return text
        masker = Masker(self)
        return masker.feed(text) + masker.end()


class Masker:
    """One stream of text. `feed` answers what may be shown by now, `end` the rest."""

    __slots__ = ("_covered", "_inside", "_pending", "_secrets")

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        #: Not shown yet: it may be the beginning of a secret.
        self._pending = ""
        #: How much of it is part of one in any case, and whether the last thing shown was a mask.
        self._covered = 0
        self._inside = False

    def feed(self, text: str) -> str:
        text = self._pending + text
        return self._show(text, self._undecided(text))

    def end(self) -> str:
        """Nothing follows."""
        return self._show(self._pending, len(self._pending))

    def _undecided(self, text: str) -> int:
        """Where the longest end of the text begins that may be the beginning of a secret."""
        earliest = len(text)
        for secret in self._secrets.texts:
            place = text.find(secret[0], max(0, len(text) - len(secret) + 1), earliest)
            while place >= 0:
                if secret.startswith(text[place:]):
                    earliest = place
                    break
                place = text.find(secret[0], place + 1, earliest)
        return earliest

    def _spans(self, text: str) -> list[tuple[int, int]]:
        """Where secrets lie in it, in order; they may overlap."""
        spans = [(0, self._covered)] if self._covered else []
        for secret in self._secrets.texts:
            place = text.find(secret)
            while place >= 0:
                spans.append((place, place + len(secret)))
                place = text.find(secret, place + 1)
        spans.sort()
        return spans

    def _show(self, text: str, until: int) -> str:
        """What stands before `until`, with masks; the rest is kept."""
        spans = self._spans(text)
        self._pending = text[until:]
        if not spans:
            self._covered = 0
            if until:
                self._inside = False
            return text[:until]
        shown: list[str] = []
        place, covered = 0, self._covered
        for start, end in spans:
            if start >= until:
                break
            if start > place:
                shown.append(text[place:start])
                self._inside = False
            if not self._inside:
                shown.append(MASK)
                self._inside = True
            place = max(place, min(end, until))
            covered = max(covered, end)
        self._covered = max(0, covered - until)
        if place < until:
            shown.append(text[place:until])
            self._inside = False
        return "".join(shown)
