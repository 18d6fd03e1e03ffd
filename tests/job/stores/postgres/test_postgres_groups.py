"""Verbs that travel together on one connection: the trouble of one is not the others'."""

from __future__ import annotations

import psycopg
import pytest
from test_postgres_store import job

from backstay.engine.base import Ping
from backstay.engine.commit_thread import QueuedOp
from backstay.engine.postgres.address import parse
from backstay.engine.postgres.engine import PostgresEngine
from backstay.engine.postgres.pipeline.pipeline import PipelineConnection
from backstay.job.model import Tick
from backstay.job.stores.postgres.store import PostgresStore

pytestmark = pytest.mark.postgres


@pytest.fixture
def engine(backstay_postgres, namespace):
    engine = PostgresEngine(parse(backstay_postgres.url), namespace=namespace)
    engine.apply(Ping())
    yield engine
    engine.close_blocking()


@pytest.mark.parametrize("trouble", [psycopg.errors.LockNotAvailable, psycopg.errors.DiskFull])
def test_a_finished_command_of_a_batch_gets_its_reply_when_the_next_one_fails(engine, namespace, monkeypatch, trouble):
    """Of two schedulers in one process one creates the job. It must get that reply, or the job is never announced."""
    store = PostgresStore(namespace, namespace)
    carry_out, begun = PipelineConnection._send_round_trip, []

    def troubled(self, session, procedures, **options):
        if procedures[0] not in begun:
            begun.append(procedures[0])
            if len(begun) == 2:
                raise trouble
        carry_out(self, session, procedures, **options)

    monkeypatch.setattr(PipelineConnection, "_send_round_trip", troubled)
    moment = engine.now()
    ticks = [Tick(name="nightly", at=moment, job=job()) for _ in range(2)]
    items = [QueuedOp(store.tick(tick), place, print) for place, tick in enumerate(ticks)]
    lane = PipelineConnection(engine)
    try:
        assert lane.commit(items) == [True, False]
    finally:
        lane.end()
    assert [one.id for one in engine.apply(store.list_jobs())] == [ticks[0].job.id]
