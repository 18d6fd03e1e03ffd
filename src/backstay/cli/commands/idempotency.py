"""`backstay idempotency`: look at idempotency keys, and let one run again."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from backstay.cli import exit_codes
from backstay.cli.connection import connection
from backstay.cli.output import printable, quoted, say, say_json, warn
from backstay.idempotency.view import KeyInspection

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")

Key = Annotated[str, typer.Argument(metavar="KEY", help="The idempotency key.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, in the shape that the reference documents.")]

#: What a state means to whoever looks.
MEANING = {
    "running": "runs; others wait for its outcome",
    "lapsed": "its process has not been heard of; the next call takes over",
    "completed": "has run; its outcome is replayed",
    "failed": "has failed; its failure is replayed",
}


@app.callback()
def group() -> None:
    """Look at idempotency keys, and let one run again."""


@app.command()
def show(context: typer.Context, key: Key, *, as_json: AsJson = False) -> None:
    """Show one key: whether it runs or has run, since when, by whom, and how many wait.

    What a call answered is not shown: it may be private.

    [bold]Examples[/bold]

      backstay idempotency show charge:42

      backstay idempotency show charge:42 --json | jq -r .state
    """
    with connection(context).existing() as stay:
        found = stay.idempotency.inspect(key)
    if as_json:
        say_json(to_json(found))
    elif found.state == "idle":
        say(f"{quoted(key)} has not run, or its outcome is past its time.")
    else:
        _page(found)


@app.command()
def forget(
    context: typer.Context,
    key: Key,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Forget what came of a key, so that the next call runs.

    A call that runs at this moment goes on, and its outcome will be refused: the next
    one may run beside it. A terminal is asked first.

    [bold]Examples[/bold]

      backstay idempotency forget charge:42 --yes
    """
    with connection(context).existing() as stay:
        found = stay.idempotency.inspect(key)
        if found.state == "idle":
            warn(f"there is nothing to forget about {quoted(key)}")
            raise typer.Exit(exit_codes.FAILED)
        if (
            not yes
            and sys.stdin.isatty()
            and not typer.confirm(f"{quoted(key)} {MEANING[found.state]}. Forget it?", err=True)
        ):
            warn(f"{quoted(key)} was left alone")
            raise typer.Exit(exit_codes.FAILED)
        stay.idempotency.forget(key)
    if as_json:
        say_json({"key": key, "forgotten": True, "was": found.state})
    else:
        say(f"Forgot {quoted(key)}, which was {found.state}: the next call runs.")


def to_json(found: KeyInspection) -> dict[str, Any]:
    """The documented shape. Fences are text: not every reader has 64-bit numbers."""
    return {
        "key": found.name,
        "state": found.state,
        "fence": str(found.fence),
        "by": found.by,
        "since": found.since.isoformat() if found.since else None,
        "until": found.until.isoformat() if found.until else None,
        "fingerprint": found.fingerprint,
        "waiters": found.waiters,
    }


def _page(found: KeyInspection) -> None:
    say(f"{printable(found.name)}: {found.state}, {MEANING[found.state]}")
    ends = "outcome kept until" if found.state in ("completed", "failed") else "lease until"
    lines = [
        ("by", printable(found.by)),
        ("since", found.since.isoformat() if found.since else ""),
        (ends, found.until.isoformat() if found.until else ""),
        ("fence", str(found.fence)),
        ("fingerprint", found.fingerprint or "none"),
        ("waiting", str(found.waiters)),
    ]
    for what, value in lines:
        say(f"  {what}: {value}")
