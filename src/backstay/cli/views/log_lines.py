"""Join the log chunks of jobs to lines. Handlers log whole lines; a chunk of a command's output may end anywhere."""

from __future__ import annotations

from backstay.cli.output import printable
from backstay.job.model import LogLine

#: Streams whose chunks may begin and end within a line.
PIECES = ("stdout", "stderr")


class LineJoiner:
    """Joins log chunks to lines, separately for each job and stream."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], str] = {}

    def feed(self, job: str, chunk: LogLine) -> list[str]:
        """Add a chunk, and return the lines that it completes."""
        if chunk.stream not in PIECES:
            return [printable(line) for line in chunk.data.split("\n")]
        text = self._open.pop((job, chunk.stream), "") + chunk.data
        *whole, rest = text.split("\n")
        if rest:
            self._open[job, chunk.stream] = rest
        return [printable(line.removesuffix("\r")) for line in whole]

    def take_unfinished(self) -> list[tuple[str, str]]:
        """Return the last, unfinished lines, for which no line end has come, each with its job; then forget them."""
        left, self._open = self._open, {}
        return [(job, printable(text)) for (job, _), text in left.items()]
