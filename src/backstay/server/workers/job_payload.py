"""Builds the reply to a claim: the job and its lease as HTTP workers get them."""

from __future__ import annotations

from math import isfinite

from backstay.engine.base import Micros
from backstay.job import metadata
from backstay.job.api.retry import DEFAULT, Backoff
from backstay.job.model import Claimed
from backstay.server.schemas.jobs import (
    BackoffView,
    ExponentialDelay,
    FixedDelay,
    Handout,
    Lease,
    QueuedJob,
    RetryPolicy,
)
from backstay.server.views.run_lookup import JobDetails
from backstay.server.workers.lease_names import make_lease_name


def build_handout(job: Claimed, details: JobDetails, worker: str, ttl: Micros) -> Handout:
    meta = metadata.unpack(job.meta)
    queued = QueuedJob(
        job_id=details.name,
        workflow_id=details.workflow,
        run_id=job.run,
        uid=job.id,
        command=details.command,
        required_labels=list(job.labels),
        retry_policy=build_retry_policy(job.retries, meta.backoff),
        attempt=job.attempt,
        upstream_outputs=details.upstream,
        enqueued_at_ms=job.enqueued // 1000,
        delayed_until_ms=job.due // 1000,
        type=job.type,
        queue=job.queue,
        args=details.args,
        timeout_secs=meta.timeout if isfinite(meta.timeout) else 0.0,
        env=details.env,
        inputs=details.inputs,
        upstream_results=details.results,
        chain=job.chain or job.id,
        priority=job.priority,
        snoozes=job.snoozes,
    )
    lease = Lease(
        lease_id=make_lease_name(job.id, job.fence, ttl),
        job_id=details.name,
        workflow_id=details.workflow,
        run_id=job.run,
        worker_id=worker,
        ttl_secs=ttl / 1_000_000,
        granted_at_ms=(job.until - ttl) // 1000,
    )
    return Handout(job=queued, lease=lease)


def build_retry_policy(retries: int, backoff: Backoff | None) -> RetryPolicy:
    if not retries:
        return RetryPolicy(max_retries=0, backoff="None")
    used = backoff or DEFAULT
    if used.factor == 1.0:
        return RetryPolicy(max_retries=retries, backoff=BackoffView(fixed=FixedDelay(delay_secs=used.base)))
    grows = ExponentialDelay(base_secs=used.base, max_secs=used.most)
    return RetryPolicy(max_retries=retries, backoff=BackoffView(exponential=grows))
