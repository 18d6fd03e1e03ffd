"""Stores for guarded writes, which a subprocess selects by kind and address (see STORES)."""

from __future__ import annotations

import functools
import os
import signal
import sqlite3

import psycopg
import redis


def pause_process():
    """Stop this process, as a long GC pause or a frozen container would, until the test sends SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)


#: Pauses only the first time: a refused write sends a second command, which reads the newer fence.
pause_once = functools.cache(pause_process)


def create_orders(db):
    """Create a table whose name needs quoting, with one row that has no fence yet."""
    cursor = db.cursor()
    cursor.execute('CREATE TABLE "order" (id INTEGER PRIMARY KEY, paid INTEGER, fence BIGINT)')
    cursor.execute('INSERT INTO "order" (id) VALUES (42)')
    db.commit()


class RedisStore:
    """A key on a Redis server."""

    KEY = "balance:42"

    def __init__(self, address, *, stopping=False):
        kind = StoppingClient if stopping else redis.Redis
        self.client = kind.from_url(address)

    def prepare(self):
        self.client.delete(self.KEY, "{balance:42}:fence")

    def write(self, guard, value):
        guard.redis(self.client).set(self.KEY, value)

    def read(self):
        found = self.client.get(self.KEY)
        return None if found is None else int(found)

    def close(self):
        self.client.close()


class StoppingClient(redis.Redis):
    """Pauses the process after the lease check and before the write is sent."""

    def execute_command(self, *args, **options):
        pause_once()
        return super().execute_command(*args, **options)


class SqliteStore:
    """A row in a SQLite file."""

    def __init__(self, address, *, stopping=False):
        self.db = sqlite3.connect(address, factory=StoppingConnection if stopping else sqlite3.Connection)

    def prepare(self):
        self.db.execute("CREATE TABLE balance (id INTEGER PRIMARY KEY, amount INTEGER, fence BIGINT)")
        self.db.execute("INSERT INTO balance (id) VALUES (42)")
        self.db.commit()

    def write(self, guard, value):
        with self.db:
            guard.sql(self.db).update("balance", {"amount": value}, where={"id": 42})

    def read(self):
        return self.db.execute("SELECT amount FROM balance WHERE id = 42").fetchone()[0]

    def close(self):
        self.db.close()


class StoppingConnection(sqlite3.Connection):
    def cursor(self, *args):
        pause_once()
        return super().cursor(*args)


class PostgresStore:
    """A row on a PostgreSQL server, in a table of its own because tests share the database."""

    def __init__(self, address, *, stopping=False):
        kind = StoppingSession if stopping else psycopg.Connection
        self.db = kind.connect(address)

    def prepare(self):
        with self.db.transaction():
            self.db.execute("DROP TABLE IF EXISTS guard_balance")
            self.db.execute("CREATE TABLE guard_balance (id INTEGER PRIMARY KEY, amount INTEGER, fence BIGINT)")
            self.db.execute("INSERT INTO guard_balance (id) VALUES (42)")

    def write(self, guard, value):
        with self.db.transaction():
            guard.sql(self.db).update("guard_balance", {"amount": value}, where={"id": 42})

    def read(self):
        with self.db.transaction():
            return self.db.execute("SELECT amount FROM guard_balance WHERE id = 42").fetchone()[0]

    def close(self):
        self.db.close()


class StoppingSession(psycopg.Connection):
    def cursor(self, *args, **options):
        pause_once()
        return super().cursor(*args, **options)


STORES = {"redis": RedisStore, "sqlite": SqliteStore, "postgres": PostgresStore}
