"""Transactions of the caller's own on the engine's file: who is inside one cannot wait for the engine's writer.

The writer waits until the caller commits, and the caller would wait for the writer.
"""

from __future__ import annotations

import sqlite3
from contextvars import ContextVar
from typing import Any

from backstay.errors import WouldDeadlock

#: The caller's connection that this task or thread has written with, and the engine whose file it holds.
_inside: ContextVar[tuple[sqlite3.Connection, object] | None] = ContextVar("backstay_sqlite_caller", default=None)


def inside(db: sqlite3.Connection, engine: object) -> None:
    """From now on, until it commits or rolls back."""
    _inside.set((db, engine))


def outside() -> None:
    """It has ended."""
    _inside.set(None)


def check(engine: object, path: str) -> None:
    """Raises WouldDeadlock for whoever is inside."""
    found = _inside.get()
    if found is None or found[1] is not engine:
        return
    if in_transaction(found[0]):
        raise WouldDeadlock(
            name=path,
            lock_id="a transaction of its own",
            way_out="Commit it first, or pass connection= to this call as well.",
        )
    _inside.set(None)


def in_transaction(db: sqlite3.Connection) -> bool:
    """Whether a transaction is open that may hold the file."""
    try:
        if getattr(db, "autocommit", None) is False:
            return False  # it always has one, and nobody can tell whether it wrote
        return db.in_transaction
    except sqlite3.ProgrammingError:  # closed
        return False


def plainly(db: sqlite3.Connection) -> tuple[Any, Any]:
    """Rows as tuples and text as text, whatever the caller likes. Answers what to put back."""
    before = (db.row_factory, db.text_factory)
    db.row_factory, db.text_factory = None, str
    return before
