"""Bodies and queries of jobs, queues, workers and the worker protocol. Existing workers depend on the field names."""

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
    Milliseconds,
    Name,
    PageSize,
    PollSeconds,
    Sequence,
    WholeSeconds,
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
    #: Rounded up.
    delay_secs: WholeSeconds
    delay_ms: Milliseconds


class ExponentialDelay(Reply):
    #: Rounded up.
    base_secs: WholeSeconds
    max_secs: WholeSeconds
    base_ms: Milliseconds
    max_ms: Milliseconds


class BackoffView(Reply):
    """The delay between attempts, fixed or exponential: exactly one of the two fields is set."""

    fixed: FixedDelay | UnsetType = msgspec.field(default=UNSET, name="Fixed")
    exponential: ExponentialDelay | UnsetType = msgspec.field(default=UNSET, name="Exponential")


class RetryPolicy(Reply):
    """How often a failed job is retried, and after which delay. "None": at once."""

    max_retries: int
    backoff: Literal["None"] | BackoffView


class QueuedJob(Reply):
    """A claimed job. `job_id` is the job's name in its workflow; for a job without a workflow, it equals `uid`."""

    job_id: str
    workflow_id: str
    run_id: str
    #: The id of the job in the store, which is unique over all runs.
    uid: str
    #: The script to run in a shell; "" for a function.
    command: str
    required_labels: list[str]
    retry_policy: RetryPolicy
    #: Counted from 0, unlike the variable BACKSTAY_ATTEMPT of commands.
    attempt: int
    #: Outputs of the jobs that this job needs: by job, then by output key.
    upstream_outputs: dict[str, dict[str, str]]
    enqueued_at_ms: Millis
    delayed_until_ms: Millis
    type: str
    queue: str
    #: A function's arguments by name.
    args: Any = None
    #: Seconds that an attempt may take, rounded up; 0: unlimited.
    timeout_secs: WholeSeconds = 0
    timeout_ms: Milliseconds = 0
    #: The environment variables of the command: those of the workflow definition, and those for the run's inputs, the
    #: outputs of needed jobs and the job's identity.
    env: dict[str, str] = {}
    inputs: dict[str, Any] = {}
    #: The results (`success`, `failure`, …) of the jobs that this job needs, by job. Filled only for a command.
    upstream_results: dict[str, Result] = {}
    #: The id of the chain that this job belongs to, which is the id of the chain's first job.
    chain: str = ""
    priority: int = 0
    #: How often the job was snoozed. A snooze uses up no attempt.
    snoozes: int = 0


class Lease(Reply):
    lease_id: str
    job_id: str
    workflow_id: str
    run_id: str
    worker_id: str
    #: Rounded down, at least 1.
    ttl_secs: WholeSeconds
    granted_at_ms: Millis
    ttl_ms: Milliseconds


class Handout(Reply):
    job: QueuedJob
    lease: Lease


def _default_queues() -> list[str]:
    return [COMMANDS]


class ClaimRequest(Body):
    """Claim a job that a worker with these labels can run."""

    worker_id: Name
    labels: Labels = []
    lease_ttl_secs: LeaseSeconds = 30.0
    #: The queues to claim from; by default the queue of workflow commands.
    queues: Annotated[list[Name], Meta(min_length=1, max_length=100)] = msgspec.field(default_factory=_default_queues)
    #: How long to wait for a job (long poll).
    wait_secs: PollSeconds = 0.0


class BeatRequest(Body):
    """A heartbeat, which renews a lease."""

    #: The lease expires that many seconds from now; by default the TTL of the claim.
    ttl_secs: LeaseSeconds | None = None
    #: The job's progress, from 0 to 1.
    progress: Annotated[float, Meta(ge=0, le=1)] | None = None


class BeatReply(Reply):
    #: The job is to be cancelled: stop it and report a failure.
    cancelled: bool


class CompleteRequest(Body):
    """Complete a job. Dependent jobs get `outputs`. `result` is stored with the job; by default, it is the outputs."""

    outputs: Outputs = {}
    result: Any = UNSET


class FailRequest(Body):
    error: MessageText = ""
    #: False: the job is not retried.
    retryable: bool = True
    #: Seconds until the next attempt; by default the job's backoff.
    delay_secs: MaybeSeconds | None = None
    #: The job ends cancelled, not as a dead letter.
    cancelled: bool = False


class GiveBackRequest(Body):
    #: Seconds until the job is due again; 0: at once.
    delay_secs: MaybeSeconds = 0.0


class FinishReply(Reply):
    """The job's status after its worker reported the outcome."""

    lease_id: str
    job_id: str
    status: Status


class LogChunkIn(Body):
    """A chunk of what a job printed. `sequence` counts from 0 in each lease, so a repeated chunk is stored once."""

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
    #: Counted from 0, over all attempts of the job.
    sequence: int
    data: str
    timestamp_ms: Millis
    stream: Literal["stdout", "stderr"]
    #: What wrote the chunk: `stdout` or `stderr` of a command, `log` for messages of the worker and of `ctx.log()`, or
    #: the name that a program passed to `ctx.log()`. `stream` is "stdout" for all but `stderr`.
    source: str


class LogQuery(Query):
    run: MaybeName = ""
    #: Return only log chunks whose sequence number is higher than this; without it, from the start.
    after: Sequence | None = None
    limit: PageSize = 1000


class StreamQuery(Query):
    run: MaybeName = ""
    #: As in LogQuery. A Last-Event-ID header takes precedence.
    after: Sequence | None = None


class RunQuery(Query):
    #: The id of a run; by default the latest run of the workflow that the path names.
    run: MaybeName = ""


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
    duration_ms: Milliseconds | None
    depends_on: list[str]
    waits_for: list[str]
    args: Any = None
    result: Any = None
    error: Failed | None = None
    #: Arguments and result were left out, since they are too large for a list; GET /api/jobs/{job} returns them.
    truncated: bool = False


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
