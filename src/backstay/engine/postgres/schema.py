"""The PostgreSQL schema: looked at, migrated under an advisory lock, refused when it is newer than this code.

Tables are prefixed `backstay_` and live wherever the user's `search_path` says.
"""

from __future__ import annotations

from psycopg.errors import InsufficientPrivilege

from backstay.engine import migrations
from backstay.engine.base import steady
from backstay.engine.postgres.connection.session import Session
from backstay.errors import EngineRefused

#: Whoever migrates holds this advisory lock ("backstay" as a number), so that two starting processes take turns.
LOCK = 0x686F6C64
#: Seconds that it may take, however few a call may: cut off in its midst it would begin anew with the next, for ever.
TIME = 60.0
#: How long to wait for whoever migrates, and for a table that somebody holds: others wait behind us there (ms).
PATIENCE, TABLE_PATIENCE = 50_000, 4000
META = "CREATE TABLE IF NOT EXISTS backstay_meta (key text PRIMARY KEY, value bigint NOT NULL)"
#: At the head of a script for people: the same lock, a snapshot taken after it, and no step from another version.
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
    """Bring the schema up to date. A user without the right to create tables needs a schema that is."""
    have = version(session)
    if not migrations.missing("postgres", have, where):
        return
    left = session.until - steady()
    session.until = steady() + max(left, TIME)
    try:
        with session.transaction():
            session.execute(f"SET LOCAL lock_timeout = {PATIENCE}".encode())
            session.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
            session.execute(f"SET LOCAL lock_timeout = {TABLE_PATIENCE}".encode())
            session.execute(META.encode())
            for script in migrations.missing("postgres", version(session), where):
                session.execute(script.encode())
            session.execute(DONE, (latest(),))
    except InsufficientPrivilege as error:
        raise EngineRefused(
            f"{where} has schema {have}, needs {latest()}, and this user may not change it: run `backstay migrate` as"
            f" one who may, or give what `{command(have)}` prints to your database administrator"
        ) from error
    finally:
        session.until = steady() + left


def latest() -> int:
    """The version this code works with."""
    return len(migrations.scripts("postgres"))


def version(session: Session) -> int:
    """The schema's version; 0 when there is none."""
    if session.execute("SELECT to_regclass('backstay_meta')").fetchone() == (None,):
        return 0
    row = session.execute("SELECT value FROM backstay_meta WHERE key = 'schema'").fetchone()
    return int(row[0]) if row else 0


def command(have: int) -> str:
    """What prints the SQL that a database with this version needs."""
    return f"backstay migrate --sql --since {have}" if have else "backstay migrate --sql"


def as_sql(since: int = 0) -> str:
    """Everything that a database of version `since` needs (0: an empty one), for whoever runs migrations by hand.
    Run where another version is, it fails and changes nothing.
    """
    needed = migrations.missing("postgres", since, "the database")
    if not needed:
        return f"-- Schema {since} is the latest that this Backstay knows: there is nothing to do.\n"
    head = [
        "BEGIN ISOLATION LEVEL READ COMMITTED;",
        f"SELECT pg_advisory_xact_lock({LOCK});",
        EXPECT.format(since=since),
    ]
    meta = [] if since else [f"{META};\n"]
    return "\n".join([*head, *meta, *needed, DONE.replace("%s", str(latest())) + ";", "COMMIT;", ""])
