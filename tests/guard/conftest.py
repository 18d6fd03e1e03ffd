"""A lease under guard, one that came before it, and stores to write to."""

from __future__ import annotations

import sqlite3

import pytest
from stores import create_orders


@pytest.fixture
def stay(connect):
    return connect("memory://")


@pytest.fixture
def leases(stay):
    """An older lease and the one that followed. The older one believes that it lives: its process stood still."""
    older = stay.lock("invoice:42", ttl=60).acquire()
    stay.locks.force_release("invoice:42")
    newer = stay.lock("invoice:42", ttl=60).acquire()
    older.check()
    return older, newer


@pytest.fixture
def db(tmp_path):
    db = sqlite3.connect(tmp_path / "shop.db")
    create_orders(db)
    yield db
    db.close()
