"""Builds the reply to a claim: the job and its lease as HTTP workers get them."""

from __future__ import annotations

from math import isfinite

from backstay.engine.base import Micros
from backstay.job import metadata
from backstay.job.exchange import Claimed
from backstay.server.schemas.jobs import Handout, Lease, QueuedJob
from backstay.server.views.run_lookup import JobDetails
from backstay.server.views.whole_numbers import build_retry_policy, count_from_zero, round_up, to_millis


def build_handout(job: Claimed, details: JobDetails, worker: str, ttl: Micros, lease_name: str) -> Handout:
    meta = metadata.unpack(job.meta)
    timeout = meta.timeout if isfinite(meta.timeout) else 0.0
    queued = QueuedJob(
        job_id=details.name,
        workflow_id=details.workflow,
        run_id=job.run,
        uid=job.id,
        command=details.command,
        required_labels=list(job.labels),
        retry_policy=build_retry_policy(job.retries, meta.backoff),
        attempt=count_from_zero(job.attempt),
        upstream_outputs=details.upstream,
        enqueued_at_ms=job.enqueued // 1000,
        delayed_until_ms=job.due // 1000,
        type=job.type,
        queue=job.queue,
        args=details.args,
        timeout_secs=round_up(timeout),
        timeout_ms=to_millis(timeout),
        env=details.env,
        inputs=details.inputs,
        upstream_results=details.results,
        chain=job.chain or job.id,
        priority=job.priority,
        snoozes=job.snoozes,
    )
    lease = Lease(
        lease_id=lease_name,
        job_id=details.name,
        workflow_id=details.workflow,
        run_id=job.run,
        worker_id=worker,
        ttl_secs=max(1, ttl // 1_000_000),
        granted_at_ms=(job.until - ttl) // 1000,
        ttl_ms=ttl // 1000,
    )
    return Handout(job=queued, lease=lease)
