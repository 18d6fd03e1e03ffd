"""Split the text of several streams into log chunks: whole lines where possible, within the store's size limit.

The concatenated chunks of a stream are its text. Lines of different streams keep the order of their arrival.
"""

from __future__ import annotations

from typing import NamedTuple

from backstay.engine.base import Micros

#: Limit of characters per chunk. A longer line is split.
LONGEST = 16_000
#: How long an unfinished line waits for its end before it becomes a chunk, in microseconds.
PARTIAL_LINE_DELAY: Micros = 200_000


class Chunk(NamedTuple):
    """A log chunk, as `Store.append_log` takes it. `at`: when its first character arrived."""

    at: Micros
    stream: str
    data: str


class Chunker:
    """Collects text into chunks. The caller passes arriving text to `feed`, calls `flush` at `due`, and gets the
    finished chunks with `take`.
    """

    def __init__(self) -> None:
        self._ready: list[Chunk] = []
        #: By stream: when its unfinished line began, and the line's text.
        self._partial: dict[str, tuple[Micros, str]] = {}
        #: The number of characters in the finished chunks that the caller has not taken yet.
        self.size = 0

    @property
    def due(self) -> Micros | None:
        """When the oldest unfinished line is to be flushed; None if there is none."""
        if not self._partial:
            return None
        return min(since for since, _ in self._partial.values()) + PARTIAL_LINE_DELAY

    def feed(self, stream: str, text: str, now: Micros) -> None:
        if not text:
            return
        since, before = self._partial.pop(stream, (now, ""))
        text = before + text
        whole = text.rfind("\n") + 1
        while len(text) - whole >= LONGEST:  # split an unfinished line that is too long
            whole += LONGEST
        self._append(stream, text[:whole], since)
        if whole < len(text):
            self._partial[stream] = (now if whole else since, text[whole:])

    def append_line(self, stream: str, text: str, now: Micros) -> None:
        """Append a line, without its newline, as a chunk of its own after everything that has arrived."""
        self.end()
        self._ready.append(Chunk(now, stream, text[:LONGEST]))
        self.size += len(text)

    def flush(self, now: Micros) -> None:
        """Turn unfinished lines that have waited long enough into chunks."""
        for stream, (since, text) in list(self._partial.items()):
            if since + PARTIAL_LINE_DELAY <= now:
                del self._partial[stream]
                self._append(stream, text, since)

    def end(self) -> None:
        """Turn all unfinished lines into chunks, in the order in which they began."""
        for stream, (since, text) in sorted(self._partial.items(), key=lambda entry: entry[1][0]):
            self._append(stream, text, since)
        self._partial.clear()

    def take(self) -> list[Chunk]:
        ready, self._ready, self.size = self._ready, [], 0
        return ready

    def _append(self, stream: str, text: str, at: Micros) -> None:
        if not text:
            return
        self.size += len(text)
        ready = self._ready
        if ready and (last := ready[-1]).stream == stream and len(last.data) + len(text) <= LONGEST:
            ready[-1] = Chunk(last.at, stream, last.data + text)
            return
        place = 0
        while len(text) - place > LONGEST:
            # Split at the end of a line, unless a single line exceeds the limit.
            cut = text.rfind("\n", place, place + LONGEST) + 1 or place + LONGEST
            ready.append(Chunk(at, stream, text[place:cut]))
            place = cut
        ready.append(Chunk(at, stream, text[place:]))
