"""Tests of programs that use jobs: run what is enqueued, look at what was enqueued, set the clock.

    async def test_an_order_is_shipped():
        await place_order(42)
        await assert_enqueued(ship, 42)
        await drain(stay)

Everything here works on a real store; `memory://` (BACKSTAY_URL=memory://) is the quickest. The functions follow the
Backstay they are given: what belongs to an async one is awaited, what belongs to a blocking one is not.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, ParamSpec, cast, overload

from backstay.app import Backstay
from backstay.engine.base import Micros
from backstay.engine.sqlite.engine import SqliteEngine
from backstay.job import admin, flows
from backstay.job.api import context
from backstay.job.api.definition import BaseJobType, BlockingJobType, JobType
from backstay.job.api.registry import store_of
from backstay.job.model import Job
from backstay.job.reserved import INTERNAL, RESERVED
from backstay.job.scheduler.scheduler import tick
from backstay.job.view import JobInfo, job_info
from backstay.runtime.core import Core
from backstay.runtime.flows import run
from backstay.runtime.validation import Duration, micros, seconds
from backstay.sync import Backstay as BlockingBackstay

P = ParamSpec("P")

#: Jobs that a look at a type finds at most.
MOST = 1000
START = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    """A clock that stands still until it is set: `stay = Backstay(engine=clock.engine())`. Delays, retries, cron and
    leases on that engine go by it; timeouts of handlers do not.
    """

    def __init__(self, start: datetime = START) -> None:
        self._now = round(start.timestamp() * 1_000_000)

    def __call__(self) -> Micros:
        return self._now

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self._now / 1_000_000, UTC)

    def advance(self, by: Duration) -> None:
        """Let time pass."""
        self._now += micros(seconds(by, "by"))

    def engine(self, namespace: str = "backstay") -> SqliteEngine:
        """An engine in memory that goes by this clock."""
        return SqliteEngine(":memory:", namespace=namespace, clock=self)


@overload
def drain(stay: Backstay, *, labels: Iterable[str] | None = None) -> Coroutine[Any, Any, dict[str, int]]: ...
@overload
def drain(stay: BlockingBackstay, *, labels: Iterable[str] | None = None) -> dict[str, int]: ...
def drain(stay: Backstay | BlockingBackstay, *, labels: Iterable[str] | None = None) -> Any:
    """Run all jobs that are due now, of all queues, and what they enqueue, until nothing is left to do; also those that
    start by themselves (cron), once their moment has come since the first drain. Answers what became of the attempts:
    {"completed": 3, "retried": 1}. labels: what the worker has (all that jobs here ask for).
    """
    if isinstance(stay, Backstay):
        return _ticked(stay, labels)
    core = _core(stay)
    run(tick(core))
    return _blocking_drain(stay, labels)


async def _ticked(stay: Backstay, labels: Iterable[str] | None) -> dict[str, int]:
    await tick(_core(stay))
    return await _drain(stay, labels)


def _blocking_drain(stay: BlockingBackstay, labels: Iterable[str] | None) -> dict[str, int]:
    core, done, before = _core(stay), Counter[str](), None
    while (options := run(_options(core, labels))) != before:
        worker = stay.worker(**options)
        worker.run(burst=True)
        done.update(worker.counts)
        before = options
    return dict(done)


async def _drain(stay: Backstay, labels: Iterable[str] | None) -> dict[str, int]:
    core, done, before = _core(stay), Counter[str](), None
    while (options := await _options(core, labels)) != before:
        worker = stay.worker(**options)
        await worker.run(burst=True)
        done.update(worker.counts)
        before = options
    return dict(done)


async def _options(core: Core, labels: Iterable[str] | None) -> dict[str, Any]:
    """A worker for all queues, with all that jobs ask for. What runs may enqueue for others: then there is another."""
    jobs = cast("list[BaseJobType[..., Any]]", list(core.jobs.values()))
    queues = [queue.name for queue in await admin.list_queues(core)]
    found = {
        queue for queue in queues if queue != INTERNAL and not queue.startswith(RESERVED)
    }  # commands are not run here
    if labels is None:
        pending = await flows.send(core, store_of(core).list_jobs(state="pending", limit=MOST))
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
    """Inside, whatever is enqueued has run by the time `enqueue` answers, unless it is delayed. Not what is enqueued on
    a connection of the caller's: it is there after the commit only; `drain` then.
    """
    core = _core(stay)
    turns, thread_turns = asyncio.Lock(), threading.Lock()

    async def run_now() -> None:
        if context.is_inside():  # a job enqueues another: the same worker runs it
            return
        if isinstance(stay, Backstay):
            async with turns:
                await _drain(stay, None)
        else:
            with thread_turns:
                _blocking_drain(stay, None)

    before = core.notes.get(flows.EAGER)
    core.notes[flows.EAGER] = run_now
    try:
        yield
    finally:
        if before is None:
            del core.notes[flows.EAGER]
        else:
            core.notes[flows.EAGER] = before


@overload
def enqueued(job: JobType[..., Any]) -> Coroutine[Any, Any, list[JobInfo]]: ...
@overload
def enqueued(job: BlockingJobType[..., Any]) -> list[JobInfo]: ...
def enqueued(job: JobType[..., Any] | BlockingJobType[..., Any]) -> Any:
    """All jobs of this type, the first one first, whatever became of them."""

    def shown(found: list[Job]) -> list[JobInfo]:
        return [job_info(one) for one in reversed(found)]

    return _look(job, shown)


@overload
def assert_enqueued(job: JobType[P, Any], *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, None]: ...
@overload
def assert_enqueued(job: BlockingJobType[P, Any], *args: P.args, **kwargs: P.kwargs) -> None: ...
def assert_enqueued(job: Any, *args: Any, **kwargs: Any) -> Any:
    """This call was enqueued, whatever became of it. Arguments left out have their defaults."""

    def compare(found: list[Job]) -> None:
        wanted = _arguments(job, job.codec.encode_args(args, kwargs))
        calls = [_arguments(job, one.args) for one in found]
        assert wanted in calls, (
            f"{job.name}({_shown(wanted)}) was not enqueued; "
            + ("; ".join(f"{job.name}({_shown(call)})" for call in calls) if calls else "no call of it")
            + " was"
        )

    return _look(job, compare)


@overload
def assert_not_enqueued(job: JobType[..., Any]) -> Coroutine[Any, Any, None]: ...
@overload
def assert_not_enqueued(job: BlockingJobType[..., Any]) -> None: ...
def assert_not_enqueued(job: JobType[..., Any] | BlockingJobType[..., Any]) -> Any:
    """No call of this job was enqueued."""

    def compare(found: list[Job]) -> None:
        calls = [f"{job.name}({_shown(_arguments(job, one.args))})" for one in found]
        assert not calls, f"enqueued: {'; '.join(calls)}"

    return _look(job, compare)


def _look(job: BaseJobType[..., Any], then: Callable[[list[Job]], Any]) -> Any:
    core = job.core
    op = store_of(core).list_jobs(type=job.name, limit=MOST)
    if isinstance(job, JobType):

        async def looked() -> Any:
            return then(await flows.send(core, op))

        return looked()
    return then(core.engine.apply(op))


def _arguments(job: BaseJobType[..., Any], raw: bytes) -> dict[str, Any]:
    args, kwargs = job.decode_args(raw)
    bound = job.codec.signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def _shown(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())


def _core(stay: Backstay | BlockingBackstay) -> Core:
    return stay._core  # pyright: ignore[reportPrivateUsage]
