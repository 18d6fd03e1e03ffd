"""Verbs that travel together on one connection: the trouble of one is not the others'."""

from __future__ import annotations

import psycopg
import pytest
from test_postgres_store import job

from backstay.engine.base import Ping
from backstay.engine.commit_thread import Item
from backstay.engine.postgres.address import parse
from backstay.engine.postgres.engine import PostgresEngine
from backstay.engine.postgres.pipeline.pipeline import WithinLane
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
def test_what_one_of_a_group_has_done_is_told_although_the_next_one_meets_trouble(
    engine, namespace, monkeypatch, trouble
):
    """Of two schedulers in one process one makes the job. It is to hear so, or nobody announces it."""
    store = PostgresStore(namespace, namespace)
    carry_out, begun = WithinLane._round, []

    def troubled(self, session, talks, **options):
        if talks[0] not in begun:
            begun.append(talks[0])
            if len(begun) == 2:
                raise trouble
        carry_out(self, session, talks, **options)

    monkeypatch.setattr(WithinLane, "_round", troubled)
    moment = engine.now()
    ticks = [Tick(name="nightly", at=moment, job=job()) for _ in range(2)]
    items = [Item(store.tick(tick), place, print) for place, tick in enumerate(ticks)]
    lane = WithinLane(engine)
    try:
        assert lane.commit(items) == [True, False]
    finally:
        lane.end()
    assert [one.id for one in engine.apply(store.list_jobs())] == [ticks[0].job.id]
