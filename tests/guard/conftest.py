"""A current lease, a superseded one, and databases for guarded writes."""

from __future__ import annotations

import sqlite3

import pytest
from stores import create_orders


@pytest.fixture
def stay(connect):
    return connect("memory://")


@pytest.fixture
def leases(stay):
    """A superseded lease and its successor. The older one still looks alive to its process, as after a pause."""
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
