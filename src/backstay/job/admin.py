"""Looking at jobs and queues, and setting right what went wrong. Written once for both APIs."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, get_args

from backstay.engine.base import steady
from backstay.errors import ConfigError, ResultTimeout
from backstay.job.api.announcer import announcer_of
from backstay.job.api.manual_retry import trigger
from backstay.job.api.options import CallOptions, rate_of
from backstay.job.api.registry import store_of
from backstay.job.api.untyped import by_name
from backstay.job.flows import enqueue, known_shard, look, send, send_all
from backstay.job.model import FINAL, Enqueued, Job, Queue, State
from backstay.job.view import JobInfo, QueueInfo, WorkerInfo, job_info, queue_info, worker_info
from backstay.runtime import validation
from backstay.runtime.core import Core

#: What a list answers at most.
MOST_LISTED = 1000
#: How many are handled in one step.
PAGE = 200
#: How often somebody who waits for a queue to drain looks.
DRAIN_LOOK = 0.1


async def get(core: Core, job_id: str) -> JobInfo:
    return job_info(await look(core, job_id))


async def list_jobs(
    core: Core, *, state: State | None, queue: str, type_: str, run: str, before: str, limit: int
) -> list[JobInfo]:
    core.check_open()
    if state is not None and state not in get_args(State):
        raise ConfigError(f"state is one of {', '.join(get_args(State))}; got {state!r}")
    if validation.count(limit, "limit") > MOST_LISTED:
        raise ConfigError(f"limit is at most {MOST_LISTED}; pass before=<the last id> for the next page")
    op = store_of(core).list_jobs(state=state, queue=queue, type=type_, run=run, before=before, limit=limit)
    return [job_info(job) for job in await send(core, op)]


async def enqueue_by_name(
    core: Core, type_: str, arguments: Mapping[str, Any] | Sequence[Any], options: CallOptions
) -> Enqueued:
    if "connection" in options:
        raise ConfigError("connection= goes with the job itself: resize.options(connection=conn).enqueue(…)")
    core.check_open()
    return await enqueue(core, by_name(core, type_, arguments, options))


async def retry(core: Core, job_id: str) -> State:
    """Again, now, with all its attempts. Raises JobNotFound; RetryRefused where what it needs did not succeed;
    ConfigError for a job that needs no retry.
    """
    core.check_open()
    known_shard(core, job_id)
    job = await look(core, job_id)
    if job.state == "completed":
        raise ConfigError(f"{job_id} has completed; enqueue it anew instead")
    state = await trigger(core, job)
    if state == "pending" and job.state != "pending":
        announcer_of(core).announce({job.type: 1})
    return state


async def failed(core: Core, queue: str, type_: str) -> AsyncIterator[list[Job]]:
    """The dead letter, page by page, newest first. What is handled meanwhile does not shift the pages."""
    before = ""
    while True:
        op = store_of(core).list_jobs(state="failed", queue=queue, type=type_, before=before, limit=PAGE)
        page = await send(core, op)
        if page:
            yield page
        if len(page) < PAGE:
            return
        before = page[-1].id


async def retry_all(core: Core, queue: str, type_: str) -> int:
    """The whole dead letter, or that of a queue or type. Answers how many."""
    core.check_open()
    store, count = store_of(core), 0
    async for page in failed(core, queue, type_):
        states = await send_all(core, [store.trigger(job.id) for job in page])
        ready = Counter(job.type for job, state in zip(page, states, strict=True) if state == "pending")
        count += ready.total()
        announcer_of(core).announce(ready)
    return count


async def purge(core: Core, state: State, queue: str) -> int:
    """Delete all final jobs of a state, in steps that nobody waits for long. Answers how many."""
    core.check_open()
    if state not in FINAL:
        raise ConfigError(f"only ended jobs are purged: {', '.join(FINAL)}; cancel others first; got {state!r}")
    count = 0
    while gone := await send(core, store_of(core).purge(state, queue=queue)):
        count += gone
    return count


async def workers(core: Core) -> list[WorkerInfo]:
    core.check_open()
    found = await send(core, store_of(core).workers())
    now = core.engine.now()
    return [worker_info(worker, now) for worker in found]


async def list_queues(core: Core) -> list[QueueInfo]:
    core.check_open()
    return [queue_info(core, queue) for queue in await send(core, store_of(core).queues())]


async def get_queue(core: Core, name: str) -> QueueInfo:
    """One queue; one that nobody has used is empty."""
    validation.word(name, "queue")
    for queue in await list_queues(core):
        if queue.name == name:
            return queue
    return queue_info(core, Queue(name=name))


async def pause(core: Core, name: str, *, paused: bool) -> None:
    core.check_open()
    await send(core, store_of(core).pause(validation.word(name, "queue"), paused=paused))
    if not paused:
        await _wake(core, name)


async def limit(core: Core, name: str, rate: str | None, burst: int | None) -> None:
    core.check_open()
    validation.word(name, "queue")
    if rate is None and burst is not None:
        raise ConfigError("burst= goes with a rate, as in rate('default', '100/minute', burst=10)")
    wanted = None if rate is None else rate_of(rate, name, burst)
    await send(core, store_of(core).limit_queue(name, wanted))
    if rate is None:
        await _wake(core, name)


async def _wake(core: Core, name: str) -> None:
    """Whoever could have taken what lay there is told; which types those are, the newest tell."""
    op = store_of(core).list_jobs(state="pending", queue=name, limit=PAGE)
    ready: dict[str, int] = {}
    for job in await send(core, op):
        ready[job.type] = ready.get(job.type, 0) + 1
    announcer_of(core).announce(ready)


async def drain(core: Core, name: str, timeout: float | None) -> QueueInfo:
    """Pause a queue and wait until nothing of it runs. Raises ResultTimeout; it stays paused then."""
    await pause(core, name, paused=True)
    began = steady()
    while True:
        queue = await get_queue(core, name)
        if queue.drained:
            return queue
        if timeout is not None and steady() - began >= timeout:
            raise ResultTimeout(job_id=name, waited=timeout, state=f"paused, and {queue.running} jobs of it still run")
        await core.port.pause(DRAIN_LOOK)
        core.check_open()
