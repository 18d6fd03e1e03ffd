"""Charge once inside the caller's transaction; this process kills itself before its n-th statement.

Arguments: sqlite or postgres; the address; n (0: never). Prints the number of statements.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys

import psycopg

from backstay.sync import Backstay

KEY = "charge:42"


class Count:
    """The number of statements and commits of this process."""

    done = 0
    dies_before = int(sys.argv[3]) if __name__ == "__main__" else 0

    @classmethod
    def add(cls):
        cls.done += 1
        if cls.done == cls.dies_before:
            os.kill(os.getpid(), signal.SIGKILL)


class CountingCursor(sqlite3.Cursor):
    def execute(self, *args):
        Count.add()
        return super().execute(*args)


class CountingFile(sqlite3.Connection):
    def cursor(self):
        return super().cursor(CountingCursor)

    def commit(self):
        Count.add()
        super().commit()


class CountingServerCursor(psycopg.Cursor):
    def execute(self, *args, **options):
        Count.add()
        return super().execute(*args, **options)


class CountingSession(psycopg.Connection):
    def commit(self):
        Count.add()
        super().commit()


def connect(kind, address):
    if kind == "sqlite":
        return sqlite3.connect(address, factory=CountingFile)
    return CountingSession.connect(address, cursor_factory=CountingServerCursor)


def charge(stay, db):
    """Apply one effect for one key, however often this is called."""
    with stay.idempotency.transaction(db, KEY, fingerprint={"amount": 5}) as entry:
        if not entry.replayed:
            cursor = db.cursor()
            cursor.execute("INSERT INTO charge (amount) VALUES (5)")
            cursor.close()
            entry.result = {"charged": 5}
    db.commit()
    return entry.result


if __name__ == "__main__":
    with Backstay("memory://") as stay:
        connection = connect(sys.argv[1], sys.argv[2])
        assert charge(stay, connection) == {"charged": 5}
        Count.add()
        connection.close()
        print(Count.done)
