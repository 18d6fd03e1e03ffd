"""Administrative operations on jobs, queues and workers, shared by the async and the blocking API."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, get_args

from backstay.engine.base import steady
from backstay.errors import ConfigError, ResultTimeout
from backstay.job.api.announcer import ANNOUNCER
from backstay.job.api.manual_retry import retry_job
from backstay.job.api.options import CallOptions, parse_start_rate
from backstay.job.api.untyped import build_by_name
from backstay.job.flows import enqueue, fetch_job, find_shard, send, send_all
from backstay.job.model import FINAL, Enqueued, Job, Queue, State
from backstay.job.store import JOB_STORE
from backstay.job.view import JobInfo, QueueInfo, WorkerInfo, job_info, queue_info, worker_info
from backstay.runtime import validation
from backstay.runtime.core import Core

#: The largest `limit` that `list_jobs` accepts.
MOST_LISTED = 1000
#: How many jobs one store call reads when an operation goes through a queue or the dead letter.
PAGE = 200
#: Seconds between the checks by which `drain` finds out whether jobs of the queue still run.
DRAIN_POLL = 0.1


async def get(core: Core, job_id: str) -> JobInfo:
    return job_info(await fetch_job(core, job_id))


async def list_jobs(
    core: Core, *, state: State | None, queue: str, type_: str, run: str, before: str, limit: int
) -> list[JobInfo]:
    core.check_open()
    if state is not None and state not in get_args(State):
        raise ConfigError(f"state must be one of {', '.join(get_args(State))}; got {state!r}")
    if validation.check_count(limit, "limit") > MOST_LISTED:
        raise ConfigError(f"limit must be at most {MOST_LISTED}; pass before=<the last id> for the next page")
    op = core.services.get(JOB_STORE).list_jobs(
        state=state, queue=queue, type=type_, run=run, before=before, limit=limit
    )
    return [job_info(job) for job in await send(core, op)]


async def enqueue_by_name(
    core: Core, type_: str, arguments: Mapping[str, Any] | Sequence[Any], options: CallOptions
) -> Enqueued:
    if "connection" in options:
        raise ConfigError("connection= needs the job type: resize.options(connection=conn).enqueue(…)")
    core.check_open()
    return await enqueue(core, build_by_name(core, type_, arguments, options))


async def retry(core: Core, job_id: str) -> State:
    """Retry a job now, with its attempts counted from zero, and return its new state. Raises JobNotFound; RetryRefused
    if a job that it depends on did not succeed; ConfigError if the job has completed.
    """
    core.check_open()
    find_shard(core, job_id)
    job = await fetch_job(core, job_id)
    if job.state == "completed":
        raise ConfigError(f"{job_id} has completed; enqueue a new job instead")
    state = await retry_job(core, job)
    if state == "pending" and job.state != "pending":
        core.services.get(ANNOUNCER).announce({job.type: 1})
    return state


async def read_dead_letter(core: Core, queue: str, type_: str) -> AsyncIterator[list[Job]]:
    """Yield the jobs of the dead letter page by page, newest first. Each page starts after the last id of the previous
    one, so no job is skipped if others leave the dead letter between two pages.
    """
    before = ""
    while True:
        op = core.services.get(JOB_STORE).list_jobs(state="failed", queue=queue, type=type_, before=before, limit=PAGE)
        page = await send(core, op)
        if page:
            yield page
        if len(page) < PAGE:
            return
        before = page[-1].id


async def retry_all(core: Core, queue: str, type_: str) -> int:
    """Retry all jobs of the dead letter, or only those of a queue or type. Returns how many became pending."""
    core.check_open()
    store, count = core.services.get(JOB_STORE), 0
    async for page in read_dead_letter(core, queue, type_):
        states = await send_all(core, [store.trigger(job.id) for job in page])
        ready = Counter(job.type for job, state in zip(page, states, strict=True) if state == "pending")
        count += ready.total()
        core.services.get(ANNOUNCER).announce(ready)
    return count


async def purge(core: Core, state: State, queue: str) -> int:
    """Delete all jobs in the final state `state`, in short transactions. Returns how many. Raises ConfigError if the
    state is not final.
    """
    core.check_open()
    if state not in FINAL:
        raise ConfigError(f"only finished jobs can be purged ({', '.join(FINAL)}); cancel the others; got {state!r}")
    count = 0
    while gone := await send(core, core.services.get(JOB_STORE).purge(state, queue=queue)):
        count += gone
    return count


async def list_workers(core: Core) -> list[WorkerInfo]:
    core.check_open()
    found = await send(core, core.services.get(JOB_STORE).workers())
    now = core.engine.now()
    return [worker_info(worker, now) for worker in found]


async def list_queues(core: Core) -> list[QueueInfo]:
    core.check_open()
    return [queue_info(core, queue) for queue in await send(core, core.services.get(JOB_STORE).queues())]


async def get_queue(core: Core, name: str) -> QueueInfo:
    """Return one queue; for an unknown name, a queue without jobs."""
    validation.check_label(name, "queue")
    for queue in await list_queues(core):
        if queue.name == name:
            return queue
    return queue_info(core, Queue(name=name))


async def pause(core: Core, name: str, *, paused: bool) -> None:
    core.check_open()
    await send(core, core.services.get(JOB_STORE).pause(validation.check_label(name, "queue"), paused=paused))
    if not paused:
        await _wake(core, name)


async def limit_queue(core: Core, name: str, rate: str | None, burst: int | None) -> None:
    core.check_open()
    validation.check_label(name, "queue")
    if rate is None and burst is not None:
        raise ConfigError("burst= needs a rate, as in rate('default', '100/minute', burst=10)")
    wanted = None if rate is None else parse_start_rate(rate, name, burst)
    await send(core, core.services.get(JOB_STORE).limit_queue(name, wanted))
    if rate is None:
        await _wake(core, name)


async def _wake(core: Core, name: str) -> None:
    """Announce the pending jobs of a queue to workers: how many there are of each type. Only the newest PAGE pending
    jobs are counted.
    """
    op = core.services.get(JOB_STORE).list_jobs(state="pending", queue=name, limit=PAGE)
    ready: dict[str, int] = {}
    for job in await send(core, op):
        ready[job.type] = ready.get(job.type, 0) + 1
    core.services.get(ANNOUNCER).announce(ready)


async def drain(core: Core, name: str, timeout: float | None) -> QueueInfo:
    """Pause a queue and wait until none of its jobs run. Raises ResultTimeout after `timeout` seconds. The queue stays
    paused in both cases.
    """
    await pause(core, name, paused=True)
    began = steady()
    while True:
        queue = await get_queue(core, name)
        if queue.drained:
            return queue
        if timeout is not None and steady() - began >= timeout:
            raise ResultTimeout(job_id=name, waited=timeout, state=f"paused with {queue.running} jobs still running")
        await core.port.pause(DRAIN_POLL)
        core.check_open()
