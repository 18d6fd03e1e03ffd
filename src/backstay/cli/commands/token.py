"""`backstay token`: who may use a server."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated

import typer

from backstay.cli import exit_codes
from backstay.cli.connection import connection
from backstay.cli.durations import duration
from backstay.cli.output import printable, say, say_json, say_table, warn
from backstay.job.api.registry import store_of
from backstay.job.flows import send
from backstay.runtime.core import Core
from backstay.runtime.flows import run
from backstay.runtime.lease import instant

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.callback()
def group() -> None:
    """Make, list and revoke the tokens of a server."""


@contextmanager
def _core(context: typer.Context, *, new: bool = False) -> Generator[Core, None, None]:
    given = connection(context)
    if new:  # a token may be the first thing that is stored
        with given.blocking() as stay:
            yield stay._core  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - the house's own
    else:
        with given.existing() as stay:
            yield stay._core  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - the same


@app.command("create")
def create(
    context: typer.Context,
    *,
    role: Annotated[
        str,
        typer.Option(
            "--role", metavar="ROLE", help="submit, worker or admin, who may do everything.", show_default=False
        ),
    ],
    name: Annotated[str, typer.Option("--name", metavar="TEXT", help="Whose it is, for the list.")] = "",
    expires: Annotated[
        float,
        typer.Option(
            "--expires", parser=duration, metavar="DURATION", help="After which it ends.", show_default="never"
        ),
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Make a token and show it, once. Only its hash is stored.

    From then on the server refuses requests without one, within seconds.

    [bold]Examples[/bold]

      backstay token create --role worker --name build-machines

      BACKSTAY_TOKEN=$(backstay token create --role submit --expires 12h)
    """
    from backstay.server.http.auth import new_token

    with _core(context, new=True) as core:
        until = core.engine.now() + int(expires * 1_000_000) if expires else 0
        token, record = new_token(role, name, until)
        run(send(core, store_of(core).put_token(record)))
    if as_json:
        say_json({"id": record.id, "role": role, "name": name, "token": token})
        return
    say(token)
    warn(f"token {record.id} with the role {role} was made; it is shown this once")


@app.command("ls")
def list_tokens(context: typer.Context, *, as_json: AsJson = False) -> None:
    """List tokens: their ids, roles and names; what they are made of is not stored."""
    with _core(context) as core:
        records = run(send(core, store_of(core).tokens()))
    rows = [
        (
            record.id,
            record.role,
            printable(record.name),
            instant(record.created).isoformat(timespec="seconds") if record.created else "",
            instant(record.expires).isoformat(timespec="seconds") if record.expires else "never",
        )
        for record in records
    ]
    columns = ("id", "role", "name", "created", "expires")
    if as_json:
        say_json({"tokens": [dict(zip(columns, row, strict=True)) for row in rows]})
    else:
        say_table(columns, rows)


@app.command("revoke")
def revoke(
    context: typer.Context,
    token: Annotated[str, typer.Argument(metavar="ID", help="The token's id, as ls shows it.", show_default=False)],
) -> None:
    """End a token. Servers refuse it within seconds."""
    with _core(context) as core:
        gone = run(send(core, store_of(core).drop_token(token)))
    if not gone:
        warn(f"there is no token {printable(token)!r}; `backstay token ls` shows them")
        raise typer.Exit(exit_codes.FAILED)
    say(f"token {token} was revoked")
