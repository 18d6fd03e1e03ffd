"""Routes of jobs by id (list, read, enqueue, retry, cancel), of dead letters and of queues."""

from __future__ import annotations

from contextlib import aclosing

from backstay.errors import ConfigError
from backstay.job import flows
from backstay.job.api.options import CallOptions
from backstay.job.model import Job
from backstay.job.reserved import INTERNAL, RESERVED
from backstay.job.view import QueueInfo, decode_plain
from backstay.runtime import validation
from backstay.runtime.serialization import to_json_value
from backstay.server.http.request import Request
from backstay.server.schemas.jobs import (
    STATUSES,
    CountReply,
    DeadListQuery,
    DeadQuery,
    EnqueueReply,
    EnqueueRequest,
    Failed,
    JobInfo,
    JobsQuery,
    JobStateReply,
    QueueOnlyQuery,
    QueueView,
    ReasonRequest,
)
from backstay.server.views.pages import LARGEST_VALUE, PageBudget, read_jobs


def millis(at: int) -> int | None:
    """Convert µs to ms; None for 0, which means "not yet" in stored records."""
    return at // 1000 if at else None


def duration_ms(started: int, finished: int, now: int) -> int | None:
    """Return how many ms a job or run took, or has been running; None before it started."""
    return max(0, (finished or now) - started) // 1000 if started else None


def view(job: Job, now: int, *, listed: bool = False) -> JobInfo:
    """Build the view of a job. `listed`: as an item of a list, without large arguments and results."""
    error = job.error
    truncated = listed and len(job.args) + len(job.result or b"") > LARGEST_VALUE
    return JobInfo(
        id=job.id,
        type=job.type,
        queue=job.queue,
        status=STATUSES[job.state],
        state=job.state,
        attempt=job.attempt,
        retries=job.retries,
        priority=job.priority,
        labels=list(job.labels),
        chain=job.chain,
        run_id=job.run,
        worker_id=job.worker,
        progress=job.progress,
        cancel_requested=job.cancel_requested,
        enqueued_at_ms=job.enqueued // 1000,
        due_at_ms=job.due // 1000,
        started_at=millis(job.started),
        finished_at=millis(job.finished),
        duration_ms=duration_ms(job.started, job.finished, now),
        depends_on=list(job.after),
        waits_for=list(job.waits_for),
        args=to_json_value(decode_plain(job.args)) if not truncated else None,
        result=to_json_value(decode_plain(job.result or b"")) if not truncated else None,
        error=Failed(kind=error.kind, message=error.message, attempt=error.attempt, at_ms=error.at // 1000)
        if error is not None
        else None,
        truncated=truncated,
    )


async def list_jobs(request: Request, query: JobsQuery) -> list[JobInfo]:
    """List jobs, newest first. A page of large jobs may have fewer than `limit`: continue with `before` until a page is
    empty.
    """
    server = request.server
    found = read_jobs(
        server.core,
        server.store,
        query.limit,
        state=query.state,
        queue=query.queue,
        type=query.type,
        run=query.run,
        before=query.before,
    )
    now = server.core.engine.now()
    budget = PageBudget()
    made: list[JobInfo] = []
    async with aclosing(found) as jobs:
        async for job in jobs:
            one = view(job, now, listed=True)
            if not budget.fits(one) and made:
                break
            made.append(one)
    return made


async def enqueue_job(request: Request, body: EnqueueRequest) -> EnqueueReply:
    """Enqueue a job by the name of its type. The server need not know the type; the worker that claims the job does."""
    if body.type.startswith(RESERVED):
        raise ConfigError(f"job types that begin with {RESERVED!r} are reserved; start a workflow to run commands")
    if body.queue == INTERNAL or body.queue.startswith(RESERVED):
        raise ConfigError(f"the queue {body.queue!r} is reserved; use another name")
    await request.server.queue_quota.check(request, body.queue)
    options: CallOptions = {
        "queue": body.queue,
        "labels": body.labels,
        "priority": body.priority,
        "delay": body.delay_secs,
        "retries": body.retries,
    }
    if body.timeout_secs:
        options["timeout"] = body.timeout_secs
    handle = await request.server.stay.jobs.enqueue(body.type, body.args, **options)
    return EnqueueReply(id=handle.id, deduplicated=handle.deduplicated)


async def get_job(request: Request) -> JobInfo:
    """Return one job with its arguments, its result and its failure."""
    server = request.server
    return view(await flows.fetch_job(server.core, request.path["job"]), server.core.engine.now())


async def retry_job(request: Request) -> JobStateReply:
    """Retry a failed, cancelled, skipped or scheduled job now, with its attempts counted from zero."""
    state = await request.server.stay.jobs.retry(request.path["job"])
    return JobStateReply(id=request.path["job"], status=STATUSES[state], state=state)


async def cancel_job(request: Request, body: ReasonRequest) -> JobStateReply:
    """Cancel a job: a waiting job at once, a running job through its worker."""
    state = await flows.cancel(request.server.core, request.path["job"], body.reason)
    return JobStateReply(id=request.path["job"], status=STATUSES[state], state=state)


async def list_dead(request: Request, query: DeadListQuery) -> list[JobInfo]:
    """List dead letters, newest first: jobs that failed and are not retried."""
    wanted = JobsQuery(state="failed", queue=query.queue, type=query.type, before=query.before, limit=query.limit)
    return await list_jobs(request, wanted)


async def retry_dead(request: Request, query: DeadQuery) -> CountReply:
    """Retry all dead letters, or those of a queue or type."""
    return CountReply(count=await request.server.stay.jobs.dead.retry_all(queue=query.queue, type=query.type))


async def purge_dead(request: Request, query: QueueOnlyQuery) -> CountReply:
    """Delete all dead letters, or those of a queue."""
    return CountReply(count=await request.server.stay.jobs.dead.purge(queue=query.queue))


def queue_view(queue: QueueInfo) -> QueueView:
    return QueueView(
        name=queue.name,
        paused=queue.paused,
        rate=queue.rate,
        scheduled=queue.scheduled,
        blocked=queue.blocked,
        pending=queue.pending,
        running=queue.running,
        completed=queue.completed,
        failed=queue.failed,
        cancelled=queue.cancelled,
        skipped=queue.skipped,
        waiting_seconds=queue.waiting,
    )


async def list_queues(request: Request) -> list[QueueView]:
    """List queues with their job counts by state."""
    return [queue_view(queue) for queue in await request.server.stay.queues.list()]


async def pause_queue(request: Request) -> QueueView:
    """Pause a queue: its jobs are no longer claimed. Running jobs continue."""
    return await _set_paused(request, paused=True)


async def resume_queue(request: Request) -> QueueView:
    """Resume a paused queue."""
    return await _set_paused(request, paused=False)


async def _set_paused(request: Request, *, paused: bool) -> QueueView:
    queues = request.server.stay.queues
    name = validation.check_label(request.path["queue"], "queue")
    await (queues.pause(name) if paused else queues.resume(name))
    return queue_view(await queues.get(name))
