"""`backstay locks`: look at locks, and set right what went wrong."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from backstay.cli import exit_codes
from backstay.cli.connection import connection
from backstay.cli.output import quoted, say, say_json, say_table, warn, who
from backstay.cli.views import locks
from backstay.sync import Backstay

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The lock's name.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, in the shape that the reference documents.")]


@app.callback()
def group() -> None:
    """Look at locks, semaphores and read-write locks, and set right what went wrong."""


@app.command("ls")
def list_locks(
    context: typer.Context,
    prefix: Annotated[
        str, typer.Argument(metavar="[PREFIX]", help="Only names that start so.", show_default=False)
    ] = "",
    *,
    as_json: AsJson = False,
) -> None:
    """List what is held or waited for. On Redis this walks the whole key space.

    [bold]Examples[/bold]

      backstay locks ls

      backstay locks ls invoice:

      backstay locks ls --json | jq -r '.locks[].name'
    """
    with connection(context).existing() as stay:
        found = stay.locks.list(prefix)
        now = _now(stay)
    if as_json:
        say_json({"locks": [locks.as_json(lock) for lock in found]})
    elif found:
        say_table(locks.COLUMNS, (locks.row(lock, now) for lock in found), right=locks.RIGHT)
    else:
        say(f"No lock that starts with {quoted(prefix)} is held." if prefix else "No lock is held.")


@app.command()
def show(context: typer.Context, name: Name, *, as_json: AsJson = False) -> None:
    """Show one lock: who holds it, who waits and for how long, and its fence.

    [bold]Examples[/bold]

      backstay locks show invoice:42

      backstay locks show invoice:42 --json | jq -r '.holders[0].execution_id'
    """
    with connection(context).existing() as stay:
        lock = stay.locks.inspect(name)
        now = _now(stay)
    if as_json:
        say_json(locks.as_json(lock))
    elif lock.count:
        locks.page(lock, now)
    else:
        say(f"Nobody holds {quoted(name)} or waits for it.")


@app.command()
def release(
    context: typer.Context,
    name: Name,
    *,
    lock_id: Annotated[
        str, typer.Option("--lock-id", metavar="ID", help="Release what this lock_id holds, if it still does.")
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Take it from whoever holds it.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --force: do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Release a lock that its holder does not release.

    With [bold]--lock-id[/bold] ownership is verified: what somebody else holds by now
    stays theirs (exit code 1), and what is gone already is fine (exit code 0).

    With [bold]--force[/bold] every holder loses it, and the fence moves on: guarded
    writes of theirs are refused from now on. Their code may still run;
    `backstay lock` ends its command. A terminal is asked first.

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
        say(f"{quoted(name)} was free already; nothing was changed.")
    else:
        say(f"Released {quoted(name)}.")


def _force(stay: Backstay, name: str, *, ask: bool, as_json: bool) -> None:
    before = stay.locks.inspect(name)
    if not before.held:
        warn(f"nobody holds {quoted(name)}")
        raise typer.Exit(exit_codes.FAILED)
    if ask and sys.stdin.isatty():
        holders = ", ".join(who(h) for h in before.holders)
        if not typer.confirm(f"Take {quoted(name)} from {holders}?", err=True):
            warn(f"{quoted(name)} was left alone")
            raise typer.Exit(exit_codes.FAILED)
    done = stay.locks.force_release(name)
    if as_json:
        holders_json = [locks.holder_json(h) for h in done.holders]
        say_json({"name": name, "released": True, "fence": str(done.fence), "holders": holders_json})
        return
    for holder in done.holders:
        say(f"Took {quoted(name)} from {who(holder)}, whose fence was {holder.fence}.")
    say(f"The fence moved on to {done.fence}: guarded writes that bear an older one are refused.")


@app.command()
def cleanup(
    context: typer.Context,
    *,
    execution_id: Annotated[
        str,
        typer.Option("--execution-id", metavar="ID", help="The execution that failed.", show_default=False),
    ],
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", metavar="NAME", help="Look at this lock only; may be repeated.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Release what a failed execution still holds, and nothing of anybody else's.

    Without [bold]--scope[/bold] every lock is found that was taken with this execution_id.

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
        say(f"Released {done.cleaned_count}: {', '.join(quoted(s) for s in done.scopes)}.")
    else:
        say(f"Nothing to release: {done.reason}.")


def _now(stay: Backstay) -> float:
    """The engine's clock: a laptop's may differ."""
    return stay.engine.now() / 1_000_000
