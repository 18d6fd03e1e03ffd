"""Databases for jobs that are enqueued in the caller's transaction, and connections to them."""

from __future__ import annotations

import pytest
from order_database import OrderDatabase

POSTGRES = pytest.param("postgres", marks=pytest.mark.postgres)


@pytest.fixture(params=["sqlite", POSTGRES])
def database(request, tmp_path):
    if request.param == "sqlite":
        made = OrderDatabase("sqlite", f"sqlite:///{tmp_path / 'database.db'}", tmp_path / "database.db")
    else:
        server = request.getfixturevalue("backstay_postgres")
        made = OrderDatabase("postgres", server.url, server.url)
    yield made
    made.stay.close()


@pytest.fixture
def sqlite_database(tmp_path):
    made = OrderDatabase("sqlite", f"sqlite:///{tmp_path / 'database.db'}", tmp_path / "database.db")
    yield made
    made.stay.close()


@pytest.fixture
def db(database):
    """A connection of the caller to the database."""
    db = database.connect()
    yield db
    db.close()


@pytest.fixture
def sqlite_db(sqlite_database):
    db = sqlite_database.connect()
    yield db
    db.close()
