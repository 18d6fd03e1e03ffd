"""Operations of one batch on a PostgreSQL connection: one that fails does not affect the others."""

from __future__ import annotations

import psycopg
import pytest
from postgres_store_client import job

from backstay.engine.commit_thread import QueuedOp
from backstay.engine.postgres.pipeline.pipeline import PipelineConnection
from backstay.job.model import Tick

pytestmark = pytest.mark.postgres


@pytest.mark.parametrize("error", [psycopg.errors.LockNotAvailable, psycopg.errors.DiskFull])
def test_a_finished_command_of_a_batch_gets_its_reply_when_the_next_one_fails(engine, store, monkeypatch, error):
    """Of two schedulers in one process one creates the job. It must get that reply, or the job is never announced."""
    send, started = PipelineConnection._send_round_trip, []

    def fail_second(self, session, procedures, **options):
        if procedures[0] not in started:
            started.append(procedures[0])
            if len(started) == 2:
                raise error
        send(self, session, procedures, **options)

    monkeypatch.setattr(PipelineConnection, "_send_round_trip", fail_second)
    at = engine.now()
    ticks = [Tick(name="nightly", at=at, job=job()) for _ in range(2)]
    items = [QueuedOp(store.tick(tick), nth, print) for nth, tick in enumerate(ticks)]
    connection = PipelineConnection(engine)
    try:
        assert connection.commit(items) == [True, False]
    finally:
        connection.end()
    assert [one.id for one in engine.apply(store.list_jobs())] == [ticks[0].job.id]
