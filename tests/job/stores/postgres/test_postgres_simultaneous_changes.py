"""Workers and callers that change related jobs at the same moment, each on its own connection to PostgreSQL."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from postgres_store_client import job

from backstay.job.model import Concurrency, StartRate
from backstay.testing.waiting import WITHIN
from support.store_client import SECOND, StoreClient, finish

pytestmark = pytest.mark.postgres


@pytest.mark.slow
def test_two_blockers_that_end_at_the_same_moment_start_the_dependent_once(clients):
    """Two connections finish one blocker each, in many rounds: the later one must see the change of the other."""
    rounds = int(os.environ.get("BACKSTAY_BLOCKER_ROUNDS", "300"))
    workers = [clients("w0"), clients("w1")]
    barrier = threading.Barrier(2)

    def finish_together(worker, claimed):
        barrier.wait()
        return worker.finish(claimed, result=claimed.id.encode())

    with ThreadPoolExecutor(2) as pool:
        for nth in range(rounds):
            one, other = job(), job()
            dependent = job("dependent", after=(one.id, other.id))
            workers[0].apply("enqueue", 0, [one, other, dependent])
            replies = list(pool.map(finish_together, workers, workers[0].claim(2)))
            assert [reply.verdicts for reply in replies] == [("ok",), ("ok",)]
            assert sum(reply.ready.get("dependent", 0) for reply in replies) == 1, nth
            started = workers[nth % 2].claim(5)
            assert [claimed.id for claimed in started] == [dependent.id]
            assert started[0].upstream == {one.id: one.id.encode(), other.id: other.id.encode()}
            assert workers[nth % 2].exchange(map(finish, started), want=0).verdicts == ("ok",)


@pytest.mark.slow
def test_a_job_enqueued_while_its_blocker_finishes_still_starts(clients):
    worker, enqueuer = clients("worker"), clients("enqueuer")
    barrier = threading.Barrier(2)

    def finish_together(claimed):
        barrier.wait()
        return worker.finish(claimed)

    def enqueue_together(new):
        barrier.wait()
        return enqueuer.apply("enqueue", 0, [new])

    with ThreadPoolExecutor(2) as pool:
        for _ in range(150):
            first = job()
            dependent = job("dependent", after=(first.id,))
            worker.apply("enqueue", 0, [first])
            (claimed,) = worker.claim()
            finished, stored = pool.submit(finish_together, claimed), pool.submit(enqueue_together, dependent)
            assert finished.result(WITHIN).verdicts == ("ok",)
            assert stored.result(WITHIN)[0].state in ("pending", "blocked")
            (started,) = worker.claim()
            assert started.id == dependent.id
            worker.finish(started)


def test_concurrent_claims_never_exceed_a_concurrency_key_or_rate(engine, store):
    engine.apply(store.enqueue(0, [job(concurrency=Concurrency("k", 3)) for _ in range(60)]))
    engine.apply(store.enqueue(0, [job(queue="rated", rate=StartRate("r", 3600 * SECOND, 5)) for _ in range(60)]))
    workers = [StoreClient(engine, store, name=f"w{n}", channel=n) for n in range(2)]
    queues = (("default", "rated"),)
    with ThreadPoolExecutor(2) as pool:
        replies = list(pool.map(lambda worker: [worker.exchange(want=5, queues=queues) for _ in range(10)], workers))
    claimed = [c for mine in replies for reply in mine for c in reply.jobs]
    assert sum(c.queue == "default" for c in claimed) == 3
    assert sum(c.queue == "rated" for c in claimed) == 5
