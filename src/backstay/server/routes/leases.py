"""Routes of the worker protocol: claim a job, renew its lease, send its log, report its outcome."""

from __future__ import annotations

from backstay.errors import ConfigError
from backstay.job.reserved import INTERNAL
from backstay.runtime import validation
from backstay.server.http.request import Request
from backstay.server.quotas import check_seconds
from backstay.server.schemas.jobs import (
    BeatReply,
    BeatRequest,
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
from backstay.server.workers.lease_names import LeaseRef, stale_lease


async def find_lease(request: Request) -> LeaseRef:
    """Return the lease that the path names. Raises Refusal (409) unless the principal's owner claimed it."""
    return await request.server.claims.names.check(request.principal, request.path["lease"])


async def claim_job(request: Request, body: ClaimRequest) -> Handout | None:
    """Claim a job for this worker. Returns the job and its lease; null when there is no job that the worker can run.

    The worker must send a heartbeat before `lease_ttl_secs` pass. Without `queues`, it claims command jobs.
    """
    validation.check_label(body.worker_id, "worker_id")
    for name in (*body.labels, *body.queues):
        validation.check_label(name, "label or queue")
    check_seconds(request, body.lease_ttl_secs, request.server.settings.max_lease, "lease_ttl_secs")
    if INTERNAL in body.queues:
        raise ConfigError(f"the queue {INTERNAL!r} is internal: servers and schedulers run its jobs")
    await request.server.heartbeats.check_owner(body.worker_id, request.principal.owner)
    return await request.server.claims.claim(request, body)


async def beat_lease(request: Request, body: BeatRequest) -> BeatReply:
    """Renew a lease. The reply says whether the job is to be cancelled."""
    check_seconds(request, body.ttl_secs, request.server.settings.max_lease, "ttl_secs")
    lease = await find_lease(request)
    return BeatReply(cancelled=await request.server.claims.renew(lease, body.ttl_secs, body.progress))


async def complete_job(request: Request, body: CompleteRequest) -> FinishReply:
    """Complete a job. Jobs that depend on it become pending. Repeating the request under the same lease is safe."""
    for key in body.outputs:
        validation.check_name(key, "an output's key")
    return await request.server.claims.complete(await find_lease(request), body.result, body.outputs)


async def fail_job(request: Request, body: FailRequest) -> FinishReply:
    """Report that the attempt failed. The job is retried if it is retryable and has attempts left; else it becomes a
    dead letter.
    """
    lease = await find_lease(request)
    return await request.server.claims.fail(
        lease, body.error, retryable=body.retryable, after=body.delay_secs, cancelled=body.cancelled
    )


async def release_job(request: Request, body: GiveBackRequest) -> FinishReply:
    """Release the job without using up an attempt: for a worker that stops, or to snooze the job."""
    return await request.server.claims.release(await find_lease(request), body.delay_secs)


async def append_logs(request: Request, body: LogBatch) -> LogAccepted:
    """Append chunks to the job's log, in order. If they have `sequence` numbers, which count from 0 in each lease,
    repeating a batch is safe.
    """
    server = request.server
    lease = await find_lease(request)
    if body.chunks:
        if not await server.job_logs.append(lease.key, lease.job, lease.fence, body.chunks):
            raise stale_lease(lease.name)
        server.notifier.notify(f"log:{lease.job}")
    return LogAccepted(accepted=len(body.chunks))


async def job_cancelled(request: Request, query: RunQuery) -> bool:
    """Return whether a job was cancelled, or its cancellation was requested: `true` or `false`. Replies to heartbeats
    contain the same flag.
    """
    job = await request.server.run_lookup.find_job(request.path["workflow"], request.path["job"], query.run)
    return job.state == "cancelled" or job.cancel_requested
