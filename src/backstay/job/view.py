"""Read-only views of jobs, queues and workers: times with a time zone, arguments by name."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from backstay.engine.base import DECODE_ERRORS, Micros
from backstay.job.model import Failure, Job, Queue, State, WorkerRecord
from backstay.job.worker.heartbeat import Status, status_of
from backstay.runtime.core import Core
from backstay.runtime.lease import instant
from backstay.runtime.rate import Rate
from backstay.runtime.serialization import PLAIN_CODEC


@dataclass(frozen=True, slots=True)
class JobInfo:
    """A snapshot of one job."""

    id: str
    type: str
    queue: str
    state: State
    #: Arguments by name, as plain data; None if they cannot be decoded.
    args: dict[str, Any] | None
    labels: tuple[str, ...]
    priority: int
    #: The number of attempts so far.
    attempt: int
    #: How many attempts are allowed after the first.
    retries: int
    snoozes: int
    chain: str
    run: str
    worker: str
    #: 0 to 1, as reported by the handler.
    progress: float
    cancel_requested: bool
    enqueued: datetime | None
    due: datetime | None
    started: datetime | None
    finished: datetime | None
    #: When the lease of the running job expires; None if the job does not run.
    lease_until: datetime | None
    #: The result as plain data; None if there is none.
    result: Any
    error: Failure | None
    #: The job's unique key; "" if it has none.
    unique: str
    #: The job's concurrency key; "" if it has none.
    concurrency: str
    #: The ids of the chains that this job still waits for.
    waits_for: tuple[str, ...]
    #: The id of the job that continues the chain after this job; "" if this job is the last one of its chain.
    followed_by: str


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A snapshot of one queue, with the number of its jobs by state."""

    name: str
    paused: bool
    #: The rate limit, as in "100/minute"; "" if there is none.
    rate: str
    scheduled: int
    blocked: int
    pending: int
    running: int
    completed: int
    failed: int
    cancelled: int
    skipped: int
    #: Seconds since the oldest pending job became due.
    waiting: float

    @property
    def drained(self) -> bool:
        """Whether the queue is paused and none of its jobs run."""
        return self.paused and not self.running


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker, as of its last heartbeat."""

    id: str
    #: "offline" means that the worker missed three heartbeats.
    status: Status
    queues: tuple[str, ...]
    labels: tuple[str, ...]
    concurrency: int
    host: str
    pid: int
    #: The number of jobs that the worker runs.
    running: int
    #: The id of one of these jobs.
    current: str
    draining: bool
    registered: datetime | None
    beat: datetime | None


def decode_plain(raw: bytes) -> Any:
    """Decode a value to plain data (dicts, lists, strings, numbers); None if it cannot be decoded."""
    try:
        return PLAIN_CODEC.decode(raw) if raw else None
    except DECODE_ERRORS:
        return None


def _when(at: Micros) -> datetime | None:
    return instant(at) if at else None


def job_info(job: Job) -> JobInfo:
    args: Any = decode_plain(job.args) if job.args else {}
    return JobInfo(
        id=job.id,
        type=job.type,
        queue=job.queue,
        state=job.state,
        args=cast("dict[str, Any]", args) if isinstance(args, dict) else None,
        labels=job.labels,
        priority=job.priority,
        attempt=job.attempt,
        retries=job.retries,
        snoozes=job.snoozes,
        chain=job.chain,
        run=job.run,
        worker=job.worker,
        progress=job.progress,
        cancel_requested=job.cancel_requested,
        enqueued=_when(job.enqueued),
        due=_when(job.due),
        started=_when(job.started),
        finished=_when(job.finished),
        lease_until=_when(job.lease_until),
        result=decode_plain(job.result or b""),
        error=job.error,
        unique=job.unique.key if job.unique else "",
        concurrency=job.concurrency.key if job.concurrency else "",
        waits_for=job.waits_for,
        followed_by=job.followed_by,
    )


def worker_info(worker: WorkerRecord, now: Micros) -> WorkerInfo:
    return WorkerInfo(
        id=worker.id,
        status=status_of(worker, now),
        queues=worker.queues,
        labels=worker.labels,
        concurrency=worker.concurrency,
        host=worker.host,
        pid=worker.pid,
        running=worker.running,
        current=worker.current,
        draining=worker.draining,
        registered=_when(worker.registered),
        beat=_when(worker.beat),
    )


def queue_info(core: Core, queue: Queue) -> QueueInfo:
    rate = ""
    if queue.rate is not None:
        window = queue.rate.interval * queue.rate.burst // 1000
        rate = str(Rate(queue.rate.burst, max(window, 1)))
    return QueueInfo(
        name=queue.name,
        paused=queue.paused,
        rate=rate,
        scheduled=queue.scheduled,
        blocked=queue.blocked,
        pending=queue.pending,
        running=queue.running,
        completed=queue.completed,
        failed=queue.failed,
        cancelled=queue.cancelled,
        skipped=queue.skipped,
        waiting=max(core.engine.now() - queue.oldest_due, 0) / 1_000_000 if queue.oldest_due else 0.0,
    )
