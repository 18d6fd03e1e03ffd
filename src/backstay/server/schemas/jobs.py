"""Bodies and queries of jobs, queues, workers and the worker protocol. Field names are those of the reference
project.
"""

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
    MessageText,
    Millis,
    Name,
    PageSize,
    PollSeconds,
    Sequence,
)
from backstay.workflow.expressions.expression import Result

#: The status of a job over HTTP: scheduled, blocked and pending jobs are "queued".
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
    """A backoff: exactly one of the two fields is set."""

    fixed: FixedDelay | UnsetType = msgspec.field(default=UNSET, name="Fixed")
    exponential: ExponentialDelay | UnsetType = msgspec.field(default=UNSET, name="Exponential")


class RetryPolicy(Reply):
    max_retries: int
    backoff: Literal["None"] | BackoffView


class QueuedJob(Reply):
    """A claimed job. `job_id` is its name in its workflow; without a workflow, its own id."""

    job_id: str
    workflow_id: str
    run_id: str
    #: The job's own id.
    uid: str
    #: The script to run in a shell; "" for a function.
    command: str
    required_labels: list[str]
    retry_policy: RetryPolicy
    #: Counted from 1.
    attempt: int
    #: Outputs of the jobs that it needs, by job and key.
    upstream_outputs: dict[str, dict[str, str]]
    enqueued_at_ms: Millis
    delayed_until_ms: Millis
    type: str
    queue: str
    #: A function's arguments by name.
    args: Any = None
    #: Seconds that an attempt may take; 0: unlimited.
    timeout_secs: float = 0.0
    #: The command's environment: its own variables, and those for inputs, upstream outputs and the job's identity.
    env: dict[str, str] = {}
    inputs: dict[str, Any] = {}
    #: How the jobs that a command needs ended.
    upstream_results: dict[str, Result] = {}
    #: The id of the first job of its chain; its own id for the first job.
    chain: str = ""
    priority: int = 0
    #: How often it was snoozed, which uses up no attempt.
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
    """Claim a job that a worker with these labels can run."""

    worker_id: Name
    labels: Labels = []
    lease_ttl_secs: LeaseSeconds = 30.0
    #: By default the queue of workflow commands.
    queues: Annotated[list[Name], Meta(min_length=1, max_length=100)] = msgspec.field(default_factory=commands)
    #: How long to wait for a job (long poll).
    wait_secs: PollSeconds = 0.0


class BeatRequest(Body):
    """A heartbeat of a lease."""

    #: The lease expires that many seconds from now; by default the TTL of the claim.
    ttl_secs: LeaseSeconds | None = None
    #: 0 to 1.
    progress: Annotated[float, Meta(ge=0, le=1)] | None = None


class BeatReply(Reply):
    #: The job is to be cancelled: stop it and report a failure.
    cancelled: bool


class CompleteRequest(Body):
    """Complete a job. Dependent jobs get `outputs`; `result` is stored with the job, by default the outputs."""

    outputs: Outputs = {}
    result: Any = UNSET


class FailRequest(Body):
    error: MessageText = ""
    #: False: no more attempts.
    retryable: bool = True
    #: Seconds until the next attempt; by default the job's backoff.
    delay_secs: MaybeSeconds | None = None
    #: The job ends cancelled, not as a dead letter.
    cancelled: bool = False


class GiveBackRequest(Body):
    #: Seconds until it is due again; 0: at once.
    delay_secs: MaybeSeconds = 0.0


class FinishReply(Reply):
    """The job's status after it was finished."""

    lease_id: str
    job_id: str
    status: Status


class LogChunkIn(Body):
    """A chunk of a job's output. `sequence` counts from 0 in each lease, so a repeated chunk is stored once."""

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
    #: Return chunks after this sequence number.
    after: Sequence = 0
    limit: PageSize = 1000


class StreamQuery(Query):
    run: MaybeName = ""
    after: Sequence = 0


class RunQuery(Query):
    #: A run's id; by default the latest run.
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
    """The failure of the last attempt."""

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
    """Filters of a job list. `before` is the last id of the previous page."""

    state: State | None = None
    queue: MaybeName = ""
    type: MaybeName = ""
    run: MaybeName = ""
    before: MaybeName = ""
    limit: PageSize = 50


class EnqueueRequest(Body):
    """Enqueue a job by the name of its type."""

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
    #: Seconds since the oldest pending job became due.
    waiting_seconds: float
