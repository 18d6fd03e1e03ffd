"""The PostgreSQL schema: looked at, migrated under an advisory lock, refused when it is newer than this code.

Tables are prefixed `holdfast_` and live wherever the user's `search_path` says.
"""

from __future__ import annotations

from psycopg.errors import InsufficientPrivilege

from holdfast.engine import migrations
from holdfast.engine.postgres.session import Session
from holdfast.errors import EngineRefused

#: Whoever migrates holds this advisory lock ("holdfast" as a number), so that two starting processes take turns.
LOCK = 0x686F6C64
#: How long to wait for whoever migrates (ms).
PATIENCE = 4000
META = "CREATE TABLE IF NOT EXISTS holdfast_meta (key text PRIMARY KEY, value bigint NOT NULL)"
DONE = "INSERT INTO holdfast_meta VALUES ('schema', %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value"


def upgrade(session: Session, where: str) -> None:
    """Bring the schema up to date. A user without the right to create tables needs a schema that is."""
    have = version(session)
    if not migrations.missing("postgres", have, where):
        return
    try:
        with session.transaction():
            session.execute(f"SET LOCAL lock_timeout = {PATIENCE}".encode())
            session.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
            session.execute(META.encode())
            for script in migrations.missing("postgres", version(session), where):
                session.execute(script.encode())
            session.execute(DONE, (latest(),))
    except InsufficientPrivilege as error:
        raise EngineRefused(
            f"{where} has schema {have}, needs {latest()}, and this user may not change it: run `holdfast migrate` as"
            " one who may, or give what `holdfast migrate --sql` prints to your database administrator"
        ) from error


def latest() -> int:
    """The version this code works with."""
    return len(migrations.scripts("postgres"))


def version(session: Session) -> int:
    """The schema's version; 0 when there is none."""
    if session.execute("SELECT to_regclass('holdfast_meta')").fetchone() == (None,):
        return 0
    row = session.execute("SELECT value FROM holdfast_meta WHERE key = 'schema'").fetchone()
    return int(row[0]) if row else 0


def as_sql() -> str:
    """Everything that an empty database needs, for whoever runs migrations by hand."""
    known = migrations.scripts("postgres")
    return "\n".join(["BEGIN;", f"{META};", *known, DONE.replace("%s", str(len(known))) + ";", "COMMIT;", ""])
