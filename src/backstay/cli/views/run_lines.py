"""Show a run as plain lines, for pipes, files and `--logs`."""

from __future__ import annotations

import re
import sys
from typing import Protocol

from backstay.cli.output import printable
from backstay.cli.views.run_progress import ENDED, Row, RunProgress
from backstay.job.model import LogLine
from backstay.job.run_model import RunEvent

#: The widest column of job names, in characters.
WIDEST = 24
#: Output without a line end is buffered up to this many characters. A longer text is printed as a line of its own.
LONGEST_REST = 16_000

COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")
PLAIN = "\x1b[0m"
SIGNS = {"success": "✓", "failure": "✗", "skipped": "-", "cancelled": "!", "running": "▶", "queued": "…"}


class Writer(Protocol):
    def write(self, text: str, /) -> object: ...

    def flush(self) -> None: ...


class RunLines:
    """A viewer that writes the events and output of jobs as lines to a stream; with `quiet`, only the events."""

    def __init__(self, progress: RunProgress, *, out: Writer | None = None, quiet: bool = False) -> None:
        self._progress = progress
        self._out: Writer = out or sys.stdout
        self._quiet = quiet
        self._width = min(WIDEST, max((len(key) for key in progress.rows), default=0))
        #: Unfinished lines by job and stream.
        self._rest: dict[tuple[str, str], str] = {}

    def on_event(self, row: Row, event: RunEvent) -> None:
        if row.status in ENDED:
            self._flush(row)
        if text := describe_event(row, event):
            self._line(row, f"{SIGNS.get(row.status, ' ')} {text}")

    def on_output(self, row: Row, line: LogLine) -> None:
        if self._quiet:
            return
        text = self._rest.pop((row.key, line.stream), "") + line.data
        if line.stream not in ("stdout", "stderr") and not text.endswith("\n"):
            text += "\n"
        *whole, rest = text.split("\n")
        for one in whole:
            self._line(row, one)
        if len(rest) > LONGEST_REST:
            self._line(row, rest)
        elif rest:
            self._rest[row.key, line.stream] = rest

    def on_poll(self) -> None:
        self._out.flush()

    def _flush(self, row: Row) -> None:
        for key, stream in [entry for entry in self._rest if entry[0] == row.key]:
            self._line(row, self._rest.pop((key, stream)))

    def _line(self, row: Row, text: str) -> None:
        self._out.write(f"{printable(row.key)[: self._width]:{self._width}} │ {sanitize_line(text)}\n")


def describe_event(row: Row, event: RunEvent) -> str:
    """Describe an event of a job in a few words; "" for an event that is not shown."""
    match event.kind:
        case "started":
            return "started" if row.attempt <= 1 else f"started, attempt {row.attempt}"
        case "scheduled":
            return f"retrying: {event.why}" if event.why else "rescheduled"
        case "lease_expired":
            return "lost its worker"
        case "completed":
            return f"completed in {row.seconds(row.finished):.1f} s"
        case "failed":
            soft = " (continue-on-error)" if row.soft else ""
            return f"failed{f' after {row.attempt} attempts' if row.attempt > 1 else ''}: {event.why}{soft}"
        case "skipped":
            return f"skipped{f': {event.why}' if event.why else ''}"
        case "cancelled":
            return f"cancelled{f': {event.why}' if event.why else ''}"
        case _:
            return ""


def sanitize_line(text: str) -> str:
    """Return a log line that is safe to print: colours are kept, other control characters are escaped."""
    text = text.rstrip("\r").rpartition("\r")[2]
    if text.isprintable():
        return text
    parts = COLOUR.split(text)
    for place in range(0, len(parts), 2):
        parts[place] = "".join(
            c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in parts[place]
        )
    return "".join(parts) + (PLAIN if len(parts) > 1 else "")
