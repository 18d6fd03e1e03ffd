"""Bodies and queries of workflows, runs, events and artifacts. Field names are those of the reference project."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from backstay.job.run_model import EventKind, RunStatus
from backstay.server.http.route import Body, Query, Reply
from backstay.server.schemas.common import MaybeName, Millis, Offset, PageSize, Sequence
from backstay.server.schemas.jobs import Status


class FlowJob(Reply):
    """A job of a workflow. `uid` is its own id in this run; "" until the job is enqueued."""

    id: str
    name: str
    status: Status
    command: str
    duration_secs: float | None
    started_at: Millis | None
    depends_on: list[str]
    output: str | None
    uid: str
    attempt: int
    required_labels: list[str]
    max_retries: int
    outputs: dict[str, str]
    worker_id: str
    finished_at: Millis | None
    error: str


class Workflow(Reply):
    """A workflow with the jobs of its latest run, or of the requested run."""

    id: str
    name: str
    trigger: str
    jobs: list[FlowJob]
    version: int
    #: "" and "queued" before the first run.
    run_id: str
    status: RunStatus


class DefinitionView(Reply):
    """One version of a definition, with the keys of the YAML format."""

    id: str
    name: str
    version: int
    digest: str
    created_at: Millis
    definition: dict[str, Any]


class VersionQuery(Query):
    #: 0: the newest.
    version: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 0


class WorkflowsQuery(Query):
    limit: PageSize = 50
    offset: Offset = 0
    #: The status of the latest run.
    status: RunStatus | None = None


class StartRequest(Body):
    """Start a run."""

    inputs: dict[str, Any] = {}
    #: Chosen by the client: repeating it starts nothing and returns the first run.
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
    duration_secs: float | None
    cancel_requested: bool
    reason: str
    #: The number of jobs by state, counting the last job of each chain.
    counts: dict[str, int]
    #: The sequence number of its last event.
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
    #: The position to start from without a Last-Event-ID header.
    after: Annotated[str, Meta(max_length=4096)] = ""


class RunEventsQuery(Query):
    after: Sequence = 0
    limit: PageSize = 1000


class RunStreamQuery(Query):
    after: Sequence = 0


#: deciding, decided: the decision about a planned job before it starts (`if`, expressions over other jobs, maps).
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
