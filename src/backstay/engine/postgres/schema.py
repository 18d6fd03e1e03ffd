"""Check and migrate the PostgreSQL schema under an advisory lock; reject a schema that is newer than this code.

Tables are prefixed `backstay_` and are found through the user's `search_path`.
"""

from __future__ import annotations

from psycopg.errors import InsufficientPrivilege

from backstay.engine import migrations
from backstay.engine.base import steady
from backstay.engine.postgres.connection.session import Session
from backstay.errors import EngineRefused

#: The advisory lock of a migration, so that processes that start at the same time migrate one after another.
LOCK = 0x686F6C64
#: Seconds that a migration may take, even if the call that started it has less time. Otherwise every call would
#: interrupt the migration, the next one would start it again, and it would never finish.
TIME = 60.0
#: Milliseconds. PATIENCE: how long to wait for the migration of another process. TABLE_PATIENCE: how long to wait for a
#: table lock; short, because all later queries on the table wait behind it.
PATIENCE, TABLE_PATIENCE = 50_000, 4000
META = "CREATE TABLE IF NOT EXISTS backstay_meta (key text PRIMARY KEY, value bigint NOT NULL)"
#: The head of a migration script for manual use. It fails if the database has another version. It is a statement of its
#: own after the advisory lock, so that its snapshot includes a migration that has just committed.
EXPECT = """\
DO $backstay$
DECLARE
    have bigint := 0;
BEGIN
    IF to_regclass('backstay_meta') IS NOT NULL THEN
        have := coalesce((SELECT value FROM backstay_meta WHERE key = 'schema'), 0);
    END IF;
    IF have <> {since} THEN
        RAISE EXCEPTION 'this script is for schema {since}, and the database has schema %', have
            USING HINT = format('backstay migrate --sql --since %s prints the right one', have);
    END IF;
END
$backstay$;
"""
DONE = "INSERT INTO backstay_meta VALUES ('schema', %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value"


def upgrade(session: Session, where: str) -> None:
    """Bring the schema up to date. Raises EngineRefused if it is outdated and the user may not change it."""
    have = version(session)
    if not migrations.list_missing("postgres", have, where):
        return
    left = session.until - steady()
    session.until = steady() + max(left, TIME)
    try:
        with session.transaction():
            session.execute(f"SET LOCAL lock_timeout = {PATIENCE}".encode())
            session.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
            session.execute(f"SET LOCAL lock_timeout = {TABLE_PATIENCE}".encode())
            session.execute(META.encode())
            for script in migrations.list_missing("postgres", version(session), where):
                session.execute(script.encode())
            session.execute(DONE, (latest(),))
    except InsufficientPrivilege as error:
        raise EngineRefused(
            f"{where} has schema {have}, needs {latest()}, and this user may not change it: run `backstay migrate` as"
            f" a user who may, or give the output of `{command(have)}` to your database administrator"
        ) from error
    finally:
        session.until = steady() + left


def latest() -> int:
    """Return the schema version that this code requires."""
    return len(migrations.scripts("postgres"))


def version(session: Session) -> int:
    """Return the version of the stored schema; 0 if there is none."""
    if session.execute("SELECT to_regclass('backstay_meta')").fetchone() == (None,):
        return 0
    row = session.execute("SELECT value FROM backstay_meta WHERE key = 'schema'").fetchone()
    return int(row[0]) if row else 0


def command(have: int) -> str:
    """Return the shell command that prints the SQL for upgrading the schema from version `have`."""
    return f"backstay migrate --sql --since {have}" if have else "backstay migrate --sql"


def as_sql(since: int = 0) -> str:
    """Return the SQL that upgrades a database from version `since` (0: an empty one), for manual migrations.
    On a database with another version it fails and changes nothing.
    """
    needed = migrations.list_missing("postgres", since, "the database")
    if not needed:
        return f"-- Schema {since} is the latest that this Backstay knows: there is nothing to do.\n"
    head = [
        "BEGIN ISOLATION LEVEL READ COMMITTED;",
        f"SELECT pg_advisory_xact_lock({LOCK});",
        EXPECT.format(since=since),
    ]
    meta = [] if since else [f"{META};\n"]
    return "\n".join([*head, *meta, *needed, DONE.replace("%s", str(latest())) + ";", "COMMIT;", ""])
