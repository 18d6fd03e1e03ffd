"""A client of a job store in a new SQLite file."""

from __future__ import annotations

import pytest
from sqlite_store_client import SqliteStoreClient


@pytest.fixture
def client(tmp_path):
    client = SqliteStoreClient(tmp_path / "jobs.db")
    yield client
    client.engine.close_blocking()
