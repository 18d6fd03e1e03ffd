"""What commands print: tables for people, JSON for programs, one line for trouble."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from backstay.errors import HolderInfo
from backstay.gate.view import WaiterInfo

#: Nobody watches a pipe, and `grep` wants whole lines: never fold there.
PIPE_WIDTH = 10_000
#: Where a command's context remembers that JSON was asked for.
JSON_ASKED = "backstay.json"


def printable(text: str) -> str:
    """Text that cannot move the cursor, colour the screen or break the line, whatever somebody called their lock."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def quoted(name: str) -> str:
    """A lock's name inside a sentence."""
    return f"'{printable(name)}'"


def who(party: HolderInfo | WaiterInfo) -> str:
    """Who holds or waits, in a few words: the program and its execution."""
    program = party.workflow_name or party.workflow_id or "unknown"
    return printable(f"{program} ({party.execution_id})" if party.execution_id else program)


def say(line: str) -> None:
    """An answer, on standard output."""
    print(line)


def warn(line: str) -> None:
    """Trouble or progress, on standard error, in one line."""
    with contextlib.suppress(OSError):  # nobody listens: what we do matters more than what we say
        print(f"backstay: {printable(line)}", file=sys.stderr, flush=True)


def say_json(value: dict[str, Any]) -> None:
    """A program's answer. Fences in it are text: not every reader has 64-bit numbers."""
    print(json.dumps(value, indent=2))


def asks_for_json(context: Any, value: bool) -> bool:
    """The callback of a --json: from now on a refusal of this command is JSON, too. Eager, so that it comes first."""
    context.meta[JSON_ASKED] = value
    return value


def wants_json(context: Any) -> bool:
    return context.meta.get(JSON_ASKED) is True


def say_refusal(message: str, kind: str, exit_code: int) -> None:
    """What was asked for in JSON and is refused says so in JSON, too; people read the line on standard error."""
    say_json({"error": {"kind": kind, "message": message, "exit_code": exit_code}})


def say_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """Aligned columns; folded to fit a terminal, whole lines elsewhere."""
    from rich.console import Console  # a tenth of a second that JSON and `lock` do without
    from rich.table import Table
    from rich.text import Text

    console = Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
