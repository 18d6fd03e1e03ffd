"""Track the caller's own transactions on the engine's file, to prevent a deadlock with the engine's writer.

Inside such a transaction the caller must not wait for the writer, because the writer waits until the caller commits.
"""

from __future__ import annotations

import sqlite3
from contextvars import ContextVar
from typing import Any

from backstay.errors import WouldDeadlock

#: The caller's connection that this task or thread has written with, and the engine whose file it locks.
_current: ContextVar[tuple[sqlite3.Connection, object] | None] = ContextVar("backstay_sqlite_caller", default=None)


def enter(db: sqlite3.Connection, engine: object) -> None:
    """Record that this task or thread writes in a transaction of its own, until it commits or rolls back."""
    _current.set((db, engine))


def leave() -> None:
    """Record that the transaction has ended."""
    _current.set(None)


def check(engine: object, path: str) -> None:
    """Raise WouldDeadlock if this task or thread is inside such a transaction."""
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
            return False  # such a connection always has an open transaction, and hides whether it has written
        return db.in_transaction
    except sqlite3.ProgrammingError:  # closed
        return False


def use_plain_rows(db: sqlite3.Connection) -> tuple[Any, Any]:
    """Set the default row and text factories on the caller's connection; return the caller's, to be restored."""
    before = (db.row_factory, db.text_factory)
    db.row_factory, db.text_factory = None, str
    return before
