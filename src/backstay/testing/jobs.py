"""Helpers for tests of programs that use jobs: run enqueued jobs, assert what was enqueued, control the clock.

    async def test_an_order_is_shipped():
        await place_order(42)
        await assert_enqueued(ship, 42)
        await drain(stay)

The helpers work on any store; with BACKSTAY_URL=memory:// tests are fastest. If the Backstay or the job type is async,
they must be awaited; if it is blocking, they return their results directly.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, ParamSpec, overload

from backstay.app import Backstay
from backstay.engine.base import Micros
from backstay.engine.sqlite.engine import SqliteEngine
from backstay.job import admin, flows
from backstay.job.api import context
from backstay.job.api.definition import BaseJobType, BlockingJobType, JobType
from backstay.job.api.registry import JOB_TYPES
from backstay.job.model import Job
from backstay.job.reserved import INTERNAL, RESERVED
from backstay.job.scheduler.cron_ticks import tick
from backstay.job.store import JOB_STORE
from backstay.job.view import JobInfo, job_info
from backstay.runtime.core import Core
from backstay.runtime.flows import run
from backstay.runtime.validation import Duration, to_micros, to_seconds
from backstay.sync import Backstay as BlockingBackstay

P = ParamSpec("P")

#: The largest number of jobs that the helpers read in one query.
MOST_JOBS = 1000
START = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    """A clock that stands still until the test calls `advance`: `stay = Backstay(engine=clock.engine())`. Delays,
    retries, cron and leases of that engine use it; timeouts of handlers use real time.
    """

    def __init__(self, start: datetime = START) -> None:
        self._now = round(start.timestamp() * 1_000_000)

    def __call__(self) -> Micros:
        return self._now

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self._now / 1_000_000, UTC)

    def advance(self, by: Duration) -> None:
        """Advance the clock by a duration, such as 60 or "5m"."""
        self._now += to_micros(to_seconds(by, "by"))

    def engine(self, namespace: str = "backstay") -> SqliteEngine:
        """Create an in-memory engine that uses this clock."""
        return SqliteEngine(":memory:", namespace=namespace, clock=self)


@overload
def drain(stay: Backstay, *, labels: Iterable[str] | None = None) -> Coroutine[Any, Any, dict[str, int]]: ...
@overload
def drain(stay: BlockingBackstay, *, labels: Iterable[str] | None = None) -> dict[str, int]: ...
def drain(stay: Backstay | BlockingBackstay, *, labels: Iterable[str] | None = None) -> Any:
    """Run all due jobs of all queues, and the jobs that these enqueue, until no job is due. This includes cron jobs
    that have become due since the first drain. Returns the number of attempts by outcome: {"completed": 3, "retried":
    1}. labels: the labels of the worker that runs them; by default, all labels that any job requires.
    """
    if isinstance(stay, Backstay):
        return _tick_and_drain(stay, labels)
    run(tick(stay.internals.core))
    return _blocking_drain(stay, labels)


async def _tick_and_drain(stay: Backstay, labels: Iterable[str] | None) -> dict[str, int]:
    await tick(stay.internals.core)
    return await _drain(stay, labels)


def _blocking_drain(stay: BlockingBackstay, labels: Iterable[str] | None) -> dict[str, int]:
    core, done, before = stay.internals.core, Counter[str](), None
    while (options := run(_options(core, labels))) != before:
        worker = stay.worker(**options)
        worker.run(burst=True)
        done.update(worker.counts)
        before = options
    return dict(done)


async def _drain(stay: Backstay, labels: Iterable[str] | None) -> dict[str, int]:
    core, done, before = stay.internals.core, Counter[str](), None
    while (options := await _options(core, labels)) != before:
        worker = stay.worker(**options)
        await worker.run(burst=True)
        done.update(worker.counts)
        before = options
    return dict(done)


async def _options(core: Core, labels: Iterable[str] | None) -> dict[str, Any]:
    """Return the options of a worker that serves all queues and labels that exist now. Its jobs may enqueue jobs with
    new queues or labels. Then the next call returns different options, and the caller starts another worker with them.
    """
    jobs = list(core.services.get(JOB_TYPES).values())
    queues = [queue.name for queue in await admin.list_queues(core)]
    found = {
        queue for queue in queues if queue != INTERNAL and not queue.startswith(RESERVED)
    }  # leave out the queues of Backstay itself; one of them holds workflow commands, which `drain` does not run
    if labels is None:
        pending = await flows.send(core, core.services.get(JOB_STORE).list_jobs(state="pending", limit=MOST_JOBS))
        labels = {
            label for asked in (*(job.labels for job in jobs), *(job.labels for job in pending)) for label in asked
        }
    return {
        "queues": sorted({*found, *(job.queue for job in jobs)}) or ["default"],
        "labels": sorted(labels),
        "signals": False,
    }


@contextmanager
def eager(stay: Backstay | BlockingBackstay) -> Generator[None, None, None]:
    """Inside this block, `enqueue` runs the job before it returns, unless the job is delayed. A job that is enqueued in
    the caller's own transaction does not exist before the commit, so it does not run; call `drain` after the commit.
    """
    services = stay.internals.core.services
    turns, thread_turns = asyncio.Lock(), threading.Lock()

    async def run_now() -> None:
        if context.is_in_handler():  # called inside a job: the worker that runs it also runs the new job
            return
        if isinstance(stay, Backstay):
            async with turns:
                await _drain(stay, None)
        else:
            with thread_turns:
                _blocking_drain(stay, None)

    before = services.find(flows.EAGER)
    services.set(flows.EAGER, run_now)
    try:
        yield
    finally:
        if before is None:
            services.discard(flows.EAGER)
        else:
            services.set(flows.EAGER, before)


@overload
def enqueued(job: JobType[..., Any]) -> Coroutine[Any, Any, list[JobInfo]]: ...
@overload
def enqueued(job: BlockingJobType[..., Any]) -> list[JobInfo]: ...
def enqueued(job: JobType[..., Any] | BlockingJobType[..., Any]) -> Any:
    """Return all stored jobs of this type, in any state, oldest first."""

    def shown(found: list[Job]) -> list[JobInfo]:
        return [job_info(one) for one in reversed(found)]

    return _query(job, shown)


@overload
def assert_enqueued(job: JobType[P, Any], *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, None]: ...
@overload
def assert_enqueued(job: BlockingJobType[P, Any], *args: P.args, **kwargs: P.kwargs) -> None: ...
def assert_enqueued(job: Any, *args: Any, **kwargs: Any) -> Any:
    """Assert that a job with these arguments was enqueued; it may be in any state by now. Omitted arguments are
    compared with their defaults.
    """

    def compare(found: list[Job]) -> None:
        wanted = _arguments(job, job.codec.encode_args(args, kwargs))
        calls = [_arguments(job, one.args) for one in found]
        assert wanted in calls, (
            f"{job.name}({_format_arguments(wanted)}) was not enqueued; "
            + ("; ".join(f"{job.name}({_format_arguments(call)})" for call in calls) if calls else "no call of it")
            + " was"
        )

    return _query(job, compare)


@overload
def assert_not_enqueued(job: JobType[..., Any]) -> Coroutine[Any, Any, None]: ...
@overload
def assert_not_enqueued(job: BlockingJobType[..., Any]) -> None: ...
def assert_not_enqueued(job: JobType[..., Any] | BlockingJobType[..., Any]) -> Any:
    """Assert that no job of this type was enqueued."""

    def compare(found: list[Job]) -> None:
        calls = [f"{job.name}({_format_arguments(_arguments(job, one.args))})" for one in found]
        assert not calls, f"enqueued: {'; '.join(calls)}"

    return _query(job, compare)


def _query(job: BaseJobType[..., Any], then: Callable[[list[Job]], Any]) -> Any:
    core = job.core
    op = core.services.get(JOB_STORE).list_jobs(type=job.name, limit=MOST_JOBS)
    if isinstance(job, JobType):

        async def query() -> Any:
            return then(await flows.send(core, op))

        return query()
    return then(core.engine.apply(op))


def _arguments(job: BaseJobType[..., Any], raw: bytes) -> dict[str, Any]:
    args, kwargs = job.decode_args(raw)
    bound = job.codec.signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def _format_arguments(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())
