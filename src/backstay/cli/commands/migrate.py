"""`backstay migrate`: the schema of a PostgreSQL database, brought up to date or printed."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

import typer

from backstay.app import POSTGRES, postgres_or_explain
from backstay.cli.connection import connection
from backstay.cli.output import say


def migrate(
    context: typer.Context,
    url: Annotated[
        str, typer.Argument(metavar="[URL]", help="The database; else --url or BACKSTAY_URL.", show_default=False)
    ] = "",
    *,
    sql: Annotated[
        bool, typer.Option("--sql", help="Print what an empty PostgreSQL database needs, and change nothing.")
    ] = False,
    since: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="VERSION", help="With --sql: what a database with this schema needs.", show_default=False
        ),
    ] = None,
) -> None:
    """Bring a PostgreSQL database's schema up to date.

    A user who may create tables needs no migration by hand: the first process
    to connect does it. Others are told to run this as one who may, or to give
    the printed SQL to whoever is. Running it twice changes nothing.

    [bold]Examples[/bold]

      backstay migrate postgresql://owner@127.0.0.1:5432/app

      backstay migrate --sql > backstay.sql

      backstay migrate --sql --since 1 > backstay.sql
    """
    if sql:
        _print(since or 0)
        return
    if since is not None:
        raise typer.BadParameter("--since goes with --sql; otherwise the database itself says which schema it has")
    url = url or connection(context).url
    if urlsplit(url).scheme in POSTGRES:
        _migrate(url)
    else:
        say("Nothing to do: a SQLite file is brought up to date when it is opened, and Redis has no schema.")


def _print(since: int) -> None:
    postgres_or_explain()
    from backstay.engine.postgres import schema
    from backstay.engine.postgres.rights import grants

    script = schema.as_sql(since)
    say(script.rstrip())
    if since < schema.latest():
        say("-- A user who may not create tables needs these:")
        for grant in grants("app"):
            say(f"-- {grant}")


def _migrate(url: str) -> None:
    postgres_or_explain()
    import psycopg

    from backstay.engine.postgres import schema
    from backstay.engine.postgres.address import parse
    from backstay.engine.postgres.connection.session import connect, translate

    address = parse(url)
    session = connect(address, "backstay:migrate")
    session.until = float("inf")  # a large table takes its time
    try:
        before = schema.version(session)
        schema.upgrade(session, str(address))
    except psycopg.Error as error:
        raise translate(error, address) from error
    finally:
        session.close()
    if before == schema.latest():
        say(f"{address} is up to date: schema {before}.")
    else:
        say(f"{address} was brought from schema {before} to {schema.latest()}.")
