"""Outcomes of a job by what its handler does: it returns, raises, snoozes, or tries to end the process."""

from __future__ import annotations

import asyncio
import os
import sys
import threading

import pytest

import backstay
from backstay.job.api.retry import Cancel, Retry, Snooze, fixed
from backstay.job.store import JOB_STORE
from backstay.testing.waiting import soon
from support.app import fetch_job, open_app, wait_for_state, working
from support.event_loop import on_a_loop


@on_a_loop
async def test_an_async_job_completes_with_its_result(url, namespace):
    stay = open_app(url, namespace)

    @stay.job()
    async def double(n: int) -> int:
        return 2 * n

    async with stay:
        handle = await double.enqueue(21)
        async with working(stay):
            job = await wait_for_state(stay, handle, "completed")
    assert double.decode_result(job.result) == 42
    assert job.attempt == 1


@on_a_loop
async def test_a_plain_function_runs_in_a_thread(url, namespace):
    stay = open_app(url, namespace)

    @stay.job()
    def where() -> bool:
        return threading.current_thread() is threading.main_thread()

    async with stay:
        handle = await where.enqueue()
        async with working(stay):
            job = await wait_for_state(stay, handle, "completed")
    assert where.decode_result(job.result) is False


@on_a_loop
async def test_a_failing_job_is_retried_and_becomes_a_dead_letter(url, namespace, caplog):
    stay = open_app(url, namespace)
    attempts = []

    @stay.job(retries=2, backoff=fixed(0.01))
    async def broken() -> None:
        attempts.append(backstay.current_job().attempt)
        raise ValueError("no such luck")

    async with stay:
        handle = await broken.enqueue()
        async with working(stay) as worker:
            job = await wait_for_state(stay, handle, "failed")
    assert attempts == [1, 2, 3]
    assert (job.error.kind, job.error.message) == ("ValueError", "no such luck")
    assert job.enqueued <= job.error.at <= job.finished
    assert "failed permanently (attempt 3 of 3): ValueError: no such luck" in caplog.text
    assert "test_worker_outcomes" in job.error.trace
    assert worker.counts == {"retried": 2, "failed": 1}


@pytest.mark.parametrize("how", ["raise", "return"])
@on_a_loop
async def test_outcomes_are_raised_or_returned(url, namespace, how):
    stay = open_app(url, namespace)
    attempts = []

    @stay.job(retries=1)
    async def snooze_then_retry() -> Retry | Snooze | str:
        ctx = backstay.current_job()
        attempts.append((ctx.attempt, ctx.snoozes))
        outcome = {1: Snooze(0.01), 2: Retry(after=0.01)}.get(len(attempts))
        if outcome is None:
            return "done"
        if how == "raise":
            raise outcome
        return outcome

    @stay.job()
    async def cancelling() -> Cancel:
        if how == "raise":
            raise Cancel("nothing to do")
        return Cancel("nothing to do")

    async with stay:
        handle, other = await snooze_then_retry.enqueue(), await cancelling.enqueue()
        async with working(stay):
            await wait_for_state(stay, handle, "completed")
            job = await wait_for_state(stay, other, "cancelled")
    assert attempts == [(1, 0), (1, 1), (2, 1)]
    assert job.error.message == "nothing to do"


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, StopIteration])
@pytest.mark.parametrize("is_async", [True, False])
@on_a_loop
async def test_a_base_exception_ends_only_its_attempt(namespace, kind, is_async):
    stay = open_app("memory://", namespace)

    if is_async:

        @stay.job(retries=0)
        async def raises() -> None:
            raise kind(3)
    else:

        @stay.job(retries=0)
        def raises() -> None:
            raise kind(3)

    @stay.job()
    async def next_one() -> str:
        return "still here"

    async with stay:
        handle = await raises.enqueue()
        async with working(stay):
            job = await wait_for_state(stay, handle, "failed")
            await wait_for_state(stay, await next_one.enqueue(), "completed")
    assert job.error.kind in {kind.__name__, "RuntimeError"}


@on_a_loop
async def test_a_sys_exit_is_recorded_with_its_cause(namespace):
    stay = open_app("memory://", namespace)

    @stay.job(retries=0)
    async def exits() -> None:
        sys.exit(3)

    async with stay:
        handle = await exits.enqueue()
        async with working(stay):
            job = await wait_for_state(stay, handle, "failed")
    assert job.error.kind == "SystemExit"
    assert "SystemExit(3)" in job.error.message


@on_a_loop
async def test_a_cancelled_error_raised_by_the_handler_is_recorded_with_a_cause(namespace):
    stay = open_app("memory://", namespace)

    @stay.job(retries=0)
    async def give_up() -> None:
        raise asyncio.CancelledError

    async with stay:
        handle = await give_up.enqueue()
        async with working(stay):
            job = await wait_for_state(stay, handle, "failed")
    assert job.error.kind == "CancelledError"
    assert "not by the worker" in job.error.message


@on_a_loop
async def test_a_job_of_an_unknown_type_is_delayed_with_its_cause(url, namespace):
    if url == "memory://":
        pytest.skip("two programs need a shared engine")
    stay, other_program = open_app(url, namespace), open_app(url, namespace)

    @other_program.job(name="unknown")
    async def unknown() -> str:
        return "done"

    @stay.job()
    async def known() -> None: ...

    async with stay, other_program:
        handle = await unknown.enqueue()
        async with working(stay) as worker:
            assert await soon(lambda: is_snoozed(stay, handle))
            job = await fetch_job(stay, handle)
            assert job.state == "scheduled"
            assert "unknown" in job.error.message
            assert job.due - job.enqueued > 500_000
            assert worker.counts["snoozed"] == 1
        async with working(other_program):
            job = await wait_for_state(other_program, handle, "completed")
    assert job.attempt == 1


async def is_snoozed(stay, handle):
    return (await fetch_job(stay, handle)).snoozes == 1


@on_a_loop
async def test_the_backoff_of_an_unknown_type_grows():
    from backstay.job.exchange import Claimed
    from backstay.job.worker.execution.outcome import snooze_unknown

    def claimed(snoozes):
        return Claimed(
            id="0-1",
            fence=1,
            type="x",
            queue="default",
            args=b"",
            meta=b"",
            attempt=1,
            retries=0,
            snoozes=snoozes,
            priority=0,
            chain="",
            run="",
            labels=(),
            enqueued=0,
            due=0,
            until=0,
        )

    delays = [snooze_unknown(claimed(n), ()).delay / 1_000_000 for n in (0, 1, 2, 30)]
    assert delays == [1, 2, 4, 300]


@on_a_loop
async def test_a_result_that_cannot_be_encoded_fails_without_retry(url, namespace):
    stay = open_app(url, namespace)
    runs = []

    @stay.job(retries=5, result_limit=100)
    async def huge() -> str:
        runs.append(1)
        return "x" * 1000

    async with stay:
        handle = await huge.enqueue()
        async with working(stay):
            job = await wait_for_state(stay, handle, "failed")
    assert runs == [1]
    assert job.error.kind == "PayloadTooLarge"


@on_a_loop
async def test_a_chain_continues_in_the_same_exchange(url, namespace):
    stay = open_app(url, namespace)

    @stay.job()
    async def second(text: str) -> str:
        return f"{text}, second"

    @stay.job()
    async def first() -> str:
        backstay.current_job().continue_with(second, "first")
        return "first"

    async with stay:
        handle = await first.enqueue()
        async with working(stay):
            job = await wait_for_state(stay, handle, "completed")
            last = await wait_for_state(stay, job.followed_by, "completed")
    assert last.chain == handle.id
    assert second.decode_result(last.result) == "first, second"


class StrictStore:
    """A store that refuses an exchange with the result 3."""

    def __init__(self, store):
        self._store = store

    def __getattr__(self, name):
        return getattr(self._store, name)

    def exchange(self, command):
        if any(finish.kind == "complete" and finish.result == b"\x03" for finish in command.finishes):
            raise backstay.ConfigError("no threes")
        return self._store.exchange(command)


@on_a_loop
async def test_a_chain_cannot_wait_for_itself(url, namespace):
    stay = open_app(url, namespace)

    @stay.job(retries=0)
    async def circular() -> None:
        ctx = backstay.current_job()
        ctx.continue_with(circular.options(after=[ctx.chain]))

    async with stay, working(stay):
        job = await wait_for_state(stay, await circular.enqueue(), "failed")
        assert (job.error.kind, job.followed_by) == ("ConfigError", "")


@on_a_loop
async def test_a_finish_that_the_store_refuses_fails_only_its_own_job(url, namespace):
    stay = open_app(url, namespace)
    stay._core.services.set(JOB_STORE, StrictStore(stay.internals.job_store))

    @stay.job(retries=5)
    async def echo(n: int) -> int:
        return n

    async with stay:
        handles = await echo.enqueue_many([(n,) for n in range(12)])
        async with working(stay) as worker:
            bad = await wait_for_state(stay, handles[3], "failed")
            for n, handle in enumerate(handles):
                if n != 3:
                    await wait_for_state(stay, handle, "completed")
    assert (bad.error.kind, bad.error.message) == ("ConfigError", "its outcome could not be stored: no threes")
    assert worker.counts == {"completed": 11, "failed": 1}


def test_the_worker_id_names_host_and_process(namespace):
    stay = open_app("memory://", namespace)
    assert str(os.getpid()) in stay.worker().id
    with pytest.raises(backstay.ConfigError, match="concurrency"):
        stay.worker(concurrency=0)
    with pytest.raises(backstay.ConfigError, match="queue"):
        stay.worker(queues=[])
    with pytest.raises(backstay.ConfigError, match="lease"):
        stay.worker(lease=0)
    with pytest.raises(backstay.ConfigError, match="labels"):
        stay.worker(labels="gpu")
