"""The worker protocol: claim a job, keep its lease, say what became of it."""

from __future__ import annotations

from backstay.errors import ConfigError
from backstay.job.reserved import INTERNAL
from backstay.runtime import validation
from backstay.server.http.request import Call
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
from backstay.server.workers.claims import stale


async def claim_job(call: Call, body: ClaimRequest) -> Handout | None:
    """A job for this worker, and its lease; null when there is none that it can do.

    The lease must be kept alive with heartbeats before `lease_ttl_secs` are over. Without `queues`, command jobs.
    """
    validation.word(body.worker_id, "worker_id")
    for name in (*body.labels, *body.queues):
        validation.word(name, "label or queue")
    if INTERNAL in body.queues:
        raise ConfigError(f"the queue {INTERNAL!r} is Backstay's own; the server looks after it")
    return await call.server.claims.claim(call, body)


async def beat_lease(call: Call, body: BeatRequest) -> BeatReply:
    """Keep a lease alive, and learn whether somebody wants its job ended."""
    return BeatReply(cancelled=await call.server.claims.beat(call.path["lease"], body.ttl_secs, body.progress))


async def complete_job(call: Call, body: CompleteRequest) -> FinishReply:
    """The job is done. Jobs that wait for it start; sent again by the same lease, it is answered again."""
    for key in body.outputs:
        validation.name(key, "an output's key")
    return await call.server.claims.complete(call.path["lease"], body.result, body.outputs)


async def fail_job(call: Call, body: FailRequest) -> FinishReply:
    """The attempt failed. It is tried again later if it may be and attempts are left; else it is a dead letter."""
    return await call.server.claims.fail(
        call.path["lease"], body.error, retryable=body.retryable, after=body.delay_secs, cancelled=body.cancelled
    )


async def release_job(call: Call, body: GiveBackRequest) -> FinishReply:
    """Give the job back without using up an attempt: for a worker that stops, or for a job whose time has not come."""
    return await call.server.claims.release(call.path["lease"], body.delay_secs)


async def append_logs(call: Call, body: LogBatch) -> LogAccepted:
    """Pieces of the job's output, in order. Number them from 0 in each lease, and a batch may be sent again."""
    server = call.server
    lease = call.path["lease"]
    job, fence, _ = server.claims.parts(lease)
    if body.chunks:
        if not await server.logbook.append(lease, job, fence, body.chunks):
            raise stale(lease)
        server.ears.ring(f"log:{job}")
    return LogAccepted(accepted=len(body.chunks))


async def job_cancelled(call: Call, query: RunQuery) -> CancelledReply:
    """Whether a job was cancelled, or is to be. Heartbeats tell the same."""
    job = await call.server.runbook.find_job(call.path["workflow"], call.path["job"], query.run)
    return CancelledReply(cancelled=job.state == "cancelled" or job.cancel_requested)
