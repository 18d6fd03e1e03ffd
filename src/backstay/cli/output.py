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
from backstay.runtime.serialization import printable as printable  # noqa: PLC0414 - commands import it from here

#: The width of tables in a pipe or file. It is so large that no line is folded, because `grep` needs whole lines.
PIPE_WIDTH = 10_000
#: The key in a command's context that records `--json`.
JSON_REQUESTED = "backstay.json"

T = TypeVar("T")


def quote(name: str) -> str:
    """Return a name in quotes, with control characters escaped."""
    return f"'{printable(name)}'"


def describe_caller(party: HolderInfo | WaiterInfo) -> str:
    """Describe a holder or waiter by its program and execution id: `report.sh (1234)`."""
    program = party.workflow_name or party.workflow_id or "unknown"
    return printable(f"{program} ({party.execution_id})" if party.execution_id else program)


def say(line: str) -> None:
    """Print a line on standard output."""
    print(line)


def warn(line: str) -> None:
    """Print one line on standard error, for errors and progress."""
    with contextlib.suppress(OSError):  # standard error may be closed; that must not fail the command
        print(f"backstay: {printable(line)}", file=sys.stderr, flush=True)


def say_json(value: dict[str, Any]) -> None:
    """Print an object as indented JSON."""
    print(json.dumps(value, indent=2))


def record_json_option(context: Any, value: bool) -> bool:
    """The callback of `--json`: record in the command's context that JSON is wanted, for errors as well. The option is
    eager, which means that it is parsed before the others: so even an invalid other option is reported as JSON.
    """
    context.meta[JSON_REQUESTED] = value
    return value


def wants_json(context: Any) -> bool:
    return context.meta.get(JSON_REQUESTED) is True


def say_refusal(message: str, kind: str, exit_code: int) -> None:
    """Print an error as a JSON object on standard output. The caller prints the same message on standard error."""
    say_json({"error": {"kind": kind, "message": message, "exit_code": exit_code}})


def say_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """Print aligned columns. On a terminal, long cells are folded to fit; in a pipe or file, each row is one line."""
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
    """Return the fetched job, run or workflow. When it does not exist, print the error and exit with code 1."""
    try:
        return fetch()
    except (JobNotFound, RunNotFound, WorkflowNotFound) as error:
        warn(str(error))
        raise typer.Exit(exit_codes.FAILED) from error
