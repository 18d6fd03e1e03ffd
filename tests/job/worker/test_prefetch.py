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
from backstay.testing.waiting import WITHIN, soon
from support.app import open_app, reaches, working
from support.event_loop import on_a_loop

SLOTS = 40


class Client:
    """A `Prefetcher` on its own clock, with numbers as jobs."""

    def __init__(self, monkeypatch, size, **options):
        self.now = 1000.0
        self.begun, self.back = [], []
        monkeypatch.setattr(module, "steady", lambda: self.now)
        self.slots = Slots(size)
        self.prefetcher = Prefetcher(self.slots, self._begin, self._give_back, **options)

    def _begin(self, jobs, shard, sent):
        self.begun += jobs
        self.slots.busy += len(jobs)

    def _give_back(self, jobs, shard, sent):
        self.back += jobs

    def end(self, count, seconds):
        """Finish the given number of jobs within this time; others begin in their slots."""
        for _ in range(count):
            self.slots.vacate()
        self.now += seconds
        self.prefetcher.start_waiting()

    def allowed(self):
        self.prefetcher.update_limit()
        return self.slots.prefetch


@on_a_loop
async def test_nothing_is_prefetched_before_a_job_has_finished(monkeypatch):
    client = Client(monkeypatch, 4)
    client.prefetcher.put([1, 2, 3, 4], 0, client.now)
    client.now += 1
    assert client.allowed() == 0
    assert client.slots.free == 0


@on_a_loop
async def test_the_prefetcher_claims_as_many_jobs_as_will_begin_in_time(monkeypatch):
    client = Client(monkeypatch, 100)
    for _ in range(20):  # 10,000 a second
        client.prefetcher.put(range(100), 0, client.now)
        client.end(100, 0.01)
        client.allowed()
    assert client.allowed() == pytest.approx(10_000 * AHEAD, abs=1)
    assert client.slots.free == 100 + client.slots.prefetch
    for _ in range(20):  # ten a second
        client.prefetcher.put([0], 0, client.now)
        client.end(1, 0.1)
        client.allowed()
    assert client.allowed() == 0


@on_a_loop
async def test_prefetched_jobs_begin_in_order_and_never_exceed_the_slots(monkeypatch):
    client = Client(monkeypatch, 4)
    client.prefetcher.put([1, 2, 3], 0, client.now)
    client.prefetcher.put([4, 5, 6], 0, client.now)
    client.prefetcher.put([7], 0, client.now)
    assert client.begun == [1, 2, 3, 4]
    client.end(2, 0)
    assert client.begun == [1, 2, 3, 4, 5, 6]
    client.end(1, 0)
    assert client.begun == [1, 2, 3, 4, 5, 6, 7]
    assert (client.slots.busy, client.back, list(client.slots.prefetched)) == (4, [], [])


@on_a_loop
async def test_a_prefetched_job_that_is_late_is_returned_and_the_pace_is_measured_anew(monkeypatch):
    client = Client(monkeypatch, 100)
    for _ in range(20):
        client.prefetcher.put(range(100), 0, client.now)
        client.end(100, 0.01)
        client.allowed()
    client.prefetcher.put(range(120), 0, client.now)
    client.now += PATIENCE / 2
    client.prefetcher.put([200], 0, client.now)
    client.now += PATIENCE / 2
    client.slots.vacate()
    client.prefetcher._release_overdue()
    assert client.begun[-1] == 100, "there was a place, and nobody had looked"
    assert client.back == list(range(101, 120)), "the last one came later"
    assert client.slots.prefetch == 0
    client.now += PATIENCE
    client.prefetcher._release_overdue()
    assert client.back == [*range(101, 120), 200]
    assert client.allowed() == 0
    assert not client.slots.prefetched


@on_a_loop
async def test_a_stopping_worker_returns_prefetched_jobs(monkeypatch):
    client = Client(monkeypatch, 2)
    client.prefetcher.put([1, 2, 3, 4], 0, client.now)
    client.prefetcher.release_waiting()
    client.prefetcher.release_waiting()
    assert (client.begun, client.back) == ([1, 2], [3, 4])


@on_a_loop
async def test_a_closed_prefetcher_returns_and_begins_nothing(monkeypatch):
    """The connection to the engine is already closed: an exchange sent now would have no owner."""
    client = Client(monkeypatch, 2)
    client.prefetcher.put([1, 2, 3, 4], 0, client.now)
    client.prefetcher.close()
    client.prefetcher.close()
    client.end(2, 0)
    assert (client.begun, client.back) == ([1, 2], [])


@on_a_loop
async def test_a_disabled_prefetcher_prefetches_nothing(monkeypatch):
    client = Client(monkeypatch, 100, enabled=False)
    for _ in range(20):
        client.prefetcher.put(range(100), 0, client.now)
        client.end(100, 0.01)
        assert client.allowed() == 0


# ── a worker on PostgreSQL ──


@pytest.fixture
def wants(monkeypatch):
    """The `want` of every exchange of every worker."""
    seen = []
    step = PostgresStore.exchange

    def noted(self, command):
        seen.append(command.claim.want)
        return step(self, command)

    monkeypatch.setattr(PostgresStore, "exchange", noted)
    return seen


async def reached(claim):
    async def there():
        return claim()

    assert await soon(there, WITHIN)


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
            await reached(lambda: len(ran) == 4000)
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
            await reached(lambda: len(ran) == 4000)
    assert max(wants) <= SLOTS // 2


@pytest.mark.postgres
@on_a_loop
async def test_when_jobs_become_slow_other_workers_get_the_prefetched_ones(backstay_postgres, namespace):
    """No attempt is used up, and nothing runs twice."""
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
            begun = ("first", 4000 + SLOTS - 1)
            await reached(lambda: ran[begun] and worker.counts["released"])
            async with working(other, concurrency=4 * SLOTS):
                await reached(lambda: sum(1 for _, n in ran if n >= 4000) == 4 * SLOTS)
                assert sum(1 for name, n in ran if n >= 4000 and name == "first") == SLOTS
                gate.set()
                for handle in handles[:: SLOTS // 4]:
                    assert (await reaches(stay, handle, "completed")).attempt == 1
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
                await reached(lambda: len(ran) >= done + 500)  # noqa: B023 - now
        assert len(ran) < 6000
        await stay.worker(concurrency=SLOTS, signals=False).run(burst=True)
        for handle in handles[::100]:
            attempts[(await reaches(stay, handle, "completed")).attempt] += 1
    assert ran == dict.fromkeys(range(6000), 1)
    assert set(attempts) == {1}


@pytest.mark.postgres
@on_a_loop
async def test_a_burst_does_not_end_before_its_returned_jobs_are_done(backstay_postgres, namespace, monkeypatch):
    """Also where the return takes long and the other channel has polled and found nothing meanwhile."""
    stay = open_app(backstay_postgres.url, namespace)
    ran, gave_back, step = Counter(), 0, WorkerChannel.exchange

    async def slowly(lane, finishes, claim):
        nonlocal gave_back
        if any(finish.kind == "release" for finish in finishes):
            gave_back += 1
            await asyncio.sleep(4 * PATIENCE)
        return await step(lane, finishes, claim)

    monkeypatch.setattr(WorkerChannel, "exchange", slowly)

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
    assert gave_back


@pytest.mark.postgres
@on_a_loop
async def test_a_prefetched_job_that_was_cancelled_ends_when_it_begins(backstay_postgres, namespace, monkeypatch):
    """The cancel hint came before the job ran: it takes effect when the job begins, not with the next renewal."""
    monkeypatch.setattr(module, "PATIENCE", 600.0)
    monkeypatch.setattr(module, "AHEAD", 1.0)  # many, however slow this machine is
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
            await reached(lambda: waiting and waiting[0].jobs[0].type == "slow")
            wanted = waiting[0].jobs[0].id
            assert await stay.jobs.cancel(wanted) == "running"
            gate.set()
            await reaches(stay, wanted, "cancelled", WITHIN)
