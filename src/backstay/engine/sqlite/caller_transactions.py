"""Track the caller's own transactions on the engine's file, to prevent a deadlock with the engine's commit thread.

In such a transaction the caller's connection holds SQLite's write lock. The commit thread, which runs all operations of
the engine, waits until the caller commits. So the caller must not wait for an operation of the engine before that.
"""

from __future__ import annotations

import sqlite3
from contextvars import ContextVar
from typing import Any

from backstay.errors import WouldDeadlock

#: The connection on which this task or thread writes in a transaction of its own, and the engine that uses the same
#: file; None if there is no such transaction.
_current: ContextVar[tuple[sqlite3.Connection, object] | None] = ContextVar("backstay_sqlite_caller", default=None)


def enter(db: sqlite3.Connection, engine: object) -> None:
    """Record that this task or thread writes in a transaction of its own, until it commits or rolls back."""
    _current.set((db, engine))


def leave() -> None:
    """Record that this task's or thread's own transaction has ended."""
    _current.set(None)


def check(engine: object, path: str) -> None:
    """Raise WouldDeadlock if this task or thread has an open transaction of its own on the engine's file."""
    found = _current.get()
    if found is None or found[1] is not engine:
        return
    if in_transaction(found[0]):
        raise WouldDeadlock(
            name=path,
            lock_id="a transaction of its own",
            way_out="Commit it first, or pass connection= to this call as well.",
        )
    _current.set(None)


def in_transaction(db: sqlite3.Connection) -> bool:
    """Whether the connection has an open transaction that may hold the write lock."""
    try:
        if getattr(db, "autocommit", None) is False:
            return False  # then sqlite3 always has a transaction open, with or without the lock
        return db.in_transaction
    except sqlite3.ProgrammingError:  # closed
        return False


def use_plain_rows(db: sqlite3.Connection) -> tuple[Any, Any]:
    """Set the default row and text factories on the caller's connection, because the engine's code expects rows as
    tuples and text as `str`. Returns the caller's factories, to be restored afterwards.
    """
    before = (db.row_factory, db.text_factory)
    db.row_factory, db.text_factory = None, str
    return before
