"""Cron: each due time of an entry enqueues one job, regardless of the number of schedulers."""

from __future__ import annotations

import asyncio

from backstay.engine.base import Micros
from backstay.job.model import Tick
from backstay.testing.conformance.job.bench import MINUTE, SECOND, Bench, claim


def tick(bench: Bench, name: str, at: Micros) -> Tick:
    """Build the tick of one scheduler. Each scheduler generates its own job id for the same due time."""
    return Tick(name=name, at=at, job=bench.job("cron"))


class Ticking:
    """Tests of `ticks` and `tick`."""

    @claim
    async def test_of_many_schedulers_one_makes_the_job(self, bench: Bench) -> None:
        clients = await bench.clients(5)
        name = bench.key("nightly")
        for _ in range(10):
            bench.wait(MINUTE)
            made = await asyncio.gather(
                *[client.ask("tick", tick(bench, name, bench.now)) for client in clients for _ in range(2)]
            )
            assert sum(made) == 1
        assert len(await clients[0].claim(100)) == 10

    @claim
    async def test_a_moment_that_has_passed_is_not_made_again(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        name = bench.key("nightly")
        assert await one.ask("tick", tick(bench, name, bench.now)) is True
        assert await other.ask("tick", tick(bench, name, bench.now)) is False
        assert await other.ask("tick", tick(bench, name, bench.now - SECOND)) is False
        assert await other.ask("tick", tick(bench, name, bench.now + SECOND)) is True
        assert len(await one.claim(10)) == 2

    @claim
    async def test_the_job_of_a_tick_is_a_job_like_any_other(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        new = bench.job("report", args=b"a", queue="cron", retries=2, priority=3)
        assert await one.ask("tick", Tick(name=bench.key("report"), at=bench.now, job=new)) is True
        job = await other.take(queues=[["cron"]])
        assert (job.id, job.type, job.args, job.retries, job.priority) == (new.id, "report", b"a", 2, 3)

    @claim
    async def test_a_new_entry_is_remembered_as_of_now(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        name = bench.key("new")
        start = bench.now
        first = await one.ask("ticks", [name])
        assert first in ({}, {name: start})
        bench.wait(MINUTE)
        assert await other.ask("ticks", [name]) == {name: start}
        assert await other.ask("tick", tick(bench, name, start - SECOND)) is False
        assert await other.ask("tick", tick(bench, name, start + SECOND)) is True

    @claim
    async def test_ticks_tells_when_each_entry_last_ticked(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        names = [bench.key(word) for word in ("a", "b", "é:{x}")]
        for nth, name in enumerate(names):
            await one.ask("tick", tick(bench, name, bench.now + nth))
        assert await other.ask("ticks", names) == {name: bench.now + nth for nth, name in enumerate(names)}
        assert await other.ask("ticks", []) == {}
