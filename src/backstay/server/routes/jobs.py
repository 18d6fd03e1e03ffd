"""Jobs by their own ids: look, enqueue, retry, cancel; the dead letter; queues."""

from __future__ import annotations

from backstay.errors import ConfigError
from backstay.job import flows
from backstay.job.api.options import CallOptions
from backstay.job.flows import send
from backstay.job.model import Job
from backstay.job.reserved import INTERNAL, RESERVED
from backstay.job.view import QueueInfo, plain
from backstay.runtime import validation
from backstay.runtime.serialization import jsonable
from backstay.server.http.request import Call
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


def millis(at: int) -> int | None:
    """µs of the engine as ms; None: not yet."""
    return at // 1000 if at else None


def seconds_of(job: Job, now: int) -> float | None:
    """How long it ran, or has run so far."""
    if not job.started:
        return None
    return max(0, (job.finished or now) - job.started) / 1_000_000


def view(job: Job, now: int) -> JobInfo:
    error = job.error
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
        duration_secs=seconds_of(job, now),
        depends_on=list(job.after),
        waits_for=list(job.waits_for),
        args=jsonable(plain(job.args)),
        result=jsonable(plain(job.result or b"")),
        error=Failed(kind=error.kind, message=error.message, attempt=error.attempt, at_ms=error.at // 1000)
        if error is not None
        else None,
    )


async def list_jobs(call: Call, query: JobsQuery) -> list[JobInfo]:
    """Jobs, newest first."""
    server = call.server
    op = server.store.list_jobs(
        state=query.state,
        queue=query.queue,
        type=query.type,
        run=query.run,
        before=query.before,
        limit=query.limit,
    )
    now = server.core.engine.now()
    return [view(job, now) for job in await send(server.core, op)]


async def enqueue_job(call: Call, body: EnqueueRequest) -> EnqueueReply:
    """Enqueue a job by the name of its type. Whoever claims it knows what to do."""
    if body.type.startswith(RESERVED):
        raise ConfigError(f"types that begin with {RESERVED!r} are Backstay's own; run a workflow for commands")
    if body.queue == INTERNAL or body.queue.startswith(RESERVED):
        raise ConfigError(f"the queue {body.queue!r} is Backstay's own; name another one")
    options: CallOptions = {
        "queue": body.queue,
        "labels": body.labels,
        "priority": body.priority,
        "delay": body.delay_secs,
        "retries": body.retries,
    }
    if body.timeout_secs:
        options["timeout"] = body.timeout_secs
    handle = await call.server.stay.jobs.enqueue(body.type, body.args, **options)
    return EnqueueReply(id=handle.id, deduplicated=handle.deduplicated)


async def get_job(call: Call) -> JobInfo:
    """One job, with its arguments, its result and why it failed."""
    server = call.server
    return view(await flows.look(server.core, call.path["job"]), server.core.engine.now())


async def retry_job(call: Call) -> JobStateReply:
    """Again, now, with all its attempts: for jobs that failed, were cancelled or skipped, or are scheduled."""
    state = await call.server.stay.jobs.retry(call.path["job"])
    return JobStateReply(id=call.path["job"], status=STATUSES[state], state=state)


async def cancel_job(call: Call, body: ReasonRequest) -> JobStateReply:
    """End it: at once if it waits, by its worker if it runs."""
    state = await flows.cancel(call.server.core, call.path["job"], body.reason)
    return JobStateReply(id=call.path["job"], status=STATUSES[state], state=state)


async def list_dead(call: Call, query: DeadListQuery) -> list[JobInfo]:
    """The dead letter: jobs whose attempts are used up, newest first."""
    wanted = JobsQuery(state="failed", queue=query.queue, type=query.type, before=query.before, limit=query.limit)
    return await list_jobs(call, wanted)


async def retry_dead(call: Call, query: DeadQuery) -> CountReply:
    """Try everything in the dead letter again, or that of a queue or type."""
    return CountReply(count=await call.server.stay.jobs.dead.retry_all(queue=query.queue, type=query.type))


async def purge_dead(call: Call, query: QueueOnlyQuery) -> CountReply:
    """Delete everything in the dead letter, or that of a queue."""
    return CountReply(count=await call.server.stay.jobs.dead.purge(queue=query.queue))


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


async def list_queues(call: Call) -> list[QueueView]:
    """Queues and what is in them."""
    return [queue_view(queue) for queue in await call.server.stay.queues.list()]


async def pause_queue(call: Call) -> QueueView:
    """Hand out nothing of this queue; what runs goes on."""
    return await _paused(call, paused=True)


async def resume_queue(call: Call) -> QueueView:
    """Hand out jobs of this queue again."""
    return await _paused(call, paused=False)


async def _paused(call: Call, *, paused: bool) -> QueueView:
    queues = call.server.stay.queues
    name = validation.word(call.path["queue"], "queue")
    await (queues.pause(name) if paused else queues.resume(name))
    return queue_view(await queues.get(name))
