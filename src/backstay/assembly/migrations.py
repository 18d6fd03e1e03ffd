"""Print or upgrade the schema of a PostgreSQL database, for `backstay migrate`."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from backstay.assembly.engines import POSTGRES, require_psycopg


class Upgrade(NamedTuple):
    """The result of an upgrade: the database, and its schema version before and after."""

    where: str
    before: int
    after: int


def has_schema(url: str) -> bool:
    """Return whether this URL is one of PostgreSQL, the only engine that `backstay migrate` upgrades."""
    return urlsplit(url).scheme in POSTGRES


def render_schema(since: int) -> tuple[str, list[str]]:
    """Return the SQL that upgrades a database from schema version `since` (0: no schema yet), and the GRANT statements
    for an application's user who may not create tables. If `since` is already the latest version, there are no
    GRANT statements. Raises ConfigError if psycopg is not installed.
    """
    require_psycopg()
    from backstay.engine.postgres import schema
    from backstay.engine.postgres.rights import grants

    return schema.as_sql(since), list(grants("app")) if since < schema.latest() else []


def upgrade_schema(url: str) -> Upgrade:
    """Upgrade the schema of the database to the latest version. Idempotent. Raises EngineError, ConfigError."""
    require_psycopg()
    import psycopg

    from backstay.engine.postgres import schema
    from backstay.engine.postgres.address import parse
    from backstay.engine.postgres.connection.session import connect, translate

    address = parse(url)
    session = connect(address, "backstay:migrate")
    session.until = float("inf")  # no timeout: migrating a large table may take long
    try:
        before = schema.version(session)
        schema.upgrade(session, str(address))
    except psycopg.Error as error:
        raise translate(error, address) from error
    finally:
        session.close()
    return Upgrade(str(address), before, schema.latest())
