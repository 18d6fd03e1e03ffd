"""Leases of running jobs: renewal while the loop is blocked, loss of a lease, and reports of a blocked loop."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import backstay
from backstay.job.exchange import Claim, ExchangeCommand
from backstay.job.ids import shard_of
from backstay.job.model import Finish
from backstay.job.store import JOB_STORE
from backstay.job.worker.channel import WorkerChannel
from backstay.job.worker.lease_renewer import LeaseRenewer
from backstay.testing.waiting import WITHIN, soon
from support.app import fetch_job, open_app, wait_for_state, wait_until, working
from support.event_loop import on_a_loop


@pytest.mark.timed
@on_a_loop
async def test_leases_are_renewed_while_the_loop_is_blocked(url, namespace):
    stay = open_app(url, namespace)
    fences = []

    @stay.job()
    async def blocking() -> None:
        fences.append(backstay.current_job().fence)
        time.sleep(1.5)  # noqa: ASYNC251 - the loop is blocked on purpose

    async with stay:
        handle = await blocking.enqueue()
        async with working(stay, lease=0.5, blocked_after=0):
            job = await wait_for_state(stay, handle, "completed", within=20)
    assert len(fences) == 1
    assert job.attempt == 1


@on_a_loop
async def test_a_handler_that_lost_its_lease_is_cancelled_and_reports_nothing(url, namespace):
    stay = open_app(url, namespace)
    began, lost = asyncio.Event(), []

    @stay.job(retries=0)
    async def endless() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ctx = backstay.current_job()
            lost.append(ctx.cancelled)
            with pytest.raises(backstay.LeaseLost):
                ctx.check()
            raise

    async with stay:
        handle = await endless.enqueue()
        async with working(stay, lease=30) as worker:
            await asyncio.wait_for(began.wait(), WITHIN)
            # Another client finishes the job under the worker's lease, which is stale from then on.
            core = stay._core
            job = await fetch_job(stay, handle)

            await core.port.apply(
                core.services.get(JOB_STORE).exchange(
                    ExchangeCommand(
                        shard=shard_of(job.id),
                        worker="other",
                        incarnation="i",
                        channel=0,
                        seq=1,
                        finishes=(Finish(job=job.id, fence=job.fence, kind="complete", result=b"\xc0"),),
                        claim=Claim(want=0),
                        not_after=core.engine.now() + 10_000_000,
                    )
                )
            )
            await stay.hub.publish_ownership_lost(handle.id)
            await wait_until(lambda: lost)
            assert lost == [True]
            await wait_until(lambda: worker.running == 0)
        assert worker.counts == {}
        assert (await fetch_job(stay, handle)).state == "completed"


@on_a_loop
async def test_a_handler_superseded_in_its_own_worker_is_abandoned_and_the_worker_stops(namespace, monkeypatch):
    """The first attempt ignores the loss of its lease, which expires as that of a paused process does."""
    stay = open_app("memory://", namespace)
    gate, attempts = threading.Event(), []
    renew = LeaseRenewer._renew

    def renew_all_but_the_first(self, due):
        later = {shard: [a for a in leased if a.job.attempt > 1] for shard, leased in due.items()}
        if later := {shard: leased for shard, leased in later.items() if leased}:
            renew(self, later)

    monkeypatch.setattr(LeaseRenewer, "_renew", renew_all_but_the_first)

    @stay.job(retries=3)
    def blocking() -> None:
        attempts.append(backstay.current_job().attempt)
        gate.wait(20)

    async def is_abandoned():
        return attempts == [1, 2] and worker.running == 1

    async with stay:
        await blocking.enqueue()
        try:
            async with working(stay, lease=0.5, grace=2) as worker:
                assert await soon(is_abandoned, 10), (attempts, worker.running)
                worker.stop(now=True)
        finally:
            gate.set()


@on_a_loop
async def test_a_handler_that_blocks_the_loop_is_named(namespace, caplog):
    stay = open_app("memory://", namespace)

    @stay.job()
    async def blocks_loop() -> None:
        time.sleep(1.0)  # noqa: ASYNC251 - the loop is blocked on purpose

    async with stay:
        handle = await blocks_loop.enqueue()
        async with working(stay, blocked_after=0.2):
            await wait_for_state(stay, handle, "completed")
    warnings = [record.getMessage() for record in caplog.records if "blocked the event loop" in record.getMessage()]
    assert any(f"blocks_loop {handle.id}" in warning and "time.sleep(1.0)" in warning for warning in warnings)
    assert stay.telemetry.counts["job.blocks_loop"] >= 1


@on_a_loop
async def test_a_blocked_loop_without_jobs_is_not_reported(namespace, caplog):
    stay = open_app("memory://", namespace)

    @stay.job()
    async def quick() -> None: ...

    async with stay:
        handle = await quick.enqueue()
        async with working(stay, blocked_after=0.1):
            await wait_for_state(stay, handle, "completed")
            time.sleep(0.5)  # noqa: ASYNC251 - the loop is blocked on purpose
    assert not [record for record in caplog.records if "blocked the event loop" in record.getMessage()]


@pytest.mark.timed
@pytest.mark.parametrize("in_a_thread", [False, True], ids=["async", "thread"])
@pytest.mark.parametrize("around", [False, True], ids=["plain", "middleware"])
@on_a_loop
async def test_a_resumed_process_does_not_begin_jobs_claimed_before_its_pause(
    in_a_thread, around, namespace, monkeypatch
):
    """The process is paused between claim and start for longer than a lease, so other workers may have the jobs."""
    stay = open_app("memory://", namespace)
    attempts = []
    exchange, paused = WorkerChannel.exchange, []

    async def exchange_before_a_pause(channel, finishes, claim):
        reply, sent = await exchange(channel, finishes, claim)
        if reply.jobs and not paused:
            paused.append(True)
            sent -= 100
        return reply, sent

    monkeypatch.setattr(WorkerChannel, "exchange", exchange_before_a_pause)

    def record() -> None:
        attempts.append(backstay.current_job().attempt)

    async def record_on_the_loop() -> None:
        record()

    if around:
        stay.use(backstay.Middleware())
    job = stay.job(name="record", retries=2)(record if in_a_thread else record_on_the_loop)
    async with stay:
        handle = await job.enqueue()
        async with working(stay, lease=1):
            await wait_for_state(stay, handle, "completed")
    assert attempts == [2]
