"""`backstay locks`: inspect, release and clean up locks."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from backstay.cli import exit_codes
from backstay.cli.connection import connection
from backstay.cli.output import describe_caller, quote, say, say_json, say_table, warn
from backstay.cli.views import locks
from backstay.sync import Backstay

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The lock's name.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON; the reference documents its fields.")]


@app.callback()
def group() -> None:
    """Inspect, release and clean up locks, semaphores and read-write locks."""


@app.command("ls")
def list_locks(
    context: typer.Context,
    prefix: Annotated[
        str, typer.Argument(metavar="[PREFIX]", help="Only names with this prefix.", show_default=False)
    ] = "",
    *,
    as_json: AsJson = False,
) -> None:
    """List locks that are held or waited for. On Redis this scans the whole key space.

    [bold]Examples[/bold]

      backstay locks ls

      backstay locks ls invoice:

      backstay locks ls --json | jq -r '.locks[].name'
    """
    with connection(context).existing() as stay:
        found = stay.locks.list(prefix)
        now = _engine_now(stay)
    if as_json:
        say_json({"locks": [locks.as_json(lock) for lock in found]})
    elif found:
        say_table(locks.COLUMNS, (locks.row(lock, now) for lock in found), right=locks.RIGHT)
    else:
        say(f"No lock that starts with {quote(prefix)} is held." if prefix else "No lock is held.")


@app.command()
def show(context: typer.Context, name: Name, *, as_json: AsJson = False) -> None:
    """Show one lock: its holders, its queue with waiting times, and its fence.

    [bold]Examples[/bold]

      backstay locks show invoice:42

      backstay locks show invoice:42 --json | jq -r '.holders[0].execution_id'
    """
    with connection(context).existing() as stay:
        lock = stay.locks.inspect(name)
        now = _engine_now(stay)
    if as_json:
        say_json(locks.as_json(lock))
    elif lock.count:
        locks.page(lock, now)
    else:
        say(f"{quote(name)} is free, and no caller waits for it.")


@app.command()
def release(
    context: typer.Context,
    name: Name,
    *,
    lock_id: Annotated[
        str, typer.Option("--lock-id", metavar="ID", help="Release the lock only if this lock_id still holds it.")
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Release the lock, whichever caller holds it.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --force: do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Release a lock that its holder does not release.

    With [bold]--lock-id[/bold] ownership is verified: a lock that another caller has acquired
    since then stays held (exit code 1); a lock that is already free is a success (exit code 0).

    With [bold]--force[/bold] every holder loses the lock, and the fence grows: guarded writes
    of the old holders are refused. Their code may still run, except a command under
    `backstay lock`, which is terminated. On a terminal the command asks for confirmation.

    [bold]Examples[/bold]

      backstay locks release invoice:42 --lock-id 5f2c9d1e

      backstay locks release invoice:42 --force --yes
    """
    if bool(lock_id) == force:
        raise typer.BadParameter("pass either --lock-id ID or --force", param_hint="--lock-id")
    with connection(context).existing() as stay:
        if force:
            _force(stay, name, ask=not yes, as_json=as_json)
        else:
            _release(stay, name, lock_id, as_json=as_json)


def _release(stay: Backstay, name: str, lock_id: str, *, as_json: bool) -> None:
    done = stay.locks.release(name, lock_id)
    if as_json:
        say_json({"name": name, "lock_id": lock_id, "released": done.released, "idempotent": done.idempotent})
    elif done.idempotent:
        say(f"{quote(name)} was already free; nothing changed.")
    else:
        say(f"Released {quote(name)}.")


def _force(stay: Backstay, name: str, *, ask: bool, as_json: bool) -> None:
    before = stay.locks.inspect(name)
    if not before.held:
        warn(f"{quote(name)} is not held")
        raise typer.Exit(exit_codes.FAILED)
    if ask and sys.stdin.isatty():
        holders = ", ".join(describe_caller(h) for h in before.holders)
        if not typer.confirm(f"Release {quote(name)}, held by {holders}?", err=True):
            warn(f"{quote(name)} was not changed")
            raise typer.Exit(exit_codes.FAILED)
    done = stay.locks.force_release(name)
    if as_json:
        holders_json = [locks.holder_json(h) for h in done.holders]
        say_json({"name": name, "released": True, "fence": str(done.fence), "holders": holders_json})
        return
    for holder in done.holders:
        say(f"Released {quote(name)}, held by {describe_caller(holder)} with fence {holder.fence}.")
    say(f"The fence is now {done.fence}: guarded writes with an older fence are refused.")


@app.command()
def cleanup(
    context: typer.Context,
    *,
    execution_id: Annotated[
        str,
        typer.Option("--execution-id", metavar="ID", help="The failed execution.", show_default=False),
    ],
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", metavar="NAME", help="Check only this lock; may be repeated.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Release the locks that a failed execution still holds, and no others.

    Without [bold]--scope[/bold] every lock that was acquired with this execution id is released.

    [bold]Examples[/bold]

      backstay locks cleanup --execution-id 1234

      backstay locks cleanup --execution-id 1234 --scope invoice:42 --scope invoice:43
    """
    with connection(context).existing() as stay:
        done = stay.locks.cleanup(execution_id, scope or None)
    if as_json:
        say_json(
            {
                "execution_id": execution_id,
                "cleaned": done.cleaned,
                "cleaned_count": done.cleaned_count,
                "scopes": list(done.scopes),
                "reason": done.reason,
            }
        )
    elif done.cleaned:
        say(f"Released {done.cleaned_count}: {', '.join(quote(s) for s in done.scopes)}.")
    else:
        say(f"Nothing to release: {done.reason}.")


def _engine_now(stay: Backstay) -> float:
    """Return the engine's time in seconds, because the local clock may differ from it."""
    return stay.engine.now() / 1_000_000
