"""Text of several streams as chunks of a log: whole lines where possible, never larger than a store likes.

The chunks of a stream, put together, are its text. Lines of different streams keep the order in which they arrived.
"""

from __future__ import annotations

from typing import NamedTuple

from backstay.engine.base import Micros

#: Characters in a chunk. A longer line is cut.
LONGEST = 16_000
#: The beginning of a line waits this long for the rest; then it is shown as it is.
PATIENCE: Micros = 200_000


class Chunk(NamedTuple):
    """As `Store.append_log` takes it. `at`: when its first character arrived."""

    at: Micros
    stream: str
    data: str


class Chunker:
    """Feed it as text arrives, call `flush` when `due` is over, `take` what is ready."""

    def __init__(self) -> None:
        self._ready: list[Chunk] = []
        #: The beginning of a line by stream, and since when.
        self._partial: dict[str, tuple[Micros, str]] = {}
        #: Characters that are ready.
        self.size = 0

    @property
    def due(self) -> Micros | None:
        """When the oldest unfinished line has waited long enough; None: there is none."""
        if not self._partial:
            return None
        return min(since for since, _ in self._partial.values()) + PATIENCE

    def feed(self, stream: str, text: str, now: Micros) -> None:
        if not text:
            return
        since, before = self._partial.pop(stream, (now, ""))
        text = before + text
        whole = text.rfind("\n") + 1
        while len(text) - whole >= LONGEST:  # a line that does not end
            whole += LONGEST
        self._put(stream, text[:whole], since)
        if whole < len(text):
            self._partial[stream] = (now if whole else since, text[whole:])

    def line(self, stream: str, text: str, now: Micros) -> None:
        """A chunk that is a line by itself, without its end, behind everything that has arrived."""
        self.end()
        self._ready.append(Chunk(now, stream, text[:LONGEST]))
        self.size += len(text)

    def flush(self, now: Micros) -> None:
        """Unfinished lines that have waited long enough are shown."""
        for stream, (since, text) in list(self._partial.items()):
            if since + PATIENCE <= now:
                del self._partial[stream]
                self._put(stream, text, since)

    def end(self) -> None:
        """Nothing follows: unfinished lines are shown, in the order in which they began."""
        for stream, (since, text) in sorted(self._partial.items(), key=lambda entry: entry[1][0]):
            self._put(stream, text, since)
        self._partial.clear()

    def take(self) -> list[Chunk]:
        ready, self._ready, self.size = self._ready, [], 0
        return ready

    def _put(self, stream: str, text: str, at: Micros) -> None:
        if not text:
            return
        self.size += len(text)
        ready = self._ready
        if ready and (last := ready[-1]).stream == stream and len(last.data) + len(text) <= LONGEST:
            ready[-1] = Chunk(last.at, stream, last.data + text)
            return
        place = 0
        while len(text) - place > LONGEST:
            # At the end of a line, unless that line alone is too long.
            cut = text.rfind("\n", place, place + LONGEST) + 1 or place + LONGEST
            ready.append(Chunk(at, stream, text[place:cut]))
            place = cut
        ready.append(Chunk(at, stream, text[place:]))
