"""Join log chunks to lines. A handler logs whole lines; a command's output arrives in arbitrary chunks."""

from __future__ import annotations

from backstay.cli.output import printable
from backstay.job.model import LogLine

#: Streams whose chunks may begin and end anywhere.
PIECES = ("stdout", "stderr")


class Lines:
    """Joins chunks to lines per job and stream."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], str] = {}

    def feed(self, job: str, chunk: LogLine) -> list[str]:
        """Add a chunk; returns the lines that it completes."""
        if chunk.stream not in PIECES:
            return [printable(line) for line in chunk.data.split("\n")]
        text = self._open.pop((job, chunk.stream), "") + chunk.data
        *whole, rest = text.split("\n")
        if rest:
            self._open[job, chunk.stream] = rest
        return [printable(line.removesuffix("\r")) for line in whole]

    def rest(self) -> list[tuple[str, str]]:
        """Unfinished lines, by job."""
        left, self._open = self._open, {}
        return [(job, printable(text)) for (job, _), text in left.items()]
