"""Cron: each due time of an entry enqueues one job, regardless of the number of schedulers."""

from __future__ import annotations

import asyncio

from backstay.engine.base import Micros
from backstay.job.model import Tick
from backstay.testing.conformance.job.bench import MINUTE, SECOND, Bench, store_test


def tick(bench: Bench, name: str, at: Micros) -> Tick:
    """Build the request of one scheduler to enqueue the job of the cron entry `name` that is due at `at`. Each
    scheduler sends its own job id for the same due time.
    """
    return Tick(name=name, at=at, job=bench.job("cron"))


class JobTickingTests:
    """Tests of `ticks` and `tick`."""

    @store_test
    async def test_one_of_many_schedulers_creates_the_job_of_a_tick(self, bench: Bench) -> None:
        clients = await bench.clients(5)
        name = bench.key("nightly")
        for _ in range(10):
            bench.advance(MINUTE)
            made = await asyncio.gather(
                *[client.call("tick", tick(bench, name, bench.now)) for client in clients for _ in range(2)]
            )
            assert sum(made) == 1
        assert len(await clients[0].claim(100)) == 10

    @store_test
    async def test_a_tick_not_later_than_the_last_creates_no_job(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        name = bench.key("nightly")
        assert await one.call("tick", tick(bench, name, bench.now)) is True
        assert await other.call("tick", tick(bench, name, bench.now)) is False
        assert await other.call("tick", tick(bench, name, bench.now - SECOND)) is False
        assert await other.call("tick", tick(bench, name, bench.now + SECOND)) is True
        assert len(await one.claim(10)) == 2

    @store_test
    async def test_the_job_of_a_tick_is_a_job_like_any_other(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        new = bench.job("report", args=b"a", queue="cron", retries=2, priority=3)
        assert await one.call("tick", Tick(name=bench.key("report"), at=bench.now, job=new)) is True
        job = await other.take(queues=[["cron"]])
        assert (job.id, job.type, job.args, job.retries, job.priority) == (new.id, "report", b"a", 2, 3)

    @store_test
    async def test_a_new_entry_is_remembered_as_of_now(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        name = bench.key("new")
        start = bench.now
        first = await one.call("ticks", [name])
        assert first in ({}, {name: start})
        bench.advance(MINUTE)
        assert await other.call("ticks", [name]) == {name: start}
        assert await other.call("tick", tick(bench, name, start - SECOND)) is False
        assert await other.call("tick", tick(bench, name, start + SECOND)) is True

    @store_test
    async def test_ticks_returns_the_last_tick_of_each_entry(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        names = [bench.key(word) for word in ("a", "b", "é:{x}")]
        for nth, name in enumerate(names):
            await one.call("tick", tick(bench, name, bench.now + nth))
        assert await other.call("ticks", names) == {name: bench.now + nth for nth, name in enumerate(names)}
        assert await other.call("ticks", []) == {}
