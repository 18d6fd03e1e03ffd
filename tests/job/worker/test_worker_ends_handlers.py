"""Handlers that are to end early: cancelled by hand, out of time, without their lease; and those that do not listen."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import backstay
from backstay.job.api.retry import fixed
from backstay.job.ids import shard_of
from backstay.job.store import JOB_STORE
from backstay.job.worker.channel import WorkerChannel
from backstay.job.worker.lease_renewer import LeaseRenewer
from backstay.testing.waiting import WITHIN, soon
from support.app import KINDS, fetch_job, open_app, reaches, url_of, working
from support.event_loop import on_a_loop


@pytest.fixture(params=KINDS)
def url(request):
    return url_of(request.param, request)


async def cancel(stay, handle, reason="enough"):
    core = stay._core
    return await core.port.apply(core.services.get(JOB_STORE).cancel(handle.id, reason))


@pytest.mark.timed
@on_a_loop
async def test_a_running_job_that_is_cancelled_is_interrupted_at_once(url, namespace):
    stay = open_app(url, namespace)
    began, ended = asyncio.Event(), []

    @stay.job(retries=3)
    async def endless() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append(backstay.current_job().cancelled)
            raise

    async with stay:
        handle = await endless.enqueue()
        async with working(stay) as worker:
            await asyncio.wait_for(began.wait(), WITHIN)
            asked = time.monotonic()
            assert await cancel(stay, handle) == "running"
            await reaches(stay, handle, "cancelled")
            assert time.monotonic() - asked < 5  # a renewal is due after ten
        assert ended == [True]
        assert worker.counts == {"cancelled": 1}


@pytest.mark.parametrize("kind", KINDS)
def test_the_reason_of_a_cancellation_is_kept(kind, namespace, request):
    """Also where the job runs, and its worker knows only that it is to end."""
    stay = open_app(url_of(kind, request), namespace)

    @stay.job()
    async def endless() -> None:
        await asyncio.Event().wait()

    @on_a_loop
    async def cancelled():
        async with stay, working(stay):
            handle = await endless.enqueue()
            await reaches(stay, handle, "running")
            await handle.cancel("wrong customer")
            with pytest.raises(backstay.JobCancelled, match="wrong customer"):
                await handle.result(WITHIN)

    cancelled()


@on_a_loop
async def test_check_raises_in_a_cancelled_thread(url, namespace):
    stay = open_app(url, namespace)
    began = threading.Event()

    @stay.job()
    def busy() -> None:
        began.set()
        ctx = backstay.current_job()
        while True:
            ctx.check()
            time.sleep(0.005)

    async with stay:
        handle = await busy.enqueue()
        async with working(stay):
            await asyncio.to_thread(began.wait, 10)
            await cancel(stay, handle)
            await reaches(stay, handle, "cancelled")


@on_a_loop
async def test_a_handler_that_ignores_its_cancellation_may_complete(namespace):
    stay = open_app("memory://", namespace)
    began = asyncio.Event()

    @stay.job()
    async def stubborn() -> str:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "done anyway"
        raise AssertionError

    async with stay:
        handle = await stubborn.enqueue()
        async with working(stay):
            await asyncio.wait_for(began.wait(), WITHIN)
            await cancel(stay, handle)
            job = await reaches(stay, handle, "completed")
    assert stubborn.decode_result(job.result) == "done anyway"


@on_a_loop
async def test_a_handler_past_its_timeout_is_cancelled_and_retried(url, namespace):
    stay = open_app(url, namespace)
    cancelled = []

    @stay.job(retries=1, backoff=fixed(0.01), timeout=0.1)
    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    async with stay:
        handle = await slow.enqueue()
        async with working(stay):
            job = await reaches(stay, handle, "failed")
    assert cancelled == [1, 1]
    assert job.error.kind == "JobTimeout"
    assert "0.1 s" in job.error.message


@pytest.mark.parametrize("is_async", [True, False])
@on_a_loop
async def test_a_handler_that_does_not_end_is_abandoned_and_frees_its_slot(namespace, is_async):
    stay = open_app("memory://", namespace)
    release = threading.Event()

    if is_async:

        @stay.job(retries=0, timeout=0.05)
        async def deaf() -> None:
            while not release.is_set():
                try:
                    await asyncio.sleep(0.02)
                except asyncio.CancelledError:
                    continue
    else:

        @stay.job(retries=0, timeout=0.05)
        def deaf() -> None:
            release.wait(30)

    @stay.job()
    async def next_one() -> None: ...

    async with stay:
        handle = await deaf.enqueue()
        async with working(stay, concurrency=1, grace=0.05):
            job = await reaches(stay, handle, "failed")
            await reaches(stay, await next_one.enqueue(), "completed")
            release.set()
            await asyncio.sleep(0.05)
            assert (await fetch_job(stay, handle)).state == "failed"
    assert job.error.kind == "JobTimeout"
    assert "did not end" in job.error.message


@on_a_loop
async def test_a_call_may_override_the_timeout(namespace):
    stay = open_app("memory://", namespace)

    @stay.job(retries=0)
    async def slow() -> None:
        await asyncio.sleep(60)

    async with stay:
        handle = await slow.options(timeout=0.05).enqueue()
        async with working(stay):
            job = await reaches(stay, handle, "failed")
    assert job.error.kind == "JobTimeout"


@on_a_loop
async def test_a_call_may_disable_the_timeout(url, namespace):
    stay = open_app(url, namespace)

    @stay.job(timeout=0.1, retries=0)
    async def slow() -> str:
        await asyncio.sleep(0.3)
        return "done"

    async with stay, working(stay):
        assert await (await slow.options(timeout=None).enqueue()).result(WITHIN) == "done"
        await reaches(stay, await slow.enqueue(), "failed")


@pytest.mark.timed
@on_a_loop
async def test_leases_are_renewed_while_the_loop_is_blocked(url, namespace):
    stay = open_app(url, namespace)
    fences = []

    @stay.job()
    async def blocking() -> None:
        fences.append(backstay.current_job().fence)
        time.sleep(1.5)  # noqa: ASYNC251 - this is the point

    async with stay:
        handle = await blocking.enqueue()
        async with working(stay, lease=0.5, blocked_after=0):
            job = await reaches(stay, handle, "completed", within=20)
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
            # Another client finishes it under the worker's own lease: from then on that lease is stale.
            core = stay._core
            job = await fetch_job(stay, handle)
            from backstay.job.model import Claim, ExchangeCommand, Finish

            await core.port.apply(
                core.services.get(JOB_STORE).exchange(
                    ExchangeCommand(
                        shard=shard_of(job.id),
                        worker="thief",
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
            await soon(lambda: _is(lost))
            assert lost == [True]
            assert worker.running == 0 or await soon(lambda: _idle(worker))
        assert worker.counts == {}
        assert (await fetch_job(stay, handle)).state == "completed"


async def _is(found):
    return bool(found)


async def _idle(worker):
    return worker.running == 0


@on_a_loop
async def test_a_handler_superseded_in_its_own_worker_is_abandoned_and_the_worker_stops(namespace, monkeypatch):
    """Its lease ran out, as that of a process that stood still does, and it does not listen."""
    stay = open_app("memory://", namespace)
    gate, began = threading.Event(), []
    renew = LeaseRenewer._renew

    def not_the_first(self, due):
        later = {shard: [a for a in attempts if a.job.attempt > 1] for shard, attempts in due.items()}
        if later := {shard: attempts for shard, attempts in later.items() if attempts}:
            renew(self, later)

    monkeypatch.setattr(LeaseRenewer, "_renew", not_the_first)

    @stay.job(retries=3)
    def deaf() -> None:
        began.append(backstay.current_job().attempt)
        gate.wait(20)

    async def left_behind():
        return began == [1, 2] and worker.running == 1

    async with stay:
        await deaf.enqueue()
        try:
            async with working(stay, lease=0.5, grace=2) as worker:
                assert await soon(left_behind, 10), (began, worker.running)
                worker.stop(now=True)
        finally:
            gate.set()


@on_a_loop
async def test_a_handler_that_blocks_the_loop_is_named(namespace, caplog):
    stay = open_app("memory://", namespace)

    @stay.job()
    async def sleepy_head() -> None:
        time.sleep(1.0)  # noqa: ASYNC251 - this is the point

    async with stay:
        handle = await sleepy_head.enqueue()
        async with working(stay, blocked_after=0.2):
            await reaches(stay, handle, "completed")
    warnings = [record.getMessage() for record in caplog.records if "blocked the event loop" in record.getMessage()]
    assert any(f"sleepy_head {handle.id}" in warning and "time.sleep(1.0)" in warning for warning in warnings)
    assert stay.telemetry.counts["job.blocks_loop"] >= 1


@on_a_loop
async def test_a_blocked_loop_without_jobs_is_not_reported(namespace, caplog):
    stay = open_app("memory://", namespace)

    @stay.job()
    async def quick() -> None: ...

    async with stay:
        handle = await quick.enqueue()
        async with working(stay, blocked_after=0.1):
            await reaches(stay, handle, "completed")
            time.sleep(0.5)  # noqa: ASYNC251 - this is the point
    assert not [record for record in caplog.records if "blocked the event loop" in record.getMessage()]


@on_a_loop
async def test_log_lines_keep_their_order_across_attempts(url, namespace):
    stay = open_app(url, namespace)

    @stay.job(retries=1, backoff=fixed(0.01))
    async def talkative() -> None:
        ctx = backstay.current_job()
        for n in range(3):
            ctx.log(f"attempt {ctx.attempt} line {n}", stream="out")
        if ctx.attempt == 1:
            raise ValueError("again")

    async with stay:
        handle = await talkative.enqueue()
        async with working(stay):
            await reaches(stay, handle, "completed")
        core = stay._core
        lines = await core.port.apply(core.services.get(JOB_STORE).read_log(handle.id))
    assert [line.data for line in lines] == [f"attempt {a} line {n}" for a in (1, 2) for n in range(3)]
    assert [line.seq for line in lines] == [1, 2, 3, 4, 5, 6]
    assert {line.stream for line in lines} == {"out"}


@on_a_loop
async def test_progress_and_outputs_are_stored(url, namespace):
    stay = open_app(url, namespace)
    go_on = asyncio.Event()

    @stay.job()
    async def half_way() -> None:
        ctx = backstay.current_job()
        ctx.progress(0.5)
        ctx.outputs["path"] = "a.png"
        await go_on.wait()

    async with stay:
        handle = await half_way.enqueue()
        async with working(stay):
            assert await soon(lambda: _progress(stay, handle, 0.5))
            go_on.set()
            await reaches(stay, handle, "completed")
        core = stay._core
        assert await core.port.apply(core.services.get(JOB_STORE).get_outputs(handle.id)) == {"path": "a.png"}


async def _progress(stay, handle, wanted):
    return (await fetch_job(stay, handle)).progress == wanted


@on_a_loop
async def test_a_cancelled_worker_run_returns_its_jobs(url, namespace):
    stay = open_app(url, namespace)
    began = asyncio.Event()

    @stay.job(retries=0)
    async def endless() -> None:
        began.set()
        await asyncio.Event().wait()

    async with stay:
        handle = await endless.enqueue()
        task = asyncio.create_task(stay.worker(signals=False).run())
        await asyncio.wait_for(began.wait(), WITHIN)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, WITHIN)
        job = await fetch_job(stay, handle)
    assert (job.state, job.attempt) == ("pending", 0)


@on_a_loop
async def test_a_worker_whose_backstay_is_closed_stops(url, namespace):
    stay = open_app(url, namespace)
    began, cancelled = asyncio.Event(), []

    @stay.job()
    async def endless() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    await stay.open()
    await endless.enqueue()
    task = asyncio.create_task(stay.worker(signals=False).run())
    await asyncio.wait_for(began.wait(), WITHIN)
    await stay.close()
    await asyncio.wait_for(task, WITHIN)
    assert cancelled == [1]


@pytest.mark.timed
@pytest.mark.parametrize("in_a_thread", [False, True], ids=["async", "thread"])
@pytest.mark.parametrize("around", [False, True], ids=["plain", "middleware"])
@on_a_loop
async def test_a_resumed_process_does_not_begin_jobs_claimed_before_its_pause(
    in_a_thread, around, namespace, monkeypatch
):
    """Paused between claim and start for longer than a lease: other workers may hold the jobs by now."""
    stay = open_app("memory://", namespace)
    begun = []
    step, stopped = WorkerChannel.exchange, []

    async def step_then_stand_still(lane, finishes, claim):
        reply, sent = await step(lane, finishes, claim)
        if reply.jobs and not stopped:
            stopped.append(True)
            sent -= 100
        return reply, sent

    monkeypatch.setattr(WorkerChannel, "exchange", step_then_stand_still)

    def note() -> None:
        begun.append(backstay.current_job().attempt)

    async def note_on_the_loop() -> None:
        note()

    if around:
        stay.use(backstay.Middleware())
    job = stay.job(name="note", retries=2)(note if in_a_thread else note_on_the_loop)
    async with stay:
        handle = await job.enqueue()
        async with working(stay, lease=1):
            await reaches(stay, handle, "completed")
    assert begun == [2]
