"""`backstay token`: create, list and revoke access tokens of a server."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated

import typer

from backstay.assembly.internals import Internals
from backstay.cli import exit_codes
from backstay.cli.connection import connection
from backstay.cli.durations import duration
from backstay.cli.output import printable, say, say_json, say_table, warn
from backstay.runtime.flows import run
from backstay.runtime.lease import instant

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.callback()
def group() -> None:
    """Create, list and revoke the tokens of a server."""


@contextmanager
def _internals(context: typer.Context, *, new: bool = False) -> Generator[Internals, None, None]:
    given = connection(context)
    if new:  # a token may be the first record in a new database
        with given.blocking() as stay:
            yield stay.internals
    else:
        with given.existing() as stay:
            yield stay.internals


@app.command("create")
def create(
    context: typer.Context,
    *,
    role: Annotated[
        str,
        typer.Option("--role", metavar="ROLE", help="submit, worker or admin (all rights).", show_default=False),
    ],
    name: Annotated[str, typer.Option("--name", metavar="TEXT", help="A description, shown in the list.")] = "",
    owner: Annotated[
        str,
        typer.Option(
            "--owner",
            metavar="TEXT",
            help="Share locks, leases and worker ids with other tokens of this owner, or with the token of this id.",
            show_default="the token itself",
        ),
    ] = "",
    expires: Annotated[
        float,
        typer.Option(
            "--expires", parser=duration, metavar="DURATION", help="How long the token is valid.", show_default="never"
        ),
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Create a token and print it once. Only its hash is stored.

    Within seconds of the first token, the server refuses requests without one.

    [bold]Examples[/bold]

      backstay token create --role worker --name build-machines

      BACKSTAY_TOKEN=$(backstay token create --role submit --expires 12h)

      backstay token create --role submit --owner n8n
    """
    from backstay.server.http.auth import new_token

    with _internals(context, new=True) as below:
        until = below.engine.now() + int(expires * 1_000_000) if expires else 0
        token, record = new_token(role, name, until, owner)
        run(below.send(below.job_store.put_token(record)))
    if as_json:
        say_json({"id": record.id, "role": role, "name": name, "owner": owner or record.id, "token": token})
        return
    say(token)
    warn(f"created token {record.id} with the role {role}; it is shown only once")


@app.command("ls")
def list_tokens(context: typer.Context, *, as_json: AsJson = False) -> None:
    """List tokens: ids, roles, names and owners. The secrets are not stored."""
    with _internals(context) as below:
        records = run(below.send(below.job_store.tokens()))
    rows = [
        (
            record.id,
            record.role,
            printable(record.name),
            printable(record.owner or record.id),
            instant(record.created).isoformat(timespec="seconds") if record.created else "",
            instant(record.expires).isoformat(timespec="seconds") if record.expires else "never",
        )
        for record in records
    ]
    columns = ("id", "role", "name", "owner", "created", "expires")
    if as_json:
        say_json({"tokens": [dict(zip(columns, row, strict=True)) for row in rows]})
    else:
        say_table(columns, rows)


@app.command("revoke")
def revoke(
    context: typer.Context,
    token: Annotated[str, typer.Argument(metavar="ID", help="The token's id, as shown by ls.", show_default=False)],
) -> None:
    """Revoke a token. Servers refuse it within seconds."""
    with _internals(context) as below:
        gone = run(below.send(below.job_store.drop_token(token)))
    if not gone:
        warn(f"there is no token {printable(token)!r}; `backstay token ls` lists them")
        raise typer.Exit(exit_codes.FAILED)
    say(f"token {token} was revoked")
