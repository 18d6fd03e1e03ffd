"""The caller's operations on jobs, shared by the async and the blocking API: enqueue, fetch, wait, cancel."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
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
from backstay.job.api.announcer import ANNOUNCER, should_announce
from backstay.job.api.caller_connection import CallerConnection
from backstay.job.api.completion_waiters import COMPLETION_WAITERS
from backstay.job.ids import shard_of
from backstay.job.model import FINAL, Enqueued, Job, LogLine, NewJob, State, UniformBatch, distinct_templates
from backstay.job.store import JOB_STORE
from backstay.runtime.core import Core
from backstay.runtime.lost_replies import retry_idempotent
from backstay.runtime.serialization import escape_surrogates
from backstay.runtime.services import Service

T = TypeVar("T")

#: Set by tests that run jobs as soon as they are enqueued (`backstay.testing.jobs.eager`): called after each enqueue.
EAGER: Service[Callable[[], Awaitable[None]]] = Service("runner of eager jobs")

#: The most jobs stored in one transaction: a larger one would delay all other writers.
BATCH = 1000
#: How many batches are handled at once: one can be encoded while the engine stores the other.
CONCURRENT_BATCHES = 2
#: Poll intervals of a caller that waits for a job to end, in seconds, as pairs of the first and the longest interval.
#: NOTIFIED_POLL applies while the hub's notifications arrive, BLIND_POLL while they do not. After each poll the
#: interval grows by the factor POLL_GROWTH.
NOTIFIED_POLL, BLIND_POLL, POLL_GROWTH = (1.0, 10.0), (0.1, 2.0), 1.5
#: Seconds that a caller waiting for a result tolerates an unavailable engine.
OUTAGE_PATIENCE = 60.0
#: LOG_PAGE: how many log lines one store call reads. LONGEST_LOG: how many lines `logs` returns at most.
LOG_PAGE, LONGEST_LOG = 1000, 100_000
#: Approximate size limit of one batch, in bytes.
BATCH_BYTES = 4 * 1024 * 1024

_id, _args, _meta = attrgetter("id"), attrgetter("args"), attrgetter("meta")


async def send(core: Core, op: Op[T]) -> T:
    """Send an idempotent store operation to the engine and return its result. It is sent again if the engine is
    unavailable or the outcome is unknown.
    """
    try:
        return await core.port.apply(op)
    except (OutcomeUnknown, EngineUnavailable):
        return await retry_idempotent(core.port, op, retries=core.policy.lock_retries, telemetry=core.telemetry)


async def send_all(core: Core, ops: Sequence[Op[T]]) -> list[T]:
    """Send idempotent store operations to the engine in one batch and return their results. They are sent again, one by
    one, if the engine is unavailable or the outcome is unknown.
    """
    try:
        return await core.port.apply_all(ops)
    except (OutcomeUnknown, EngineUnavailable):
        return [await send(core, op) for op in ops]


async def enqueue(core: Core, job: NewJob, connection: Any = None) -> Enqueued:
    """Store one job and announce it to workers. With `connection`, it is stored in the caller's transaction."""
    core.check_open()
    if connection is not None:
        return (await CallerConnection(core, connection).enqueue([job]))[0]
    store, announcer = core.services.get(JOB_STORE), core.services.get(ANNOUNCER)
    inline = announcer.announces_inline((job,))
    (done,) = await send(core, store.enqueue(shard_of(job.id), (job,), announce=inline))
    core.telemetry.emit("job.enqueued", type=job.type, id=done.id, deduplicated=done.deduplicated)
    if inline and job.starts_at_once:
        announcer.record_inline()
    elif should_announce(core, job, done):
        announcer.announce({job.type: 1})
    if (run_eagerly := core.services.find(EAGER)) is not None:
        await run_eagerly()
    return done


async def enqueue_many(core: Core, jobs: Sequence[NewJob], connection: Any = None) -> list[Enqueued]:
    """Store many jobs in batches, each with jobs of one shard. A batch is atomic and keeps the order of its jobs. With
    `connection`, all jobs are stored in the caller's transaction.
    """
    core.check_open()
    if connection is not None and jobs:
        return await CallerConnection(core, connection).enqueue(jobs)
    store, announcer = core.services.get(JOB_STORE), core.services.get(ANNOUNCER)
    done: dict[str, Enqueued] = {}

    async def store_batch(batch: Sequence[NewJob]) -> None:
        inline = announcer.announces_inline(batch)
        answers = await send(core, store.enqueue(shard_of(batch[0].id), batch, announce=inline))
        done.update(zip(map(_id, batch), answers, strict=True))
        ready: dict[str, int] = {}
        all_announced = inline and all(job.starts_at_once for job in distinct_templates(batch))
        for job, answer in () if all_announced else zip(batch, answers, strict=True):
            if inline and job.starts_at_once:
                continue
            if should_announce(core, job, answer):
                # `ready` is how many workers to wake for each type: one for each pending job. For all scheduled jobs of
                # a type one worker is enough: the reply to its claim says when the next job is due.
                ready[job.type] = ready.get(job.type, 0) + 1 if answer.state == "pending" else ready.get(job.type, 1)
        core.telemetry.counts["job.enqueued"] += len(batch)
        if inline:
            announcer.record_inline()
        announcer.announce(ready)

    await core.port.for_each(store_batch, split_batches(jobs, store.shards), CONCURRENT_BATCHES)
    if (run_eagerly := core.services.find(EAGER)) is not None:
        await run_eagerly()
    return list(map(done.__getitem__, map(_id, jobs)))


def split_batches(jobs: Sequence[NewJob], shards: int) -> list[Sequence[NewJob]]:
    """Split jobs into batches, each with jobs of one shard, at most BATCH of them and about BATCH_BYTES bytes."""
    if shards == 1:
        return list(_split_by_size(jobs))
    by_shard: dict[int, list[NewJob]] = {}
    for job in jobs:
        by_shard.setdefault(shard_of(job.id), []).append(job)
    return [batch for theirs in by_shard.values() for batch in _split_by_size(theirs)]


def _split_by_size(jobs: Sequence[NewJob]) -> Iterator[Sequence[NewJob]]:
    sizes = [*map(add, map(len, map(_args, jobs)), map(len, map(_meta, jobs)))]
    if jobs and len(jobs) <= BATCH and sum(sizes) <= BATCH_BYTES:
        yield jobs
        return
    begin = size = 0
    cut = UniformBatch if isinstance(jobs, UniformBatch) else list
    for end, more in enumerate(sizes):
        if end > begin and (end - begin >= BATCH or size + more > BATCH_BYTES):
            yield cut(jobs[begin:end])
            begin, size = end, 0
        size += more
    if jobs:
        yield cut(jobs[begin:])


def find_shard(core: Core, job_id: str) -> int:
    """Return the shard that a job id contains. Raises JobNotFound if it is not an id of this Backstay."""
    try:
        shard = shard_of(job_id)
    except ValueError:
        shard = -1
    if not 0 <= shard < core.services.get(JOB_STORE).shards:
        raise JobNotFound(job_id=job_id)
    return shard


async def fetch_job(core: Core, job_id: str) -> Job:
    """Return the job's current record. Raises JobNotFound."""
    core.check_open()
    find_shard(core, job_id)
    job = await send(core, core.services.get(JOB_STORE).get(job_id))
    if job is None:
        raise JobNotFound(job_id=job_id)
    return job


async def wait_finished(core: Core, job_id: str, *, chain: bool, timeout: float | None) -> Job:
    """Wait until the job (with `chain`: the last job of its chain) has ended, and return its record. The hub notifies
    the caller; because a notification may be lost, the caller also polls. Raises ResultTimeout, JobNotFound.
    """
    core.check_open()
    find_shard(core, job_id)
    op = core.services.get(JOB_STORE).watch(job_id, chain=chain)
    waiters = core.services.get(COMPLETION_WAITERS)
    began = steady()
    # The notification of a chain's end names the chain's first job. If `job_id` turns out to be a later job of the
    # chain, the loop below waits for the notification of the first job instead.
    notified_as = job_id
    latch = waiters.add(notified_as)
    try:
        listening, rechecked = waiters.is_listening, False
        interval = 0.0
        away = 0.0
        while True:
            latch.clear()
            try:
                job = await send(core, op)
                away = 0.0
            except (OutcomeUnknown, EngineUnavailable):
                # The job's handler may still run during an outage of the engine. So do not fail at once, but wait for
                # the engine, at most OUTAGE_PATIENCE and not beyond the caller's timeout.
                away = away or steady()
                patience = OUTAGE_PATIENCE if timeout is None else min(OUTAGE_PATIENCE, began + timeout - away)
                if steady() - away >= patience:
                    raise
                await core.port.pause(BLIND_POLL[0])
                core.check_open()
                continue
            if job is None:
                raise JobNotFound(job_id=job_id)
            if job.state in FINAL and not (chain and job.followed_by):
                return job
            if chain and job.chain != notified_as:
                waiters.remove(notified_as, latch)
                notified_as = job.chain
                latch = waiters.add(notified_as)
                continue
            left = None if timeout is None else began + timeout - steady()
            if left is not None and left <= 0:
                raise ResultTimeout(job_id=job_id, waited=timeout or 0.0, state=job.state)
            if not listening:
                listening = await waiters.listen()
                if listening and not rechecked:  # the job may have ended before the subscription was active
                    rechecked = True
                    continue
            first, last = NOTIFIED_POLL if listening else BLIND_POLL
            interval = min(max(first, interval * POLL_GROWTH), last)
            await core.park(latch, interval if left is None else min(interval, left))
            listening = waiters.is_listening
    finally:
        waiters.remove(notified_as, latch)


def result_or_raise(job: Job) -> bytes:
    """Return a completed job's encoded result. Raises JobFailed, JobCancelled or JobSkipped for the other states."""
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
    """Cancel a job and return its state; "running" means that its handler is asked to stop. Raises JobNotFound."""
    core.check_open()
    find_shard(core, job_id)
    state = await send(core, core.services.get(JOB_STORE).cancel(job_id, escape_surrogates(reason)))
    if state is None:
        raise JobNotFound(job_id=job_id)
    return state


async def logs(core: Core, job_id: str, after: int) -> list[LogLine]:
    """Return the log lines after the line number `after`, at most LONGEST_LOG."""
    core.check_open()
    find_shard(core, job_id)
    lines: list[LogLine] = []
    while len(lines) < LONGEST_LOG:
        page = await send(core, core.services.get(JOB_STORE).read_log(job_id, after, LOG_PAGE))
        lines += page
        if len(page) < LOG_PAGE:
            break
        after = page[-1].seq
    return lines


async def outputs(core: Core, job_id: str) -> dict[str, str]:
    core.check_open()
    find_shard(core, job_id)
    return await send(core, core.services.get(JOB_STORE).get_outputs(job_id))
