"""Cron ticks run exactly once with any number of schedulers, missed ticks follow the policy, and pruning."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import uuid
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

import backstay
import backstay.sync
from backstay import ConfigError
from backstay.engine.postgres.address import parse as parse_postgres
from backstay.engine.postgres.engine import PostgresEngine
from backstay.engine.redis.address import parse as parse_redis
from backstay.engine.redis.engine import RedisEngine
from backstay.engine.sqlite.engine import SqliteEngine, host_clock
from backstay.job.metadata import unpack
from backstay.job.scheduler import pruner
from backstay.job.scheduler.cron import Cron
from backstay.job.scheduler.cron_ticks import MOST_CAUGHT_UP, due_moments, tick
from backstay.job.scheduler.pruner import prune
from backstay.testing.jobs import Clock, drain, enqueued
from backstay.testing.waiting import WITHIN, soon
from support.app import working
from support.event_loop import on_a_loop

KINDS = [
    "sqlite",
    pytest.param("redis", marks=pytest.mark.redis),
    pytest.param("postgres", marks=pytest.mark.postgres),
]


@pytest.fixture
def clock():
    return Clock(datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC))


@pytest.fixture(params=KINDS)
def new_engine(request, clock, tmp_path):
    """Return a factory of engines on one database that all use the test's clock."""
    namespace = f"s{uuid.uuid4().hex[:10]}"
    kind = request.param

    def make():
        if kind == "redis":
            url = request.getfixturevalue("backstay_redis").url
            return RedisEngine(parse_redis(url), namespace=namespace, clock=clock)
        if kind == "postgres":
            url = request.getfixturevalue("backstay_postgres").url
            return PostgresEngine(parse_postgres(url), namespace=namespace, clock=clock)
        return SqliteEngine(str(tmp_path / "cron.db"), namespace=namespace, clock=clock, synchronous="off")

    return make


def define_job(stay, **options):
    @stay.job(cron="* * * * *", **options)
    async def each_minute() -> None: ...

    return each_minute


@on_a_loop
async def test_five_schedulers_and_fifty_ticks_make_fifty_jobs(new_engine, clock):
    engines = [new_engine() for _ in range(5)]
    apps = [backstay.Backstay(engine=engine) for engine in engines]
    jobs = [define_job(stay) for stay in apps]
    for stay in apps:
        await stay.open()
        stay._core.engine.now = clock  # the engine's own estimate advances with real time; the test's clock does not
        await tick(stay._core)
    for _ in range(50):
        clock.advance(60)
        await asyncio.gather(*(tick(stay._core) for stay in apps))
    found = await enqueued(jobs[0])
    assert len(found) == 50
    assert len({job.due for job in found}) == 50
    for stay, engine in zip(apps, engines, strict=True):
        await stay.close()
        await engine.close()


@on_a_loop
async def test_a_tick_is_due_at_its_moment_and_names_its_schedule(clock):
    engine = clock.engine()
    async with backstay.Backstay(engine=engine) as stay:
        job = define_job(stay)
        stay._core.engine.now = clock
        assert 29 < await tick(stay._core) <= 30
        clock.advance(45)
        await tick(stay._core)
        (found,) = await enqueued(job)
        assert found.due == datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
        stored = await stay._core.port.apply(stay.internals.job_store.get(found.id))
        assert unpack(stored.meta).cron == "each_minute"
        assert await drain(stay) == {"completed": 1}
    await engine.close()


SCHEDULE = Cron("*/10 * * * *")
LAST = datetime(2026, 1, 1, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("policy", "minutes", "served"),
    [
        ("one", 9, []),
        ("one", 10, [10]),
        ("one", 35, [30]),
        ("skip", 10, [10]),
        ("skip", 10.9, [10]),
        ("skip", 35, []),
        ("all", 35, [10, 20, 30]),
        ("all", 9, []),
    ],
)
def test_missed_moments_are_caught_up_by_the_policy(policy, minutes, served):
    now = LAST + timedelta(minutes=minutes)
    assert due_moments(SCHEDULE, policy, LAST, now) == [LAST + timedelta(minutes=minute) for minute in served]


def test_catching_up_is_bounded():
    assert len(due_moments(Cron("* * * * *"), "all", LAST, LAST + timedelta(days=30))) == MOST_CAUGHT_UP


@on_a_loop
async def test_all_missed_moments_are_caught_up_once(clock):
    engine = clock.engine()
    async with backstay.Backstay(engine=engine) as stay:
        job = define_job(stay, catch_up="all")
        stay._core.engine.now = clock
        await tick(stay._core)
        clock.advance(600)
        await tick(stay._core)
        await tick(stay._core)
        assert [info.due.minute for info in await enqueued(job)] == list(range(1, 11))
    await engine.close()


@on_a_loop
async def test_a_new_schedule_starts_with_its_next_moment(clock):
    engine = clock.engine()
    async with backstay.Backstay(engine=engine) as stay:
        job = define_job(stay, catch_up="all")
        stay._core.engine.now = clock
        await tick(stay._core)
        assert await enqueued(job) == []
    await engine.close()


@on_a_loop
async def test_a_worker_runs_the_scheduler():
    ahead = 0
    engine = SqliteEngine(":memory:", clock=lambda: host_clock() + ahead)
    async with backstay.Backstay(engine=engine) as stay:
        ran = []

        @stay.job(cron="* * * * *")
        async def each_minute() -> None:
            ran.append(1)

        await tick(stay._core)  # registers the schedule at the present time
        ahead = 60_000_000
        async with working(stay):

            async def has_run():
                return ran

            assert await soon(has_run)
    await engine.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cron": "whenever"}, r"\*/5 \* \* \* \*"),
        ({"cron": "* * * * *", "timezone": "Nowhere"}, "Europe/Berlin"),
        ({"cron": "* * * * *", "catch_up": "perhaps"}, "skip, one, all"),
    ],
)
def test_an_invalid_schedule_is_refused_at_its_definition(options, message):
    with (
        backstay.sync.Backstay("memory://") as stay,
        pytest.raises(ConfigError, match=message),
    ):
        stay.job(**options)(lambda: None)


def test_a_cron_job_with_required_arguments_is_refused():
    with (
        backstay.sync.Backstay("memory://") as stay,
        pytest.raises(ConfigError, match=r"path must have defaults"),
    ):

        @stay.job(cron="* * * * *")
        def resize(path: str, size: int = 3) -> None: ...


@on_a_loop
async def test_ended_jobs_are_pruned_by_age_and_by_number(clock):
    engine = clock.engine()
    async with backstay.Backstay(engine=engine) as stay:

        @stay.job(keep=60)
        async def short() -> None: ...

        @stay.job(keep=600)
        async def long() -> None: ...

        await short.enqueue_many([()] * 3)
        await long.enqueue_many([()] * 3)
        await drain(stay)
        assert await prune(stay._core) == 0
        clock.advance(61)
        assert await prune(stay._core) == 3
        assert await prune(stay._core, keep=1) == 2
        assert [job.type for job in await stay.jobs.list()] == ["long"]
    await engine.close()


@on_a_loop
async def test_pruning_deletes_all_unique_keys_whose_window_has_ended(clock, tmp_path, monkeypatch):
    monkeypatch.setattr(pruner, "PRUNE_STEP", 10)
    path = tmp_path / "keys.db"
    engine = SqliteEngine(str(path), clock=clock, synchronous="off")

    def count_keys():
        with closing(sqlite3.connect(path)) as db:
            return db.execute("SELECT count(*) FROM backstay_job_unique").fetchone()[0]

    async with backstay.Backstay(engine=engine) as stay:

        @stay.job(unique="once:{n}", unique_window=60, keep=600)
        async def once(n: int) -> None: ...

        await once.enqueue_many([(n,) for n in range(55)])
        await drain(stay)
        await prune(stay._core)
        assert count_keys() == 55
        clock.advance(61)
        await prune(stay._core)
        assert count_keys() == 0
    await engine.close()


@on_a_loop
async def test_a_worker_keeps_the_configured_number_of_completed_jobs():
    async with backstay.Backstay("memory://") as stay:

        @stay.job(keep=600)
        async def long() -> None: ...

        await long.enqueue_many([()] * 5)
        await drain(stay)
        worker = stay.worker(keep=2, signals=False)
        running = asyncio.create_task(worker.run())

        async def pruned():
            return len(await stay.jobs.list()) == 2

        assert await soon(pruned)
        worker.stop()
        await asyncio.wait_for(running, WITHIN)
        with pytest.raises(ConfigError, match="keep"):
            stay.worker(keep=0)


@on_a_loop
async def test_a_scheduler_runs_without_a_worker_and_stops():
    async with backstay.Backstay("memory://") as stay:
        define_job(stay)
        alone = stay.scheduler()
        running = asyncio.create_task(alone.run())

        async def has_begun():
            return await stay._core.port.apply(stay.internals.job_store.ticks([])) == {} and alone._stopped is not None

        assert await soon(has_begun)
        alone.stop()
        await asyncio.wait_for(running, WITHIN)


def test_a_blocking_scheduler_runs_on_a_thread_and_stops():
    with backstay.sync.Backstay("memory://") as stay:
        define_job(stay)
        alone = stay.scheduler(keep=10)
        thread = threading.Thread(target=alone.run)
        thread.start()
        alone.stop()
        thread.join(WITHIN)
        assert not thread.is_alive()
