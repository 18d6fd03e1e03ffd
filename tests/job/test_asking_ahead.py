"""Jobs that are asked for before there is room: while they end within milliseconds, and never at others' cost."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from on_a_loop import on_a_loop
from workshop import reaches, shop, working

from backstay.job.stores.postgres.store import PostgresStore
from backstay.job.worker import prefetch as module
from backstay.job.worker.channel import Lane
from backstay.job.worker.prefetch import AHEAD, PATIENCE, Ahead
from backstay.job.worker.slots import Slots
from backstay.testing.waiting import WITHIN, soon

SLOTS = 40


class Desk:
    """An `Ahead` on a clock of its own, whose jobs are numbers."""

    def __init__(self, monkeypatch, size, **options):
        self.now = 1000.0
        self.begun, self.back = [], []
        monkeypatch.setattr(module, "steady", lambda: self.now)
        self.slots = Slots(size)
        self.ahead = Ahead(self.slots, self._begin, self._give_back, **options)

    def _begin(self, jobs, shard, sent):
        self.begun += jobs
        self.slots.busy += len(jobs)

    def _give_back(self, jobs, shard, sent):
        self.back += jobs

    def end(self, count, seconds):
        """So many end within this time, and others begin in their places."""
        for _ in range(count):
            self.slots.vacate()
        self.now += seconds
        self.ahead.go_on()

    def allowed(self):
        self.ahead.allow()
        return self.slots.ahead


@on_a_loop
async def test_nothing_is_asked_for_ahead_before_jobs_were_seen_to_end(monkeypatch):
    desk = Desk(monkeypatch, 4)
    desk.ahead.put([1, 2, 3, 4], 0, desk.now)
    desk.now += 1
    assert desk.allowed() == 0
    assert desk.slots.free == 0


@on_a_loop
async def test_as_many_are_asked_for_ahead_as_will_begin_within_the_time(monkeypatch):
    desk = Desk(monkeypatch, 100)
    for _ in range(20):  # 10,000 a second
        desk.ahead.put(range(100), 0, desk.now)
        desk.end(100, 0.01)
        desk.allowed()
    assert desk.allowed() == pytest.approx(10_000 * AHEAD, abs=1)
    assert desk.slots.free == 100 + desk.slots.ahead
    for _ in range(20):  # ten a second
        desk.ahead.put([0], 0, desk.now)
        desk.end(1, 0.1)
        desk.allowed()
    assert desk.allowed() == 0


@on_a_loop
async def test_no_more_run_than_there_are_places_and_all_begin_in_order(monkeypatch):
    desk = Desk(monkeypatch, 4)
    desk.ahead.put([1, 2, 3], 0, desk.now)
    desk.ahead.put([4, 5, 6], 0, desk.now)
    desk.ahead.put([7], 0, desk.now)
    assert desk.begun == [1, 2, 3, 4]
    desk.end(2, 0)
    assert desk.begun == [1, 2, 3, 4, 5, 6]
    desk.end(1, 0)
    assert desk.begun == [1, 2, 3, 4, 5, 6, 7]
    assert (desk.slots.busy, desk.back, list(desk.slots.waiting)) == (4, [], [])


@on_a_loop
async def test_what_has_not_begun_in_time_goes_back_and_the_pace_is_to_be_shown_again(monkeypatch):
    desk = Desk(monkeypatch, 100)
    for _ in range(20):
        desk.ahead.put(range(100), 0, desk.now)
        desk.end(100, 0.01)
        desk.allowed()
    desk.ahead.put(range(120), 0, desk.now)
    desk.now += PATIENCE / 2
    desk.ahead.put([200], 0, desk.now)
    desk.now += PATIENCE / 2
    desk.slots.vacate()
    desk.ahead._late()
    assert desk.begun[-1] == 100, "there was a place, and nobody had looked"
    assert desk.back == list(range(101, 120)), "the last one came later"
    assert desk.slots.ahead == 0
    desk.now += PATIENCE
    desk.ahead._late()
    assert desk.back == [*range(101, 120), 200]
    assert desk.allowed() == 0
    assert not desk.slots.waiting


@on_a_loop
async def test_a_worker_that_leaves_gives_back_what_has_not_begun(monkeypatch):
    desk = Desk(monkeypatch, 2)
    desk.ahead.put([1, 2, 3, 4], 0, desk.now)
    desk.ahead.leave()
    desk.ahead.leave()
    assert (desk.begun, desk.back) == ([1, 2], [3, 4])


@on_a_loop
async def test_a_worker_that_is_closed_tells_nobody_and_begins_nothing(monkeypatch):
    """Its way to the engine is gone by then: a step that left now would be nobody's."""
    desk = Desk(monkeypatch, 2)
    desk.ahead.put([1, 2, 3, 4], 0, desk.now)
    desk.ahead.close()
    desk.ahead.close()
    desk.end(2, 0)
    assert (desk.begun, desk.back) == ([1, 2], [])


@on_a_loop
async def test_who_wants_nothing_ahead_asks_for_nothing_ahead(monkeypatch):
    desk = Desk(monkeypatch, 100, wanted=False)
    for _ in range(20):
        desk.ahead.put(range(100), 0, desk.now)
        desk.end(100, 0.01)
        assert desk.allowed() == 0


# ── a worker on PostgreSQL ──


@pytest.fixture
def wants(monkeypatch):
    """What every step of every worker asked for."""
    seen = []
    step = PostgresStore.step

    def noted(self, command):
        seen.append(command.claim.want)
        return step(self, command)

    monkeypatch.setattr(PostgresStore, "step", noted)
    return seen


async def reached(claim):
    async def there():
        return claim()

    assert await soon(there, WITHIN)


@pytest.mark.postgres
@pytest.mark.parametrize("prefetch", [True, False])
@on_a_loop
async def test_jobs_that_end_at_once_are_asked_for_ahead_and_never_run_beside_more_than_there_are_places(
    backstay_postgres, namespace, wants, prefetch
):
    stay = shop(backstay_postgres.url, namespace)
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
async def test_jobs_at_their_last_attempt_are_not_asked_for_ahead(backstay_postgres, namespace, wants):
    """A claim counts as one: whoever waits in a process that dies would have used it up, and never have begun."""
    stay = shop(backstay_postgres.url, namespace)
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
async def test_when_jobs_become_slow_others_get_what_was_asked_for_ahead(backstay_postgres, namespace):
    """No attempt is used up, and nothing runs twice."""
    stay, other = shop(backstay_postgres.url, namespace), shop(backstay_postgres.url, namespace)
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
async def test_a_stop_in_full_run_gives_back_what_has_not_begun(backstay_postgres, namespace):
    stay = shop(backstay_postgres.url, namespace)
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
async def test_a_burst_does_not_end_before_what_it_gave_back_is_done(backstay_postgres, namespace, monkeypatch):
    """Also where that takes long, and the other lane has looked and found nothing meanwhile."""
    stay = shop(backstay_postgres.url, namespace)
    ran, gave_back, step = Counter(), 0, Lane.step

    async def slowly(lane, finishes, claim):
        nonlocal gave_back
        if any(finish.kind == "release" for finish in finishes):
            gave_back += 1
            await asyncio.sleep(4 * PATIENCE)
        return await step(lane, finishes, claim)

    monkeypatch.setattr(Lane, "step", slowly)

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
async def test_a_job_that_is_cancelled_before_it_has_begun_here_ends_when_it_begins(
    backstay_postgres, namespace, monkeypatch
):
    """The hint came for a job that was not run yet: it is heard of again when it is, not with the next renewal."""
    monkeypatch.setattr(module, "PATIENCE", 600.0)
    monkeypatch.setattr(module, "AHEAD", 1.0)  # many, however slow this machine is
    stay = shop(backstay_postgres.url, namespace)
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
            waiting = worker._slots.waiting
            await reached(lambda: waiting and waiting[0].jobs[0].type == "slow")
            wanted = waiting[0].jobs[0].id
            assert await stay.jobs.cancel(wanted) == "running"
            gate.set()
            await reaches(stay, wanted, "cancelled", WITHIN)
