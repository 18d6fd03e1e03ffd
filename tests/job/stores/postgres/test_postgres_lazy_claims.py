"""A claim on PostgreSQL does not wait for the disk: a job whose claim is lost in a server crash is claimed again."""

from __future__ import annotations

import pytest
from postgres_store_client import job, open_engine, plan_run

from backstay.engine.base import Ping
from backstay.job.exchange import Renewal
from backstay.job.model import Concurrency
from backstay.testing.servers.postgres import PostgresServer
from support.store_client import SECOND, StoreClient

pytestmark = [pytest.mark.postgres, pytest.mark.chaos]

#: With these settings, only a commit that waits for the WAL flushes it to the disk.
SLOW_WRITER = {"wal_writer_delay": "10s", "wal_writer_flush_after": "0", "autovacuum": "off"}


@pytest.fixture
def engine(server, namespace):
    engine = open_engine(server.url + "?timeout=5", namespace)
    yield engine
    engine.close_blocking()


@pytest.fixture
def server():
    """A server whose WAL reaches the disk only when a commit waits for it."""
    with PostgresServer(settings=SLOW_WRITER) as server:
        yield server


@pytest.fixture
def crash(server, engine):
    """Kill the server and start it again."""

    def crash():
        server.kill()
        server.start()
        engine.apply(Ping())

    return crash


@pytest.fixture
def client(engine, store):
    return StoreClient(engine, store, want=0)


def test_a_claim_lost_in_a_crash_is_repeated_with_a_higher_fence(client, crash, engine, store):
    client.add(retries=3)
    (lost,) = client.claim()
    crash()
    assert client.apply("get", lost.id).state == "pending"
    assert client.apply("renew", 0, "w", 60 * SECOND, [Renewal(lost.id, lost.fence)]) == ["lost"]
    (again,) = StoreClient(engine, store, channel=1).claim()
    assert (again.id, again.attempt) == (lost.id, 1)
    assert again.fence > lost.fence
    assert client.finish(lost).verdicts == ("stale",)
    assert StoreClient(engine, store, channel=2).finish(again).verdicts == ("ok",)


def test_an_exchange_lost_in_a_crash_is_executed_again(client, crash):
    client.add(retries=3)
    command = client.command(want=1)
    (lost,) = client.apply("exchange", command).jobs
    crash()
    (again,) = client.apply("exchange", command).jobs
    assert again.id == lost.id
    assert again.fence > lost.fence


def test_finishes_and_the_claims_before_them_survive_a_crash(client, crash):
    """A commit that waits for the disk also flushes everything written before."""
    client.apply("enqueue", 0, [job(retries=3), job(retries=3)])
    first, second = client.claim(2)
    assert client.finish(first).verdicts == ("ok",)
    crash()
    assert client.apply("get", first.id).state == "completed"
    assert client.apply("get", second.id).state == "running"
    assert client.finish(second).verdicts == ("ok",)


@pytest.mark.parametrize(
    "fields",
    [{"retries": 0}, {"concurrency": Concurrency("one", 1)}],
    ids=["its last attempt", "a concurrency key"],
)
def test_a_claim_that_must_not_repeat_waits_for_the_disk(client, crash, fields):
    client.add(**{"retries": 3, **fields})
    (claimed,) = client.claim()
    crash()
    assert client.apply("get", claimed.id).state == "running"
    assert client.finish(claimed).verdicts == ("ok",)


def test_the_start_of_a_run_job_and_its_event_are_durable(client, crash):
    run = plan_run(())
    client.apply("start_run", run)
    (claimed,) = client.claim()
    crash()
    assert client.apply("get", claimed.id).state == "running"
    assert [event.kind for event in client.apply("run_events", run.id)][-1] == "started"
