"""Finishes of many jobs in one exchange on SQLite: uniform ones are one statement, and differing ones keep their own
verdicts.
"""

from __future__ import annotations

import msgspec
import pytest

from backstay.engine.base import StoreOperation
from support.store_client import finish


def claim_batch(client, count, **options):
    """Enqueue jobs together and claim them together."""
    client.apply("enqueue", 0, [client.job(**options) for _ in range(count)])
    return client.exchange(want=count).jobs


def test_uniform_finishes_of_one_claim_are_one_statement(client):
    def costs(count):
        finishes = [finish(job, result=b"r") for job in claim_batch(client, count)]
        statements = []
        op = client.store.exchange(client.command(finishes, want=0))

        def counted(db, now, wakes):
            db.set_trace_callback(statements.append)
            try:
                return op.work(db, now, wakes)
            finally:
                db.set_trace_callback(None)

        assert client.engine.apply(StoreOperation(counted, key=op.key)).verdicts == ("ok",) * count
        return len(statements)

    assert costs(5) == costs(90)
    assert client.rows("SELECT count(*), count(DISTINCT fence), min(result) FROM backstay_job WHERE state = 4") == [
        (95, 95, b"r")
    ]


@pytest.mark.parametrize("odd", range(6))
@pytest.mark.parametrize(
    ("change", "verdict", "state"),
    [
        ({"fence": 1}, "stale", "running"),
        ({"job": "0-ffff"}, "stale", "running"),
        ({"kind": "fail"}, "ok", "failed"),
        ({"result": b"another"}, "ok", "completed"),
    ],
)
def test_one_differing_finish_gets_its_own_verdict(client, odd, change, verdict, state):
    jobs = claim_batch(client, 6)
    finishes = [finish(job, result=b"r") for job in jobs]
    finishes[odd] = msgspec.structs.replace(finishes[odd], **change)
    assert client.exchange(finishes, want=0).verdicts == tuple(verdict if n == odd else "ok" for n in range(6))
    assert [client.apply("get", job.id).state for job in jobs] == [state if n == odd else "completed" for n in range(6)]
    assert {client.apply("get", job.id).result for n, job in enumerate(jobs) if n != odd} == {b"r"}


def test_finishes_may_come_in_any_order_and_a_repeated_finish_is_stale(client):
    jobs = claim_batch(client, 8)
    finishes = [finish(job) for job in jobs]
    assert client.exchange(finishes[::-1], want=0).verdicts == ("ok",) * 8
    assert client.exchange(finishes, want=0).verdicts == ("stale",) * 8
    more = [finish(job) for job in claim_batch(client, 5)]
    assert client.exchange([*more, more[0]], want=0).verdicts == ("ok",) * 5 + ("stale",)


def test_a_watched_job_of_a_uniform_batch_wakes_its_waiter(client):
    jobs = claim_batch(client, 5)
    client.apply("watch", jobs[2].id)
    payloads = []
    op = client.store.exchange(client.command([finish(job) for job in jobs], want=0))

    def record_wakes(db, now, wakes):
        reply = op.work(db, now, wakes)
        payloads.extend(wake.payload for wake in wakes)
        return reply

    assert client.engine.apply(StoreOperation(record_wakes, key=op.key)).verdicts == ("ok",) * 5
    assert payloads == [jobs[2].id]


def test_records_of_a_uniform_batch_expire_in_time(client):
    client.exchange([finish(job) for job in claim_batch(client, 10, keep=1_000_000)], want=0)
    assert client.apply("prune", 0, 1000) == 0
    client.now += 1_000_000
    assert [client.apply("prune", 0, 1000, limit=4) for _ in range(4)] == [4, 4, 2, 0]
    assert client.rows("SELECT count(*) FROM backstay_job") == [(0,)]


def test_records_expire_in_time_after_others_of_their_batch_were_deleted(client):
    jobs = claim_batch(client, 10, keep=1_000_000)
    client.exchange([finish(job) for job in jobs], want=0)
    assert client.apply("prune", 0, 7) == 3  # more than 7 are stored, so the 3 oldest are deleted
    claim_batch(client, 3)  # new jobs may reuse the row ids of deleted ones
    client.now += 999_999
    assert client.apply("prune", 0, 1000) == 0
    client.now += 1
    assert client.apply("prune", 0, 1000) == 7
    assert client.rows("SELECT count(*) FROM backstay_job WHERE state <> 3") == [(0,)]


def test_jobs_finished_together_keep_their_own_times(client):
    client.apply("enqueue", 0, [client.job(keep=n * 1_000_000) for n in range(1, 7)])
    client.exchange([finish(job) for job in client.exchange().jobs], want=0)
    client.now += 3_000_000
    assert client.apply("prune", 0, 1000) == 3
    client.now += 3_000_000
    assert client.apply("prune", 0, 1000) == 3
