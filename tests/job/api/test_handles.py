"""A job handle receives the pushed result, and raises a specific error for every other outcome."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid

import pytest

import backstay
import backstay.sync
from backstay import Cancel, Closed, JobCancelled, JobFailed, JobNotFound, JobSkipped, ResultTimeout, current_job
from backstay.job import flows
from backstay.job.api.completion_waiters import COMPLETION_WAITERS, FOREIGN_ENDS
from backstay.testing.waiting import WITHIN, soon
from support.app import UNSHARDED, url_of, working
from support.event_loop import on_a_loop


class Boom(Exception):
    pass


def define(stay):
    @stay.job()
    async def add(a: int, b: int) -> int:
        return a + b

    @stay.job(retries=0)
    async def fail(why: str) -> None:
        raise Boom(why)

    @stay.job()
    async def double(n: int) -> int:
        if n < 40:
            current_job().continue_with(double, n * 2)
        return n

    @stay.job(name="stop")
    async def stop() -> None:
        raise Cancel("nothing to do")

    return add, fail, double, stop


def new_app(url):
    return backstay.Backstay(url, namespace=f"h{uuid.uuid4().hex[:10]}")


@on_a_loop
async def test_a_handle_returns_the_result_of_its_job(url):
    async with new_app(url) as stay:
        add, *_ = define(stay)
        async with working(stay):
            handles = await add.enqueue_many([(i, i) for i in range(20)])
            assert await asyncio.gather(*(handle.result(WITHIN) for handle in handles)) == [2 * i for i in range(20)]
            assert {await handle.status() for handle in handles} == {"completed"}


@on_a_loop
async def test_a_result_is_pushed_and_not_polled_for(url, monkeypatch):
    monkeypatch.setattr("backstay.job.flows.NOTIFIED_POLL", (60.0, 60.0))
    async with new_app(url) as stay:
        add, *_ = define(stay)
        handle = await add.enqueue(1, 2)
        waiting = asyncio.create_task(handle.result(30))

        async def is_listening_for_ends():
            return stay._core.services.get(COMPLETION_WAITERS).is_listening

        assert await soon(is_listening_for_ends)
        async with working(stay):
            assert await asyncio.wait_for(waiting, WITHIN) == 3


@on_a_loop
async def test_a_failed_job_raises_job_failed_with_the_original_error(url):
    async with new_app(url) as stay:
        _, fail, *_ = define(stay)
        async with working(stay):
            handle = await fail.enqueue("no paper")
            with pytest.raises(JobFailed, match="no paper") as caught:
                await handle.result(WITHIN)
        assert caught.value.kind.endswith("Boom")
        assert caught.value.attempt == 1
        assert "raise Boom" in caught.value.trace
        assert caught.value.job_id == handle.id


@on_a_loop
async def test_a_cancelled_job_has_no_result(url):
    async with new_app(url) as stay:
        add, _, _, stop = define(stay)
        handle = await add.enqueue(1, 2)
        assert await handle.cancel("changed my mind") == "cancelled"
        with pytest.raises(JobCancelled, match="changed my mind"):
            await handle.result(WITHIN)
        async with working(stay):
            with pytest.raises(JobCancelled, match="nothing to do"):
                await (await stop.enqueue()).result(WITHIN)


@on_a_loop
async def test_a_cancel_reason_may_be_any_text(url):
    async with new_app(url) as stay:
        add, *_ = define(stay)
        handle = await add.enqueue(1, 2)
        assert await handle.cancel("half \ud83d a \0 word") == "cancelled"
        with pytest.raises(JobCancelled, match=r"half .* word"):
            await handle.result(5)


@on_a_loop
async def test_a_job_whose_blocker_failed_raises_job_skipped(url):
    async with new_app(url) as stay:
        add, fail, *_ = define(stay)
        async with working(stay):
            first = await fail.enqueue("x")
            with pytest.raises(JobSkipped):
                await (await add.options(after=first).enqueue(1, 2)).result(WITHIN)
            assert await (await add.options(after=[first, first], when="all_done").enqueue(1, 2)).result(WITHIN) == 3


@on_a_loop
async def test_a_chains_result_is_that_of_its_last_job(url):
    async with new_app(url) as stay:
        _, _, double, _ = define(stay)
        async with working(stay):
            handle = await double.enqueue(10)
            assert handle.chain.id == handle.id
            assert await handle.chain.result(WITHIN) == 40
            assert await handle.result(WITHIN) == 10


@on_a_loop
async def test_a_result_timeout_names_the_state_of_the_job(url):
    async with new_app(url) as stay:
        add, *_ = define(stay)
        handle = await add.options(delay=60).enqueue(1, 2)
        began = time.monotonic()
        with pytest.raises(ResultTimeout, match="scheduled") as caught:
            await handle.result(0.2)
        assert time.monotonic() - began < 30
        assert isinstance(caught.value, TimeoutError)
        assert await handle.status() == "scheduled"


@on_a_loop
async def test_an_unknown_job_is_not_found(url):
    async with new_app(url) as stay:
        add, *_ = define(stay)
        handle = await add.enqueue(1, 2)
        handle.id = handle.id[:-4] + "0000"
        with pytest.raises(JobNotFound):
            await handle.result(WITHIN)
        with pytest.raises(JobNotFound):
            await stay.jobs.get("no id at all")
        with pytest.raises(LookupError):
            await stay.jobs.cancel("ff-1")


@on_a_loop
async def test_a_duplicate_of_a_unique_job_gets_the_handle_of_the_first(url):
    async with new_app(url) as stay:
        add, *_ = define(stay)
        once = add.options(unique="{a}+{b}")
        first, second = await once.enqueue(1, 2), await once.enqueue(1, 2)
        assert not first.deduplicated
        assert second.deduplicated
        assert second.id == first.id


@pytest.mark.parametrize("url", UNSHARDED, indirect=True)
@on_a_loop
async def test_a_deduplicated_handle_inside_a_chain_is_notified_of_job_and_chain_end(url, monkeypatch):
    """A caller whose enqueue was deduplicated waits like the caller that created the job."""
    monkeypatch.setattr(flows, "NOTIFIED_POLL", (60.0, 60.0))
    go = asyncio.Event()
    async with new_app(url) as stay:

        @stay.job()
        async def first() -> str:
            current_job().continue_with(second)
            return "first"

        @stay.job(unique="only one")
        async def second() -> str:
            await go.wait()
            current_job().continue_with(third)
            return "second"

        @stay.job()
        async def third() -> str:
            return "third"

        async with working(stay):
            handle = await first.enqueue()
            assert await handle.result(timeout=20) == "first"
            found = await second.enqueue()
            assert found.deduplicated
            waiting = [asyncio.create_task(awaited(timeout=20)) for awaited in (found.result, found.chain.result)]
            waiters = stay._core.services.get(COMPLETION_WAITERS)

            async def all_wait():
                return waiters.is_listening and set(waiters._latches) == {handle.id, found.id}

            assert await soon(all_wait)
            go.set()
            assert await asyncio.gather(*waiting) == ["second", "third"]


@on_a_loop
async def test_closing_wakes_waiters_for_results(url):
    stay = await new_app(url).open()
    add, *_ = define(stay)
    handle = await add.enqueue(1, 2)
    waiting = asyncio.create_task(handle.result())

    async def is_listening_for_ends():
        return stay._core.services.get(COMPLETION_WAITERS).is_listening

    assert await soon(is_listening_for_ends)
    await stay.close()
    with pytest.raises(Closed):
        await asyncio.wait_for(waiting, WITHIN)


@on_a_loop
async def test_a_process_without_waiters_stops_listening():
    async with new_app("memory://") as stay:
        add, *_ = define(stay)
        async with working(stay):
            assert await (await add.enqueue(1, 2)).result(WITHIN) == 3
        waiters = stay._core.services.get(COMPLETION_WAITERS)
        handle = await add.options(delay=60).enqueue(1, 2)
        with pytest.raises(ResultTimeout):
            await handle.result(0.1)
        assert waiters.is_listening
        for _ in range(FOREIGN_ENDS + 1):
            waiters._on_message("foreign-job")
        assert not waiters.is_listening


def test_threads_can_wait_for_results(request):
    for kind in ("memory://", url_of("sqlite", request)):
        with backstay.sync.Backstay(kind, namespace=uuid.uuid4().hex[:10]) as stay:

            @stay.job()
            def add(a: int, b: int) -> int:
                return a + b

            worker = stay.worker(signals=False)
            thread = threading.Thread(target=worker.run)
            thread.start()
            try:
                handles = add.enqueue_many([(i, 1) for i in range(10)])
                assert [handle.result(WITHIN) for handle in handles] == list(range(1, 11))
                assert handles[0].chain.result(WITHIN) == 1
                assert handles[0].info().args == {"a": 0, "b": 1}
                assert handles[0].progress() in (0.0, 1.0)
                assert handles[0].logs() == []
                assert handles[0].outputs() == {}
            finally:
                worker.stop()
                thread.join(WITHIN)
            assert not thread.is_alive()


@on_a_loop
async def test_logs_outputs_and_progress_are_read_from_the_handle(url):
    async with new_app(url) as stay:

        @stay.job()
        async def report() -> None:
            ctx = current_job()
            ctx.log("half way")
            ctx.progress(0.5)

        async with working(stay):
            handle = await report.enqueue()
            await handle.result(WITHIN)

        async def logged():
            return [line.data for line in await handle.logs()] == ["half way"]

        assert await soon(logged)
        assert await handle.logs(after=1) == []
        assert await handle.outputs() == {}
