"""What a caller does with jobs, written once for both APIs: enqueue, look, wait for the end, cancel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import add, attrgetter
from typing import Any, TypeVar

from backstay.engine.base import Op, steady
from backstay.errors import (
    EngineUnavailable,
    JobCancelled,
    JobFailed,
    JobNotFound,
    JobSkipped,
    OutcomeUnknown,
    ResultTimeout,
)
from backstay.job.api.announcer import announcer_of, worth_a_look
from backstay.job.api.caller_connection import Callers
from backstay.job.api.completion_waiters import waiters_of
from backstay.job.api.registry import store_of
from backstay.job.ids import shard_of
from backstay.job.model import FINAL, Alike, Enqueued, Job, LogLine, NewJob, State, each_kind
from backstay.runtime.core import Core
from backstay.runtime.flows import persist
from backstay.runtime.serialization import storable

T = TypeVar("T")

#: Where a test puts what is to run after each enqueueing: see `backstay.testing.jobs`.
EAGER = "job.eager"

#: Jobs that go in one step: a larger one would keep everybody else waiting.
BATCH = 1000
#: How many such steps are under way at once: the next is made here while the engine is at work.
ABREAST = 2
#: How often those who wait for an end look by themselves: at first, at last, and how that grows. The first pair is for
#: those who would be told, the second for those who cannot.
HEARD, UNHEARD, GROWTH = (1.0, 10.0), (0.1, 2.0), 1.5
#: How long somebody who waits for an end puts up with an engine that is away, in seconds.
AWAY = 60.0
#: What a job's log answers at once, and how much in all.
LOG_PAGE, LONGEST_LOG = 1000, 100_000
#: Bytes that go in one step, roughly.
BATCH_BYTES = 4 * 1024 * 1024

_id, _args, _meta = attrgetter("id"), attrgetter("args"), attrgetter("meta")


async def send(core: Core, op: Op[T]) -> T:
    """Carry out a verb that may safely be sent twice."""
    try:
        return await core.port.apply(op)
    except (OutcomeUnknown, EngineUnavailable):
        return await persist(core.port, op, retries=core.policy.lock_retries, telemetry=core.telemetry)


async def send_all(core: Core, ops: Sequence[Op[T]]) -> list[T]:
    """The same for many at once."""
    try:
        return await core.port.apply_all(ops)
    except (OutcomeUnknown, EngineUnavailable):
        return [await send(core, op) for op in ops]


async def enqueue(core: Core, job: NewJob, connection: Any = None) -> Enqueued:
    """One job. Those who wait for work are told, behind the caller's back. With a connection of the caller's: in its
    transaction.
    """
    core.check_open()
    if connection is not None:
        return (await Callers(core, connection).enqueue([job]))[0]
    store, announcer = store_of(core), announcer_of(core)
    along = announcer.goes_along((job,))
    (done,) = await send(core, store.enqueue(shard_of(job.id), (job,), tell=along))
    core.telemetry.emit("job.enqueued", type=job.type, id=done.id, deduplicated=done.deduplicated)
    if along and job.starts_at_once:
        announcer.went_along()
    elif worth_a_look(core, job, done):
        announcer.announce({job.type: 1})
    if EAGER in core.notes:
        await core.notes[EAGER]()
    return done


async def enqueue_many(core: Core, jobs: Sequence[NewJob], connection: Any = None) -> list[Enqueued]:
    """Many jobs, in batches by shard. Each batch is stored whole or not at all, and in order. With a connection of the
    caller's: in its transaction.
    """
    core.check_open()
    if connection is not None and jobs:
        return await Callers(core, connection).enqueue(jobs)
    store, announcer = store_of(core), announcer_of(core)
    done: dict[str, Enqueued] = {}

    async def one(batch: Sequence[NewJob]) -> None:
        along = announcer.goes_along(batch)
        answers = await send(core, store.enqueue(shard_of(batch[0].id), batch, tell=along))
        done.update(zip(map(_id, batch), answers, strict=True))
        ready: dict[str, int] = {}
        told = along and all(job.starts_at_once for job in each_kind(batch))
        for job, answer in () if told else zip(batch, answers, strict=True):
            if along and job.starts_at_once:
                continue
            if worth_a_look(core, job, answer):
                # Of those who wait, one look is enough to know when they are due.
                ready[job.type] = ready.get(job.type, 0) + 1 if answer.state == "pending" else ready.get(job.type, 1)
        core.telemetry.counts["job.enqueued"] += len(batch)
        if along:
            announcer.went_along()
        announcer.announce(ready)

    await core.port.each(one, batches(jobs, store.shards), ABREAST)
    if EAGER in core.notes:
        await core.notes[EAGER]()
    return list(map(done.__getitem__, map(_id, jobs)))


def batches(jobs: Sequence[NewJob], shards: int) -> list[Sequence[NewJob]]:
    """By shard, of bounded size."""
    if shards == 1:
        return list(_bounded(jobs))
    by_shard: dict[int, list[NewJob]] = {}
    for job in jobs:
        by_shard.setdefault(shard_of(job.id), []).append(job)
    return [batch for theirs in by_shard.values() for batch in _bounded(theirs)]


def _bounded(jobs: Sequence[NewJob]) -> Iterator[Sequence[NewJob]]:
    sizes = [*map(add, map(len, map(_args, jobs)), map(len, map(_meta, jobs)))]
    if jobs and len(jobs) <= BATCH and sum(sizes) <= BATCH_BYTES:
        yield jobs
        return
    begin = size = 0
    cut = Alike if isinstance(jobs, Alike) else list
    for end, more in enumerate(sizes):
        if end > begin and (end - begin >= BATCH or size + more > BATCH_BYTES):
            yield cut(jobs[begin:end])
            begin, size = end, 0
        size += more
    if jobs:
        yield cut(jobs[begin:])


def known_shard(core: Core, job_id: str) -> int:
    """The shard of a job's id. Raises JobNotFound for what is no id of this Backstay's."""
    try:
        shard = shard_of(job_id)
    except ValueError:
        shard = -1
    if not 0 <= shard < store_of(core).shards:
        raise JobNotFound(job_id=job_id)
    return shard


async def look(core: Core, job_id: str) -> Job:
    """The job as it is now. Raises JobNotFound."""
    core.check_open()
    known_shard(core, job_id)
    job = await send(core, store_of(core).get(job_id))
    if job is None:
        raise JobNotFound(job_id=job_id)
    return job


async def ended(core: Core, job_id: str, *, chain: bool, timeout: float | None) -> Job:
    """The job, or the last one of its chain, once it has ended: pushed by the hub, with a poll as the backstop. Raises
    ResultTimeout, JobNotFound.
    """
    core.check_open()
    known_shard(core, job_id)
    op = store_of(core).watch(job_id, chain=chain)
    waiters = waiters_of(core)
    began = steady()
    heard_as = job_id  # a chain's end is announced by its first job, and this may be another one of it
    latch = waiters.join(heard_as)
    try:
        hears, sure = waiters.hears, False
        nap = 0.0
        away = 0.0
        while True:
            latch.clear()
            try:
                job = await send(core, op)
                away = 0.0
            except (OutcomeUnknown, EngineUnavailable):
                # The job goes on, and so does whoever waits for it: for a while, and no longer than he said.
                away = away or steady()
                patience = AWAY if timeout is None else min(AWAY, began + timeout - away)
                if steady() - away >= patience:
                    raise
                await core.port.pause(UNHEARD[0])
                core.check_open()
                continue
            if job is None:
                raise JobNotFound(job_id=job_id)
            if job.state in FINAL and not (chain and job.followed_by):
                return job
            if chain and job.chain != heard_as:
                waiters.leave(heard_as, latch)
                heard_as = job.chain
                latch = waiters.join(heard_as)
                continue
            left = None if timeout is None else began + timeout - steady()
            if left is not None and left <= 0:
                raise ResultTimeout(job_id=job_id, waited=timeout or 0.0, state=job.state)
            if not hears:
                hears = await waiters.open()
                if hears and not sure:  # its end may have passed before anybody listened
                    sure = True
                    continue
            first, last = HEARD if hears else UNHEARD
            nap = min(max(first, nap * GROWTH), last)
            await core.port.park(latch, nap if left is None else min(nap, left))
            core.check_open()
            hears = waiters.hears
    finally:
        waiters.leave(heard_as, latch)


def completed(job: Job) -> bytes:
    """The result of a job that has ended. Raises what became of it instead."""
    error = job.error
    if job.state == "completed":
        return job.result or b""
    if job.state == "cancelled":
        raise JobCancelled(job_id=job.id, type=job.type, reason=error.message if error else "")
    if job.state == "skipped":
        raise JobSkipped(job_id=job.id, type=job.type, reason=error.message if error else "")
    raise JobFailed(
        job_id=job.id,
        type=job.type,
        kind=error.kind if error else "unknown",
        reason=error.message if error else "",
        trace=error.trace if error else "",
        attempt=job.attempt,
    )


async def cancel(core: Core, job_id: str, reason: str) -> State:
    """The state it has now: "running" is told to stop. Raises JobNotFound."""
    core.check_open()
    known_shard(core, job_id)
    state = await send(core, store_of(core).cancel(job_id, storable(reason)))
    if state is None:
        raise JobNotFound(job_id=job_id)
    return state


async def logs(core: Core, job_id: str, after: int) -> list[LogLine]:
    """All lines behind `after`, up to a hundred thousand."""
    core.check_open()
    known_shard(core, job_id)
    lines: list[LogLine] = []
    while len(lines) < LONGEST_LOG:
        page = await send(core, store_of(core).read_log(job_id, after, LOG_PAGE))
        lines += page
        if len(page) < LOG_PAGE:
            break
        after = page[-1].seq
    return lines


async def outputs(core: Core, job_id: str) -> dict[str, str]:
    core.check_open()
    known_shard(core, job_id)
    return await send(core, store_of(core).get_outputs(job_id))
