"""Routes of the worker protocol: claim a job, renew its lease, send its log, report its outcome."""

from __future__ import annotations

from backstay.errors import ConfigError
from backstay.job.reserved import INTERNAL
from backstay.runtime import validation
from backstay.server.http.request import Request
from backstay.server.schemas.jobs import (
    BeatReply,
    BeatRequest,
    CancelledReply,
    ClaimRequest,
    CompleteRequest,
    FailRequest,
    FinishReply,
    GiveBackRequest,
    Handout,
    LogAccepted,
    LogBatch,
    RunQuery,
)
from backstay.server.workers.claims import stale_lease


async def claim_job(request: Request, body: ClaimRequest) -> Handout | None:
    """Claim a job for this worker, with its lease; null when there is no job that it can run.

    The worker must send a heartbeat before `lease_ttl_secs` pass. Without `queues`, it claims command jobs.
    """
    validation.check_label(body.worker_id, "worker_id")
    for name in (*body.labels, *body.queues):
        validation.check_label(name, "label or queue")
    if INTERNAL in body.queues:
        raise ConfigError(f"the queue {INTERNAL!r} is internal: servers and schedulers run its jobs")
    return await request.server.claims.claim(request, body)


async def beat_lease(request: Request, body: BeatRequest) -> BeatReply:
    """Renew a lease. The reply says whether the job is to be cancelled."""
    return BeatReply(cancelled=await request.server.claims.renew(request.path["lease"], body.ttl_secs, body.progress))


async def complete_job(request: Request, body: CompleteRequest) -> FinishReply:
    """Complete a job. Jobs that depend on it become pending. Repeating it under the same lease is safe."""
    for key in body.outputs:
        validation.check_name(key, "an output's key")
    return await request.server.claims.complete(request.path["lease"], body.result, body.outputs)


async def fail_job(request: Request, body: FailRequest) -> FinishReply:
    """Report that the attempt failed. The job is retried if it is retryable and has attempts left; else it becomes a
    dead letter.
    """
    return await request.server.claims.fail(
        request.path["lease"], body.error, retryable=body.retryable, after=body.delay_secs, cancelled=body.cancelled
    )


async def release_job(request: Request, body: GiveBackRequest) -> FinishReply:
    """Release the job without using up an attempt: for a worker that stops, or to snooze the job."""
    return await request.server.claims.release(request.path["lease"], body.delay_secs)


async def append_logs(request: Request, body: LogBatch) -> LogAccepted:
    """Append chunks to the job's log, in order. With `sequence` numbers from 0 in each lease, repeating a batch is
    safe.
    """
    server = request.server
    lease = request.path["lease"]
    job, fence, _ = server.claims.parse_lease(lease)
    if body.chunks:
        if not await server.job_logs.append(lease, job, fence, body.chunks):
            raise stale_lease(lease)
        server.notifier.notify(f"log:{job}")
    return LogAccepted(accepted=len(body.chunks))


async def job_cancelled(request: Request, query: RunQuery) -> CancelledReply:
    """Return whether a job was cancelled or is to be. Replies to heartbeats contain the same flag."""
    job = await request.server.run_lookup.find_job(request.path["workflow"], request.path["job"], query.run)
    return CancelledReply(cancelled=job.state == "cancelled" or job.cancel_requested)
