"""Bodies of jobs, queues, workers and the worker protocol. Field names are those of the reference project."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from backstay.job.model import State
from backstay.job.reserved import COMMANDS
from backstay.server.http.route import Body, Query, Reply
from backstay.server.schemas.common import (
    Labels,
    MaybeName,
    MaybeSeconds,
    Millis,
    Name,
    PageSize,
    PollSeconds,
    Sequence,
    Words,
)
from backstay.workflow.expressions.expression import Result

#: What a job is over HTTP: scheduled, blocked and pending are queued.
Status = Literal["queued", "running", "success", "failure", "skipped", "cancelled"]
STATUSES: dict[str, Status] = {
    "scheduled": "queued",
    "blocked": "queued",
    "pending": "queued",
    "running": "running",
    "completed": "success",
    "failed": "failure",
    "cancelled": "cancelled",
    "skipped": "skipped",
}
LeaseSeconds = Annotated[float, Meta(ge=1, le=86400)]
Outputs = dict[str, str]


class FixedDelay(Reply):
    delay_secs: float


class ExponentialDelay(Reply):
    base_secs: float
    max_secs: float


class BackoffView(Reply):
    """One of the two."""

    fixed: FixedDelay | UnsetType = msgspec.field(default=UNSET, name="Fixed")
    exponential: ExponentialDelay | UnsetType = msgspec.field(default=UNSET, name="Exponential")


class RetryPolicy(Reply):
    max_retries: int
    backoff: Literal["None"] | BackoffView


class QueuedJob(Reply):
    """A job in a worker's hands. `job_id` is its name in its workflow, or its own id where it has none."""

    job_id: str
    workflow_id: str
    run_id: str
    #: Its own id, whatever it is called.
    uid: str
    #: What to run in a shell; "" for a job that is a function.
    command: str
    required_labels: list[str]
    retry_policy: RetryPolicy
    #: Counted from 1.
    attempt: int
    #: What the jobs before it left: job, key, text.
    upstream_outputs: dict[str, dict[str, str]]
    enqueued_at_ms: Millis
    delayed_until_ms: Millis
    type: str
    queue: str
    #: A function's arguments by name.
    args: Any = None
    #: Seconds that an attempt may take; 0: any number.
    timeout_secs: float = 0.0
    #: For the command: its own, and those that tell of inputs, of what came before, and of who it is.
    env: dict[str, str] = {}
    inputs: dict[str, Any] = {}
    #: How the jobs before a command ended.
    upstream_results: dict[str, Result] = {}
    #: The first job of its chain: itself, unless another one went on with it.
    chain: str = ""
    priority: int = 0
    #: How often it was put off without using up an attempt.
    snoozes: int = 0


class Lease(Reply):
    lease_id: str
    job_id: str
    workflow_id: str
    run_id: str
    worker_id: str
    ttl_secs: float
    granted_at_ms: Millis


class Handout(Reply):
    job: QueuedJob
    lease: Lease


def commands() -> list[str]:
    return [COMMANDS]


class ClaimRequest(Body):
    """Ask for a job that a worker with these labels can do."""

    worker_id: Name
    labels: Labels = []
    lease_ttl_secs: LeaseSeconds = 30.0
    #: Left out: commands of workflows.
    queues: Annotated[list[Name], Meta(min_length=1, max_length=100)] = msgspec.field(default_factory=commands)
    #: How long to wait for one.
    wait_secs: PollSeconds = 0.0


class BeatRequest(Body):
    """A sign of life of a lease."""

    #: The lease lives for so long from now on; left out: as when it was claimed.
    ttl_secs: LeaseSeconds | None = None
    #: 0 to 1.
    progress: Annotated[float, Meta(ge=0, le=1)] | None = None


class BeatReply(Reply):
    #: Somebody wants it ended: stop and report a failure.
    cancelled: bool


class CompleteRequest(Body):
    """`outputs` go to the jobs that wait for this one; `result` is kept for whoever asks (the outputs, if left out)."""

    outputs: Outputs = {}
    result: Any = UNSET


class FailRequest(Body):
    error: Words = ""
    #: False: no more attempts.
    retryable: bool = True
    #: When it is tried again; left out: as its back-off says.
    delay_secs: MaybeSeconds | None = None
    #: Nobody wants it done any more: it is cancelled, and no dead letter.
    cancelled: bool = False


class GiveBackRequest(Body):
    #: When it may be had again; 0: at once.
    delay_secs: MaybeSeconds = 0.0


class FinishReply(Reply):
    """What became of the job with it."""

    lease_id: str
    job_id: str
    status: Status


class LogChunkIn(Body):
    """One piece of a job's output. `sequence` counts from 0 in each lease: what was sent already is stored once."""

    data: Annotated[str, Meta(max_length=65_536)]
    sequence: Annotated[int, Meta(ge=0, le=1_000_000_000)] | None = None
    timestamp_ms: Annotated[int, Meta(ge=0, le=9_007_199_254_740_991)] = 0
    stream: Literal["stdout", "stderr", "log"] = "stdout"
    workflow_id: MaybeName = ""
    job_id: MaybeName = ""
    run_id: MaybeName = ""


class LogBatch(Body):
    chunks: Annotated[list[LogChunkIn], Meta(max_length=10_000)]


class LogAccepted(Reply):
    accepted: int


class LogChunk(Reply):
    workflow_id: str
    run_id: str
    job_id: str
    sequence: int
    data: str
    timestamp_ms: Millis
    stream: str


class LogQuery(Query):
    run: MaybeName = ""
    #: Chunks behind this sequence number.
    after: Sequence = 0
    limit: PageSize = 1000


class StreamQuery(Query):
    run: MaybeName = ""
    after: Sequence = 0


class RunQuery(Query):
    #: A run's id; left out: the latest.
    run: MaybeName = ""


class CancelledReply(Reply):
    cancelled: bool


class RegisterRequest(Body):
    worker_id: Name
    labels: Labels = []
    queues: Annotated[list[Name], Meta(max_length=100)] = []
    concurrency: Annotated[int, Meta(ge=1, le=100_000)] = 1
    host: MaybeName = ""


class WorkerBeatRequest(Body):
    labels: Labels | None = None
    running: Annotated[int, Meta(ge=0, le=100_000)] | None = None
    draining: bool = False


class WorkerInfo(Reply):
    worker_id: str
    labels: list[str]
    registered_at_ms: Millis
    last_heartbeat_ms: Millis
    current_job: str | None
    status: Literal["idle", "busy", "offline"]
    queues: list[str]
    concurrency: int
    running: int
    host: str
    draining: bool


class Failed(Reply):
    """Why the last attempt ended badly."""

    kind: str
    message: str
    attempt: int
    at_ms: Millis


class JobInfo(Reply):
    """A job as it is stored."""

    id: str
    type: str
    queue: str
    status: Status
    state: State
    attempt: int
    retries: int
    priority: int
    labels: list[str]
    chain: str
    run_id: str
    worker_id: str
    progress: float
    cancel_requested: bool
    enqueued_at_ms: Millis
    due_at_ms: Millis
    started_at: Millis | None
    finished_at: Millis | None
    duration_secs: float | None
    depends_on: list[str]
    waits_for: list[str]
    args: Any = None
    result: Any = None
    error: Failed | None = None


class JobsQuery(Query):
    """Newest first; `before` is the last id of the page before."""

    state: State | None = None
    queue: MaybeName = ""
    type: MaybeName = ""
    run: MaybeName = ""
    before: MaybeName = ""
    limit: PageSize = 50


class EnqueueRequest(Body):
    """A job by the name of its type, which its workers know."""

    type: Name
    args: dict[str, Any] = {}
    queue: Name = "default"
    labels: Labels = []
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0
    delay_secs: MaybeSeconds = 0.0
    retries: Annotated[int, Meta(ge=0, le=10_000)] = 3
    timeout_secs: MaybeSeconds = 0.0


class EnqueueReply(Reply):
    id: str
    deduplicated: bool


class ReasonRequest(Body):
    reason: Annotated[str, Meta(max_length=1000)] = ""


class JobStateReply(Reply):
    id: str
    status: Status
    state: State


class DeadQuery(Query):
    queue: MaybeName = ""
    type: MaybeName = ""


class DeadListQuery(Query):
    queue: MaybeName = ""
    type: MaybeName = ""
    before: MaybeName = ""
    limit: PageSize = 50


class QueueOnlyQuery(Query):
    queue: MaybeName = ""


class CountReply(Reply):
    count: int


class QueueView(Reply):
    name: str
    paused: bool
    rate: str
    scheduled: int
    blocked: int
    pending: int
    running: int
    completed: int
    failed: int
    cancelled: int
    skipped: int
    #: How long the oldest pending job has been due.
    waiting_seconds: float
