"""Bodies and queries of workflows, runs, events and artifacts. Existing clients depend on the field names."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from backstay.job.run_model import EventKind, RunStatus
from backstay.server.http.route import Body, Query, Reply
from backstay.server.schemas.common import MaybeName, Millis, Milliseconds, Offset, PageSize, Sequence, WholeSeconds
from backstay.server.schemas.jobs import RetryPolicy, Status
from backstay.workflow.definition import Port


class FlowJob(Reply):
    """A job of a run. `id`: its key in the workflow. `uid`: the id of the job in this run; "" until the job is
    enqueued.
    """

    id: str
    name: str
    status: Status
    command: str
    duration_ms: Milliseconds | None
    started_at: Millis | None
    depends_on: list[str]
    #: The job's result as text: a string unchanged, other values as JSON; null without a result, or if it is empty.
    output: str | None
    uid: str
    #: Counted from 1; 0: not started.
    attempt: int
    required_labels: list[str]
    max_retries: int
    outputs: dict[str, str]
    worker_id: str
    finished_at: Millis | None
    error: str
    #: Output and outputs were left out, since they are too large for a list; GET /api/jobs/{uid} returns the result.
    truncated: bool = False


class WorkflowJob(Reply):
    """A job of a workflow, in its latest run or the requested run. `id`: its key in the workflow. `uid`: the id of the
    job in this run; "" until the job is enqueued.
    """

    id: str
    name: str
    status: Status
    command: str
    #: Rounded down.
    duration_secs: WholeSeconds | None
    started_at: Millis | None
    depends_on: list[str]
    #: The job's result as text, as in FlowJob; the error of a job that failed.
    output: str | None
    required_labels: list[str]
    max_retries: int
    #: Counted from 0, also before the job has started.
    attempt: int
    #: Data of a client, stored with the definition and returned unchanged.
    metadata: dict[str, Any]
    ports: list[Port]
    uid: str
    outputs: dict[str, str]
    worker_id: str
    finished_at: Millis | None
    duration_ms: Milliseconds | None
    error: str
    #: null for a job that the stored definition does not contain.
    retry_policy: RetryPolicy | None
    #: As in FlowJob.
    truncated: bool = False


class Workflow(Reply):
    """A workflow with the jobs of its latest run, or of the requested run."""

    id: str
    name: str
    trigger: str
    jobs: list[WorkflowJob]
    version: int
    #: The id of the run whose jobs are listed. Before the workflow's first run it is "", and `status` is "queued".
    run_id: str
    status: RunStatus
    #: The jobs were left out, since they are too large for a list; GET /api/workflows/{id}/status returns them.
    truncated: bool = False


class DefinitionView(Reply):
    """One version of a workflow's definition. `definition` has the keys of the YAML format."""

    id: str
    name: str
    version: int
    digest: str
    created_at: Millis
    definition: dict[str, Any]


class VersionQuery(Query):
    #: 0: the newest version.
    version: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 0


class WorkflowsQuery(Query):
    limit: PageSize = 100
    offset: Offset = 0
    #: Only workflows that have at least one job with this status, in their latest run.
    status: Status | None = None


class StartRequest(Body):
    """Start a run."""

    inputs: dict[str, Any] = {}
    #: Chosen by the client. A second request with the same id starts no run and returns the first one.
    request_id: MaybeName = ""


class RunInfo(Reply):
    id: str
    run_id: str
    workflow_id: str
    version: int
    status: RunStatus
    created_at: Millis
    started_at: Millis | None
    finished_at: Millis | None
    duration_ms: Milliseconds | None
    cancel_requested: bool
    reason: str
    #: The number of jobs in each state. A chain of jobs counts once, in the state of its last job.
    counts: dict[str, int]
    #: The sequence number of the run's last event.
    events: int


class RunDetail(RunInfo):
    """A run with its whole DAG."""

    inputs: dict[str, Any]
    jobs: list[FlowJob]


class RunsQuery(Query):
    workflow: MaybeName = ""
    status: RunStatus | None = None
    before: MaybeName = ""
    limit: PageSize = 50


class EventsQuery(Query):
    #: The stream starts after the event with this id. A Last-Event-ID header takes precedence.
    after: Annotated[str, Meta(max_length=4096)] = ""


class RunEventsQuery(Query):
    after: Sequence = 0
    limit: PageSize = 1000


class RunStreamQuery(Query):
    after: Sequence = 0


#: An internal job runs before a job that has an `if`, expressions over other jobs, or a map, and decides about it.
#: `deciding`: the decision is open. `decided`: the decision is made, and the job itself follows.
StreamEventKind = EventKind | Literal["deciding", "decided"]


class Event(Reply):
    """An event of a run, or of one of its jobs."""

    event: StreamEventKind
    workflow_id: str
    run_id: str
    #: "": an event of the run itself.
    job_id: str
    uid: str
    sequence: int
    timestamp_ms: Millis
    attempt: int
    worker_id: str
    why: str


class ArtifactInfo(Reply):
    name: str
    size: int
    digest: str
    created_at: Millis


class Artifacts(Reply):
    """The outputs of a job by key, and its files."""

    outputs: dict[str, str]
    files: list[ArtifactInfo]


class ProblemView(Reply):
    """An error as an RFC 9457 problem."""

    title: str
    status: int
    detail: str


class Health(Reply):
    status: Literal["ok", "stopping", "unready"]
