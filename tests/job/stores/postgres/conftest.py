"""Engines, clients and connections for tests of the job store on PostgreSQL."""

from __future__ import annotations

import psycopg
import pytest
from postgres_store_client import PostgresStoreClient, open_engine

from backstay.engine.postgres.pipeline.pipeline import PipelineConnection
from backstay.job.stores.postgres.store import PostgresStore


@pytest.fixture
def store(namespace):
    return PostgresStore(namespace, namespace)


@pytest.fixture
def engine(backstay_postgres, namespace):
    engine = open_engine(backstay_postgres.url, namespace)
    yield engine
    engine.close_blocking()


@pytest.fixture
def admin(backstay_postgres):
    """A connection outside of the engine."""
    with psycopg.connect(backstay_postgres.url, autocommit=True) as admin:
        yield admin


@pytest.fixture
def clients(backstay_postgres, namespace):
    """Create clients, each with its own connections, and close them after the test: `clients("name", want=5)`."""
    made = []

    def make(name="w", **options):
        made.append(PostgresStoreClient(backstay_postgres.url, namespace, name=name, **options))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture
def round_trips(monkeypatch):
    """Record the round trips of store operations: for each, whether the operations in it commit."""
    recorded = []
    send = PipelineConnection._send_round_trip

    def record(self, session, procedures, **options):
        recorded.append([one.next_trip.commit for one in procedures])
        send(self, session, procedures, **options)

    monkeypatch.setattr(PipelineConnection, "_send_round_trip", record)
    return recorded
