"""A process that charges once inside its own transaction, and kills itself before its n-th statement.

Arguments: sqlite or postgres; the address; n (0: live). Prints how many statements there were.
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
    """Statements and commits of this process."""

    done = 0
    dies_before = int(sys.argv[3]) if __name__ == "__main__" else 0

    @classmethod
    def one_more(cls):
        cls.done += 1
        if cls.done == cls.dies_before:
            os.kill(os.getpid(), signal.SIGKILL)


class MortalCursor(sqlite3.Cursor):
    def execute(self, *args):
        Count.one_more()
        return super().execute(*args)


class MortalFile(sqlite3.Connection):
    def cursor(self):
        return super().cursor(MortalCursor)

    def commit(self):
        Count.one_more()
        super().commit()


class MortalServerCursor(psycopg.Cursor):
    def execute(self, *args, **options):
        Count.one_more()
        return super().execute(*args, **options)


class MortalSession(psycopg.Connection):
    def commit(self):
        Count.one_more()
        super().commit()


def connect(kind, address):
    if kind == "sqlite":
        return sqlite3.connect(address, factory=MortalFile)
    return MortalSession.connect(address, cursor_factory=MortalServerCursor)


def charge(stay, db):
    """One effect for one key, however often it is tried."""
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
        Count.one_more()
        connection.close()
        print(Count.done)
