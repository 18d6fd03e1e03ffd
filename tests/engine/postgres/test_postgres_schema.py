"""The schema of an empty database is created once, however many processes open it at the same time."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from backstay.engine.base import steady
from backstay.engine.postgres import schema
from backstay.engine.postgres.address import parse
from backstay.engine.postgres.connection.session import connect
from backstay.engine.postgres.rights import RIGHTS
from backstay.testing.waiting import WITHIN, eventually

pytestmark = pytest.mark.postgres

OPENER = """
import sys
from backstay.sync import Backstay
sys.stdin.readline()
with Backstay(sys.argv[1]) as stay, stay.lock("x", wait=30) as lease:
    print(lease.fence)
"""


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_eight_processes_open_an_empty_database_together(database, admin, isolation):
    admin.execute(f"ALTER DATABASE {database.name} SET default_transaction_isolation TO '{isolation}'")
    command = [sys.executable, "-c", OPENER, database.url]
    pipe = subprocess.PIPE
    openers = [subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(8)]
    for opener in openers:
        opener.stdin.write("\n")
        opener.stdin.flush()
    outputs = [opener.communicate(timeout=60) for opener in openers]
    assert [err for _, err in outputs if err] == []
    assert len({int(out) for out, _ in outputs}) == 8


def test_the_printed_schema_equals_the_migrated_schema(database):
    columns = "SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = 'public'"
    indexes = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'"

    def shape(db):
        return sorted(db.execute(columns).fetchall()), sorted(db.execute(indexes).fetchall())

    with psycopg.connect(database.url, autocommit=True) as db:
        db.execute(schema.as_sql())
        printed = shape(db)
        assert printed[0]
        db.execute(f"DROP TABLE {', '.join(RIGHTS)}")
    with connect(parse(database.url), "test") as session:
        assert schema.version(session) == 0
        schema.upgrade(session, "here")
        assert schema.version(session) == schema.latest()
        assert shape(session) == printed


def test_an_upgrade_waits_for_a_concurrent_migration(database):
    with psycopg.connect(database.url, autocommit=True) as other, connect(parse(database.url), "test") as session:
        other.execute(schema.as_sql().removesuffix("COMMIT;\n"))
        other.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        threading.Timer(0.5, other.commit).start()
        schema.upgrade(session, "here")
        assert schema.version(session) == schema.latest()


def test_an_upgrade_waits_for_a_concurrent_migration_longer_than_a_call_timeout(database):
    """A migration has no call timeout: a migration cut off at a timeout would start again with every call."""
    waiting = "SELECT FROM pg_stat_activity WHERE wait_event = 'advisory' AND now() - query_start > interval '0.5 s'"
    with psycopg.connect(database.url) as other, psycopg.connect(database.url, autocommit=True) as watch:
        other.execute("SELECT pg_advisory_xact_lock(%s)", (schema.LOCK,))
        with ThreadPoolExecutor(1) as pool, connect(parse(database.url + "?timeout=0.2"), "test") as session:
            session.until = float("inf")
            before = schema.version(session)
            session.until = steady() + 0.2
            upgraded = pool.submit(schema.upgrade, session, "here")
            assert eventually(lambda: watch.execute(waiting).rowcount)
            other.rollback()
            upgraded.result(WITHIN)
            assert session.until < steady() + 0.3, "calls have as long as before"
            session.until = float("inf")
            assert (before, schema.version(session)) == (0, schema.latest())
