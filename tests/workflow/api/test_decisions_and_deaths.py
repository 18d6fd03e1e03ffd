"""Internal jobs of a run (decisions, gathering of results) on a busy worker and on a crashed one."""

import asyncio
import logging

from test_flows_run import on_each_engine, working

from backstay.job.exchange import Claim
from backstay.job.flows import send
from backstay.job.reserved import GATHER, INTERNAL
from backstay.job.worker.channel import WorkerChannel, WorkerIdentity
from backstay.testing.waiting import WITHIN, soon


@on_each_engine
async def test_a_skip_is_counted_and_frees_the_deciding_worker(stay):
    @stay.job()
    async def work() -> str:
        return "done"

    @stay.workflow
    def choosy(flow, go: str) -> None:
        flow.add(work, key="maybe", when="inputs.go == 'yes'")
        flow.add(work, key="surely")

    log = logging.getLogger("backstay")
    errors = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = errors.append
    log.addHandler(handler)
    try:
        async with working(stay, concurrency=1) as worker:
            for _ in range(3):
                run = await choosy.start("no")
                assert await run.wait(WITHIN) == "success"
                assert {job.key: job.state for job in await run.jobs()} == {"maybe": "skipped", "surely": "completed"}
            assert await soon(lambda: asyncio.sleep(0, worker.counts["completed"] == 3))
        assert worker.counts["skipped"] == 3
    finally:
        log.removeHandler(handler)
    assert errors == []


@on_each_engine
async def test_a_crash_while_gathering_results_costs_one_attempt_and_no_run(stay):
    @stay.job()
    async def deal() -> list[int]:
        return [1, 2, 3]

    may_end = asyncio.Event()

    @stay.job()
    async def double(n: int) -> int:
        await may_end.wait()
        return 2 * n

    @stay.workflow
    def doubles(flow) -> None:
        flow.map(double, flow.add(deal).output)

    core, store = stay._core, stay.internals.job_store
    run = await doubles.start()

    async def states(kind):
        return [job.state for job in await send(core, store.list_jobs(run=run.id, limit=100)) if job.type == kind]

    async with working(stay):
        assert await soon(lambda: _equals(states("double"), ["running"] * 3))
        await send(core, store.pause(INTERNAL, paused=True))
        may_end.set()
        assert await soon(lambda: _equals(states(GATHER), ["pending"]))
    await send(core, store.pause(INTERNAL, paused=False))
    crashed = WorkerChannel(core, store, WorkerIdentity("crashed"), 0, 0)
    reply, _ = await crashed.exchange([], Claim(want=1, queues=((INTERNAL,),), lease=200_000))
    assert [job.type for job in reply.jobs] == [GATHER]
    async with working(stay):
        assert await run.wait(30) == "success"
    assert run.outputs["double"] == [2, 4, 6]


async def _equals(coroutine, expected):
    return await coroutine == expected
