"""`backstay idempotency`: inspect idempotency keys, and forget a key's outcome so that its next call runs."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from backstay.cli import exit_codes
from backstay.cli.connection import connection
from backstay.cli.output import printable, quote, say, say_json, warn
from backstay.idempotency.view import KeyInspection

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")

Key = Annotated[str, typer.Argument(metavar="KEY", help="The idempotency key.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON; the reference documents its fields.")]

#: What each state of a key means for its callers.
MEANING = {
    "running": "a call runs; other calls wait for its outcome",
    "lapsed": "the call's lease has expired; the next call takes over",
    "completed": "the call has completed; its outcome is replayed",
    "failed": "the call has failed; its failure is replayed",
}


@app.callback()
def group() -> None:
    """Inspect idempotency keys, and forget a key's outcome so that its next call runs."""


@app.command()
def show(context: typer.Context, key: Key, *, as_json: AsJson = False) -> None:
    """Show one key: its state, when that began, its owner, and how many callers wait.

    The outcome of the call is not shown: it may be private.

    [bold]Examples[/bold]

      backstay idempotency show charge:42

      backstay idempotency show charge:42 --json | jq -r .state
    """
    with connection(context).existing() as stay:
        found = stay.idempotency.inspect(key)
    if as_json:
        say_json(to_json(found))
    elif found.state == "idle":
        say(f"{quote(key)} has not run, or its outcome has expired.")
    else:
        _page(found)


@app.command()
def forget(
    context: typer.Context,
    key: Key,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Forget a key's outcome, so that the next call runs.

    A call that is running continues, but its outcome will be refused, and the next
    call may run at the same time. On a terminal the command asks for confirmation.

    [bold]Examples[/bold]

      backstay idempotency forget charge:42 --yes
    """
    with connection(context).existing() as stay:
        found = stay.idempotency.inspect(key)
        if found.state == "idle":
            warn(f"there is no record of {quote(key)}")
            raise typer.Exit(exit_codes.FAILED)
        if (
            not yes
            and sys.stdin.isatty()
            and not typer.confirm(f"{quote(key)} {MEANING[found.state]}. Forget it?", err=True)
        ):
            warn(f"{quote(key)} was not changed")
            raise typer.Exit(exit_codes.FAILED)
        stay.idempotency.forget(key)
    if as_json:
        say_json({"key": key, "forgotten": True, "was": found.state})
    else:
        say(f"Forgot {quote(key)}, which was {found.state}: the next call runs.")


def to_json(found: KeyInspection) -> dict[str, Any]:
    """Return the key as the object that `--json` prints. The fence is a string, because many JSON readers round
    integers above 2**53.
    """
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
