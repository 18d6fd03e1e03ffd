"""Mask secrets in logs, outputs and errors: every occurrence is replaced by `***`.

A secret may be split over several reads. Text that may be the beginning of a secret is held back until more text has
arrived, so the masked text does not depend on how the stream was split.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from urllib.parse import quote

MASK = "***"
#: A shorter secret would mask ordinary text, and is easily guessed.
SHORTEST = 4
#: A longer secret is masked in parts, to bound the text that is held back.
LONGEST = 16_384


def encoded_variants(secret: str) -> set[str]:
    """Return the secret, each of its lines, and their forms in URLs, JSON and base64."""
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
    """The set of texts to mask. It only grows; maskers use added secrets at once."""

    __slots__ = ("_all", "texts")

    def __init__(self, given: Iterable[str] = ()) -> None:
        self._all: set[str] = set()
        self.texts: tuple[str, ...] = ()
        for secret in given:
            self.add(secret)

    def add(self, secret: str) -> bool:
        """Add a secret; returns False if it is too short to be masked."""
        new = encoded_variants(secret)
        if not new <= self._all:
            self._all |= new
            self.texts = tuple(sorted(self._all))
        return bool(new)

    def hide(self, text: str) -> str:
        """Return the text with every secret masked. For text that arrives in pieces, use Masker."""
        if not self.texts:
            return text
        masker = Masker(self)
        return masker.feed(text) + masker.end()


class Masker:
    """Masks one stream of text. `feed` returns masked text, and holds back an end that may be the beginning of a
    secret; `end` returns the rest.
    """

    __slots__ = ("_covered", "_inside", "_pending", "_secrets")

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        #: Text held back: it may be the beginning of a secret.
        self._pending = ""
        #: How many characters of `_pending` belong to a secret already found, and whether the last text returned was a
        #: mask.
        self._covered = 0
        self._inside = False

    def feed(self, text: str) -> str:
        text = self._pending + text
        return self._emit(text, self._find_undecided(text))

    def end(self) -> str:
        """Return the text that was held back, masked."""
        return self._emit(self._pending, len(self._pending))

    def _find_undecided(self, text: str) -> int:
        """Return the start of the longest suffix that is a prefix of a secret."""
        earliest = len(text)
        for secret in self._secrets.texts:
            place = text.find(secret[0], max(0, len(text) - len(secret) + 1), earliest)
            while place >= 0:
                if secret.startswith(text[place:]):
                    earliest = place
                    break
                place = text.find(secret[0], place + 1, earliest)
        return earliest

    def _find_secrets(self, text: str) -> list[tuple[int, int]]:
        """Return the spans of secrets in the text, sorted; they may overlap."""
        spans = [(0, self._covered)] if self._covered else []
        for secret in self._secrets.texts:
            place = text.find(secret)
            while place >= 0:
                spans.append((place, place + len(secret)))
                place = text.find(secret, place + 1)
        spans.sort()
        return spans

    def _emit(self, text: str, until: int) -> str:
        """Return the text before `until` with secrets masked, and hold back the rest."""
        spans = self._find_secrets(text)
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
