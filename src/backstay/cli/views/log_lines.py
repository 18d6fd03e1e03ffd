"""What jobs logged, as lines. A handler logs whole lines; what a command prints comes in pieces."""

from __future__ import annotations

from backstay.cli.output import printable
from backstay.job.model import LogLine

#: Streams whose chunks may begin and end anywhere.
PIECES = ("stdout", "stderr")


class Lines:
    """Puts pieces together, for each job and stream."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], str] = {}

    def feed(self, job: str, chunk: LogLine) -> list[str]:
        """Lines that are whole now."""
        if chunk.stream not in PIECES:
            return [printable(line) for line in chunk.data.split("\n")]
        text = self._open.pop((job, chunk.stream), "") + chunk.data
        *whole, rest = text.split("\n")
        if rest:
            self._open[job, chunk.stream] = rest
        return [printable(line.removesuffix("\r")) for line in whole]

    def rest(self) -> list[tuple[str, str]]:
        """What never became whole, by job."""
        left, self._open = self._open, {}
        return [(job, printable(text)) for (job, _), text in left.items()]
