"""Where guarded writes go, named to processes by a word and an address. One more store is one class and one line."""

from __future__ import annotations

import functools
import os
import signal
import sqlite3

import psycopg
import redis


def stop_myself():
    """Stand still here, as a long collection or a frozen container would, until somebody sends SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)


#: Once is enough: a refused write asks a second time, for the newer fence.
stop_once = functools.cache(stop_myself)


def create_orders(db):
    """A table whose name has to be quoted, with one row that nobody has guarded yet."""
    cursor = db.cursor()
    cursor.execute('CREATE TABLE "order" (id INTEGER PRIMARY KEY, paid INTEGER, fence BIGINT)')
    cursor.execute('INSERT INTO "order" (id) VALUES (42)')
    db.commit()


class RedisStore:
    """A key on a server."""

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
    """Stands still after the lease was looked at and before the write leaves."""

    def execute_command(self, *args, **options):
        stop_once()
        return super().execute_command(*args, **options)


class SqliteStore:
    """A row in a file."""

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
        stop_once()
        return super().cursor(*args)


class PostgresStore:
    """A row on a server. Its own table: tests share the database."""

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
        stop_once()
        return super().cursor(*args, **options)


STORES = {"redis": RedisStore, "sqlite": SqliteStore, "postgres": PostgresStore}
