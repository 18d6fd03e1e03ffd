"""`backstay migrate`: upgrade the schema of a PostgreSQL database, or print the SQL."""

from __future__ import annotations

from typing import Annotated

import typer

from backstay.assembly.migrations import has_schema, render_schema, upgrade_schema
from backstay.cli.connection import connection
from backstay.cli.output import say


def migrate(
    context: typer.Context,
    url: Annotated[
        str,
        typer.Argument(metavar="[URL]", help="The database; the default is --url or BACKSTAY_URL.", show_default=False),
    ] = "",
    *,
    sql: Annotated[
        bool, typer.Option("--sql", help="Print the SQL for an empty PostgreSQL database, and change nothing.")
    ] = False,
    since: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="VERSION",
            help="With --sql: print the SQL for a database with this schema version.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Upgrade the schema of a PostgreSQL database.

    If the program's database user may create tables, this command is not needed: the
    first process that connects upgrades the schema. Otherwise run it as a user who may,
    or give the printed SQL to an administrator. Running it twice is safe.

    [bold]Examples[/bold]

      backstay migrate postgresql://owner@127.0.0.1:5432/app

      backstay migrate --sql > backstay.sql

      backstay migrate --sql --since 1 > backstay.sql
    """
    if sql:
        _print(since or 0)
        return
    if since is not None:
        raise typer.BadParameter("--since needs --sql; without --sql the version is read from the database")
    url = url or connection(context).url
    if has_schema(url):
        _migrate(url)
    else:
        say("Nothing to do: opening a SQLite file upgrades its schema, and Redis has no schema.")


def _print(since: int) -> None:
    script, grants = render_schema(since)
    say(script.rstrip())
    if grants:
        say("-- A user without the right to create tables needs these:")
        for grant in grants:
            say(f"-- {grant}")


def _migrate(url: str) -> None:
    where, before, after = upgrade_schema(url)
    if before == after:
        say(f"{where} is up to date: schema {before}.")
    else:
        say(f"{where} was upgraded from schema {before} to {after}.")
