"""Show a run as a live tree on a terminal. Each job is below one of the jobs that it needs: the one that comes last in
the workflow.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from backstay.cli.output import printable
from backstay.cli.views.run_lines import SIGNS, RunLines
from backstay.cli.views.run_progress import Row, RunProgress
from backstay.engine.base import Micros
from backstay.job.model import LogLine
from backstay.job.run_model import RunEvent

if TYPE_CHECKING:
    from rich.console import Console

COLOURS = {
    "success": "green",
    "failure": "red",
    "skipped": "bright_black",
    "cancelled": "yellow",
    "running": "cyan",
    "queued": "bright_black",
    "waiting": "bright_black",
}
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
#: The number of screen lines that the tree leaves free, and its greatest depth.
MARGIN, DEEPEST = 4, 6


class Tree:
    """A viewer that draws the tree while its `with` block runs. The final tree stays on the screen."""

    def __init__(self, progress: RunProgress, title: str, console: Console, *, logs: bool = False) -> None:
        from rich.live import Live

        self._progress = progress
        self._title = title
        self._console = console
        self._logs = RunLines(progress, out=_AboveTree(console)) if logs else None
        self._order: list[tuple[str, str]] = []
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=10, transient=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def on_event(self, row: Row, event: RunEvent) -> None:
        if self._logs is not None:
            self._logs.on_event(row, event)

    def on_output(self, row: Row, line: LogLine) -> None:
        text = line.data.rstrip("\r\n")
        row.line = text[max(text.rfind("\n"), text.rfind("\r")) + 1 :]
        if self._logs is not None:
            self._logs.on_output(row, line)

    def on_poll(self) -> None:
        """Do nothing: rich redraws the tree ten times per second."""

    def _render(self) -> Any:
        from rich.text import Text
        from rich.tree import Tree as RichTree

        now = time.time_ns() // 1000
        counts = ", ".join(f"{count} {status}" for status, count in self._progress.count().items())
        head = Text.assemble((printable(self._title), "bold"), "  ", (counts, "bright_black"))
        root = RichTree(head, guide_style="bright_black")
        branches: dict[str, Any] = {}
        room = max(5, self._console.size.height - MARGIN)
        everything = len(self._progress.rows) <= room
        if len(self._order) != len(self._progress.rows):
            self._order = nest_jobs(self._progress)
        for key, parent in self._order:
            row = self._progress.rows[key]
            if not everything and (row.status not in ("running", "failure") or len(branches) >= room):
                continue
            branches[key] = branches.get(parent, root).add(self._row(row, now))
        return root

    def _row(self, row: Row, now: Micros) -> Any:
        from rich.text import Text

        colour = COLOURS[row.status]
        sign = SPINNER[now // 100_000 % len(SPINNER)] if row.status == "running" else SIGNS.get(row.status, "·")
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(f"{sign} ", colour)
        text.append(printable(row.name), "bold" if row.status == "running" else "")
        if row.started:
            text.append(f"  {row.seconds(now):.1f} s", "bright_black")
        if row.attempt > 1:
            text.append(f"  attempt {row.attempt}", "yellow")
        said = row.line if row.status == "running" else row.why if row.status != "success" else ""
        if said:
            text.append(f"  {printable(said)}", colour if row.status == "failure" else "bright_black")
        return text


class _AboveTree:
    """A text stream that prints its lines above the live tree."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def write(self, text: str) -> int:
        from rich.text import Text

        self._console.print(Text.from_ansi(text.rstrip("\n")), highlight=False)
        return len(text)

    def flush(self) -> None:
        pass


def nest_jobs(progress: RunProgress) -> list[tuple[str, str]]:
    """Return the pair (job, its parent in the tree) for every job, parents first. The parent "" is the root.

    A job's parent is one of the jobs that it needs: the one that comes last in the workflow. A job that would be deeper
    than DEEPEST is placed beside that job instead of below it.
    """
    place = {key: number for number, key in enumerate(progress.rows)}
    parents = {
        key: max((need for need in row.needs if need in place), key=place.__getitem__, default="")
        for key, row in progress.rows.items()
    }
    children: dict[str, list[str]] = {}
    for key, parent in parents.items():
        children.setdefault(parent, []).append(key)
    order: list[tuple[str, str]] = []
    stack = [(key, "", 1) for key in reversed(children.get("", []))]
    while stack:
        key, parent, depth = stack.pop()
        order.append((key, parent))
        below, deeper = (key, depth + 1) if depth < DEEPEST else (parent, depth)
        stack += [(child, below, deeper) for child in reversed(children.get(key, []))]
    return order
