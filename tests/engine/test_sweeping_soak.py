"""Two thousand new names a second for ten minutes: neither rows nor bytes grow. `make soak` runs it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from backstay import Backstay
from backstay.engine.base import steady
from backstay.testing.servers.postgres import PostgresServer

pytestmark = pytest.mark.soak

#: At least three minutes: the counter of an announcement lives for one, so there are more and more in the first minute.
SECONDS = max(180.0, float(os.environ.get("BACKSTAY_SOAK_SECONDS", "600")))
#: New names per second: keys of a limit, and announcements, each with a counter of its own.
KEYS, ANNOUNCEMENTS = 1900, 100
#: Seconds between two bursts, and between two measurements.
BURST, MEASURE = 0.05, 5.0


#: The tables in which the names have rows.
TABLES = ("backstay_state", "backstay_hint_counter")
COUNT = "SELECT (SELECT count(*) FROM backstay_state) + (SELECT count(*) FROM backstay_hint_counter)"


class Load:
    """Creates names at a steady rate; what it could not create in time it creates later."""

    def __init__(self, stay):
        self._stay = stay
        self._limit = stay.limit("soak", "5/2s", algorithm="fixed")
        self.created = 0

    async def run(self, seconds):
        began = steady()
        while (passed := steady() - began) < seconds:
            due = int(passed * (KEYS + ANNOUNCEMENTS)) - self.created
            await asyncio.gather(*[self._create(self.created + n) for n in range(min(due, 2000))])
            self.created += min(due, 2000)
            await asyncio.sleep(BURST)

    async def _create(self, n):
        if n % 20:
            await self._limit.hit(f"user:{n}")
        else:
            await self._stay.hub.publish_scheduled("mail", 1)


class SqliteSize:
    """The rows and bytes of a file."""

    def __init__(self, path):
        self._path = path

    def measure(self):
        with closing(sqlite3.connect(self._path)) as db:
            (rows,) = db.execute(COUNT).fetchone()
        return rows, sum(Path(f"{self._path}{end}").stat().st_size for end in ("", "-wal"))


class PostgresSize:
    """The rows and bytes of the tables and their indexes."""

    def __init__(self, url):
        self._url = url

    def measure(self):
        with psycopg.connect(self._url) as db:
            (rows,) = db.execute(COUNT).fetchone()
            sizes = [db.execute("SELECT pg_total_relation_size(%s)", (table,)).fetchone()[0] for table in TABLES]
        return rows, sum(sizes)


async def measure_under_load(url, size):
    """Return the measurements during the load, and the number of names."""
    found = []
    async with Backstay(url) as stay:
        load = Load(stay)
        running = asyncio.create_task(load.run(SECONDS))
        while not running.done():
            await asyncio.wait([running], timeout=MEASURE)
            found.append(await asyncio.to_thread(size.measure))
        await running
    return found, load.created


def assert_steady(on, found, created):
    third = len(found) // 3
    rows, size = map(max, zip(*found[third : 2 * third], strict=True))
    last_rows, last_size = map(max, zip(*found[2 * third :], strict=True))
    print(f"\n{on}: {created} names in {SECONDS:g} s ({created / SECONDS:.0f}/s)")
    print(f"  second third: at most {rows} rows, {size / 2**20:.1f} MiB")
    print(f"  last third:   at most {last_rows} rows, {last_size / 2**20:.1f} MiB")
    assert last_rows <= rows * 1.25
    assert last_size <= size * 1.25
    assert last_rows <= created / 4


def test_rows_and_bytes_are_steady_on_sqlite(tmp_path):
    path = tmp_path / "soak.db"
    found, created = asyncio.run(measure_under_load(f"sqlite:///{path}", SqliteSize(path)))
    assert_steady("SQLite", found, created)


@pytest.mark.postgres
def test_rows_and_bytes_are_steady_on_postgres():
    """Autovacuum visits a database once a minute by default; in a shorter run, it does so as often."""
    naptime = max(1, min(60, int(SECONDS / 10)))
    with PostgresServer(settings={"autovacuum_naptime": f"{naptime}s"}) as server:
        found, created = asyncio.run(measure_under_load(server.url, PostgresSize(server.url)))
    assert_steady("PostgreSQL", found, created)
