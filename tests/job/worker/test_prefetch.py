"""Prefetch: short jobs are claimed before a slot is free, and never at the cost of other workers."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from backstay.job.stores.postgres.store import PostgresStore
from backstay.job.worker import prefetch as module
from backstay.job.worker.channel import WorkerChannel
from backstay.job.worker.prefetch import AHEAD, PATIENCE, Prefetcher
from backstay.job.worker.slots import Slots
from backstay.testing.waiting import WITHIN
from support.app import open_app, wait_for_state, wait_until, working
from support.event_loop import on_a_loop

SLOTS = 40


class FakeWorker:
    """A `Prefetcher` with a clock that the test sets, and numbers as jobs."""

    def __init__(self, monkeypatch, size, **options):
        self.now = 1000.0
        self.started, self.returned = [], []
        monkeypatch.setattr(module, "steady", lambda: self.now)
        self.slots = Slots(size)
        self.prefetcher = Prefetcher(self.slots, self._start, self._return, **options)

    def _start(self, jobs, shard, sent):
        self.started += jobs
        self.slots.busy += len(jobs)

    def _return(self, jobs, shard, sent):
        self.returned += jobs

    def finish(self, count, seconds):
        """Finish `count` jobs, let this time pass, and start waiting jobs in the free slots."""
        for _ in range(count):
            self.slots.vacate()
        self.now += seconds
        self.prefetcher.start_waiting()

    def allowed(self):
        self.prefetcher.update_limit()
        return self.slots.prefetch


@on_a_loop
async def test_nothing_is_prefetched_before_a_job_has_finished(monkeypatch):
    client = FakeWorker(monkeypatch, 4)
    client.prefetcher.put([1, 2, 3, 4], 0, client.now)
    client.now += 1
    assert client.allowed() == 0
    assert client.slots.free == 0


@on_a_loop
async def test_the_prefetcher_claims_as_many_jobs_as_will_begin_in_time(monkeypatch):
    client = FakeWorker(monkeypatch, 100)
    for _ in range(20):  # 10,000 a second
        client.prefetcher.put(range(100), 0, client.now)
        client.finish(100, 0.01)
        client.allowed()
    assert client.allowed() == pytest.approx(10_000 * AHEAD, abs=1)
    assert client.slots.free == 100 + client.slots.prefetch
    for _ in range(20):  # ten a second
        client.prefetcher.put([0], 0, client.now)
        client.finish(1, 0.1)
        client.allowed()
    assert client.allowed() == 0


@on_a_loop
async def test_prefetched_jobs_begin_in_order_and_never_exceed_the_slots(monkeypatch):
    client = FakeWorker(monkeypatch, 4)
    client.prefetcher.put([1, 2, 3], 0, client.now)
    client.prefetcher.put([4, 5, 6], 0, client.now)
    client.prefetcher.put([7], 0, client.now)
    assert client.started == [1, 2, 3, 4]
    client.finish(2, 0)
    assert client.started == [1, 2, 3, 4, 5, 6]
    client.finish(1, 0)
    assert client.started == [1, 2, 3, 4, 5, 6, 7]
    assert (client.slots.busy, client.returned, list(client.slots.prefetched)) == (4, [], [])


@on_a_loop
async def test_a_prefetched_job_that_is_late_is_returned_and_the_pace_is_measured_anew(monkeypatch):
    client = FakeWorker(monkeypatch, 100)
    for _ in range(20):
        client.prefetcher.put(range(100), 0, client.now)
        client.finish(100, 0.01)
        client.allowed()
    client.prefetcher.put(range(120), 0, client.now)
    client.now += PATIENCE / 2
    client.prefetcher.put([200], 0, client.now)
    client.now += PATIENCE / 2
    client.slots.vacate()
    client.prefetcher._release_overdue()
    assert client.started[-1] == 100, "a slot was free"
    assert client.returned == list(range(101, 120)), "job 200 is not overdue yet"
    assert client.slots.prefetch == 0
    client.now += PATIENCE
    client.prefetcher._release_overdue()
    assert client.returned == [*range(101, 120), 200]
    assert client.allowed() == 0
    assert not client.slots.prefetched


@on_a_loop
async def test_a_stopping_worker_returns_prefetched_jobs(monkeypatch):
    client = FakeWorker(monkeypatch, 2)
    client.prefetcher.put([1, 2, 3, 4], 0, client.now)
    client.prefetcher.release_waiting()
    client.prefetcher.release_waiting()
    assert (client.started, client.returned) == ([1, 2], [3, 4])


@on_a_loop
async def test_a_closed_prefetcher_returns_and_begins_nothing(monkeypatch):
    """The connection to the engine is already closed, so no exchange may be sent."""
    client = FakeWorker(monkeypatch, 2)
    client.prefetcher.put([1, 2, 3, 4], 0, client.now)
    client.prefetcher.close()
    client.prefetcher.close()
    client.finish(2, 0)
    assert (client.started, client.returned) == ([1, 2], [])


@on_a_loop
async def test_a_disabled_prefetcher_prefetches_nothing(monkeypatch):
    client = FakeWorker(monkeypatch, 100, enabled=False)
    for _ in range(20):
        client.prefetcher.put(range(100), 0, client.now)
        client.finish(100, 0.01)
        assert client.allowed() == 0


# ── a worker on PostgreSQL ──


@pytest.fixture
def wants(monkeypatch):
    """The `want` of every exchange of every worker."""
    recorded = []
    exchange = PostgresStore.exchange

    def record(self, command):
        recorded.append(command.claim.want)
        return exchange(self, command)

    monkeypatch.setattr(PostgresStore, "exchange", record)
    return recorded


@pytest.mark.postgres
@pytest.mark.parametrize("prefetch", [True, False])
@on_a_loop
async def test_short_jobs_are_prefetched_and_never_exceed_the_slots(backstay_postgres, namespace, wants, prefetch):
    stay = open_app(backstay_postgres.url, namespace)
    ran, running, most = Counter(), 0, 0

    @stay.job()
    async def quick(n: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        ran[n] += 1

    async with stay:
        await quick.enqueue_many([(n,) for n in range(4000)])
        async with working(stay, concurrency=SLOTS, prefetch=prefetch) as worker:
            await wait_until(lambda: len(ran) == 4000)
    assert ran == dict.fromkeys(range(4000), 1)
    assert most <= SLOTS
    assert (max(wants) > SLOTS // 2) == prefetch
    assert worker.counts["completed"] == 4000


@pytest.mark.postgres
@on_a_loop
async def test_jobs_at_their_last_attempt_are_not_prefetched(backstay_postgres, namespace, wants):
    """A claim uses up an attempt: a prefetched job in a process that dies would lose its last one without starting."""
    stay = open_app(backstay_postgres.url, namespace)
    ran = Counter()

    @stay.job(retries=0)
    async def once(n: int) -> None:
        ran[n] += 1

    async with stay:
        await once.enqueue_many([(n,) for n in range(4000)])
        async with working(stay, concurrency=SLOTS):
            await wait_until(lambda: len(ran) == 4000)
    assert max(wants) <= SLOTS // 2


@pytest.mark.postgres
@on_a_loop
async def test_when_jobs_become_slow_other_workers_get_the_prefetched_ones(backstay_postgres, namespace):
    """The returned jobs use up no attempt, and each job runs once."""
    stay, other = open_app(backstay_postgres.url, namespace), open_app(backstay_postgres.url, namespace)
    gate, ran = asyncio.Event(), Counter()

    def define(stay, name):
        @stay.job(name="quick")
        async def quick(n: int) -> None:
            ran[name, n] += 1

        @stay.job(name="slow")
        async def slow(n: int) -> None:
            ran[name, n] += 1
            await gate.wait()

        return quick, slow

    quick, slow = define(stay, "first")
    define(other, "second")
    async with stay, other:
        await quick.enqueue_many([(n,) for n in range(4000)])
        handles = await slow.enqueue_many([(n,) for n in range(4000, 4000 + 4 * SLOTS)])
        async with working(stay, concurrency=SLOTS) as worker:
            last_started = ("first", 4000 + SLOTS - 1)
            await wait_until(lambda: ran[last_started] and worker.counts["released"])
            async with working(other, concurrency=4 * SLOTS):
                await wait_until(lambda: sum(1 for _, n in ran if n >= 4000) == 4 * SLOTS)
                assert sum(1 for name, n in ran if n >= 4000 and name == "first") == SLOTS
                gate.set()
                for handle in handles[:: SLOTS // 4]:
                    assert (await wait_for_state(stay, handle, "completed")).attempt == 1
    assert Counter(n for _, n in ran.elements()) == dict.fromkeys(range(4000 + 4 * SLOTS), 1)


@pytest.mark.postgres
@on_a_loop
async def test_a_stop_under_load_returns_prefetched_jobs(backstay_postgres, namespace):
    stay = open_app(backstay_postgres.url, namespace)
    ran, attempts = Counter(), Counter()

    @stay.job()
    async def quick(n: int) -> None:
        ran[n] += 1

    async with stay:
        handles = await quick.enqueue_many([(n,) for n in range(6000)])
        for _ in range(3):
            async with working(stay, concurrency=SLOTS):
                done = len(ran)
                await wait_until(lambda done=done: len(ran) >= done + 500)
        assert len(ran) < 6000
        await stay.worker(concurrency=SLOTS, signals=False).run(burst=True)
        for handle in handles[::100]:
            attempts[(await wait_for_state(stay, handle, "completed")).attempt] += 1
    assert ran == dict.fromkeys(range(6000), 1)
    assert set(attempts) == {1}


@pytest.mark.postgres
@on_a_loop
async def test_a_burst_does_not_end_before_its_returned_jobs_are_done(backstay_postgres, namespace, monkeypatch):
    """Also if returning the jobs takes long, and the other channel has found no job in the meantime."""
    stay = open_app(backstay_postgres.url, namespace)
    ran, returns, exchange = Counter(), 0, WorkerChannel.exchange

    async def delay_returns(channel, finishes, claim):
        nonlocal returns
        if any(finish.kind == "release" for finish in finishes):
            returns += 1
            await asyncio.sleep(4 * PATIENCE)
        return await exchange(channel, finishes, claim)

    monkeypatch.setattr(WorkerChannel, "exchange", delay_returns)

    @stay.job()
    async def quick(n: int, seconds: float) -> None:
        await asyncio.sleep(seconds)
        ran[n] += 1

    async with stay:
        for _ in range(10):
            ran.clear()
            await quick.enqueue_many([(n, 0.0) for n in range(400)])
            await quick.enqueue_many([(n, 1.5 * PATIENCE) for n in range(400, 412)])
            await stay.worker(concurrency=8, signals=False).run(burst=True)
            assert ran == dict.fromkeys(range(412), 1)
    assert returns


@pytest.mark.postgres
@on_a_loop
async def test_a_prefetched_job_that_was_cancelled_ends_when_it_begins(backstay_postgres, namespace, monkeypatch):
    """The cancellation arrives before the job starts, and takes effect at the start, not at the next renewal."""
    monkeypatch.setattr(module, "PATIENCE", 600.0)
    monkeypatch.setattr(module, "AHEAD", 1.0)  # many jobs are prefetched even on a slow machine
    stay = open_app(backstay_postgres.url, namespace)
    gate, never = asyncio.Event(), asyncio.Event()

    @stay.job()
    async def quick(n: int) -> None: ...

    @stay.job()
    async def slow(n: int) -> None:
        await (never if gate.is_set() else gate).wait()

    async with stay:
        await quick.enqueue_many([(n,) for n in range(4000)])
        await slow.enqueue_many([(n,) for n in range(2 * SLOTS)])
        async with working(stay, concurrency=SLOTS, lease=600, drain=0, grace=1) as worker:
            waiting = worker._slots.prefetched
            await wait_until(lambda: waiting and waiting[0].jobs[0].type == "slow")
            prefetched = waiting[0].jobs[0].id
            assert await stay.jobs.cancel(prefetched) == "running"
            gate.set()
            await wait_for_state(stay, prefetched, "cancelled", WITHIN)
