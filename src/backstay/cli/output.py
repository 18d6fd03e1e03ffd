"""Print tables for people, JSON for programs, and one line per error."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import typer

from backstay.cli import exit_codes
from backstay.errors import HolderInfo, JobNotFound, RunNotFound, WorkflowNotFound
from backstay.gate.view import WaiterInfo

#: The table width of output to a pipe or file: `grep` needs unfolded lines.
PIPE_WIDTH = 10_000
#: The key in a command's context that records `--json`.
JSON_ASKED = "backstay.json"

T = TypeVar("T")


def printable(text: str) -> str:
    """Escape control characters: a lock's name must not move the cursor, colour the terminal or break the line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def quoted(name: str) -> str:
    """Quote a lock's name for a sentence."""
    return f"'{printable(name)}'"


def who(party: HolderInfo | WaiterInfo) -> str:
    """Describe a holder or waiter: its program and execution."""
    program = party.workflow_name or party.workflow_id or "unknown"
    return printable(f"{program} ({party.execution_id})" if party.execution_id else program)


def say(line: str) -> None:
    """Print a line of output."""
    print(line)


def warn(line: str) -> None:
    """Print an error or progress as one line on standard error."""
    with contextlib.suppress(OSError):  # standard error is closed; the command itself goes on
        print(f"backstay: {printable(line)}", file=sys.stderr, flush=True)


def say_json(value: dict[str, Any]) -> None:
    """Print JSON for programs. Fences are strings: not every JSON reader has 64-bit integers."""
    print(json.dumps(value, indent=2))


def asks_for_json(context: Any, value: bool) -> bool:
    """The callback of `--json`: errors of this command are printed as JSON, too. It is eager, so it runs first."""
    context.meta[JSON_ASKED] = value
    return value


def wants_json(context: Any) -> bool:
    return context.meta.get(JSON_ASKED) is True


def say_refusal(message: str, kind: str, exit_code: int) -> None:
    """Print an error as JSON for a command with `--json`. Standard error has the line for people."""
    say_json({"error": {"kind": kind, "message": message, "exit_code": exit_code}})


def say_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """Print aligned columns, folded to fit a terminal and unfolded elsewhere."""
    from rich.console import Console  # the import takes 0.1 s; `--json` and `lock` do not need it
    from rich.table import Table
    from rich.text import Text

    console = Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)


def fetch_or_exit(fetch: Callable[[], T]) -> T:
    """Fetch a job, run or workflow; print one line and exit when it does not exist."""
    try:
        return fetch()
    except (JobNotFound, RunNotFound, WorkflowNotFound) as error:
        warn(str(error))
        raise typer.Exit(exit_codes.FAILED) from error
