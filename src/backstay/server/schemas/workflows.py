"""Bodies of workflows, runs, events and artifacts. Field names are those of the reference project."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from backstay.job.run_model import EventKind, RunStatus
from backstay.server.http.route import Body, Query, Reply
from backstay.server.schemas.common import MaybeName, Millis, Offset, PageSize, Sequence
from backstay.server.schemas.jobs import Status


class FlowJob(Reply):
    """A job of a workflow; `uid` is its own id in this run, "" before there is one."""

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
    """A definition with the jobs of its latest run, or of the run that was asked for."""

    id: str
    name: str
    trigger: str
    jobs: list[FlowJob]
    version: int
    #: "" and "queued" before the first run.
    run_id: str
    status: RunStatus


class DefinitionView(Reply):
    """One version of a definition, in the words of YAML."""

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
    #: Of the latest run.
    status: RunStatus | None = None


class StartRequest(Body):
    """Begin a run."""

    inputs: dict[str, Any] = {}
    #: Made by the caller: the same one again begins nothing and answers the run that was begun.
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
    #: Jobs by state: as many as are shown.
    counts: dict[str, int]
    #: The number of its last event.
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
    #: Where there is no Last-Event-ID.
    after: Annotated[str, Meta(max_length=4096)] = ""


class RunEventsQuery(Query):
    after: Sequence = 0
    limit: PageSize = 1000


class RunStreamQuery(Query):
    after: Sequence = 0


#: deciding, decided: of the decision about a job, before its turn (`if`, texts that speak of others, maps).
Happening = EventKind | Literal["deciding", "decided"]


class Event(Reply):
    """What happened to a job of a run, or to the run."""

    event: Happening
    workflow_id: str
    run_id: str
    #: "": it is about the run.
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
    """What a job left: text by key, and files."""

    outputs: dict[str, str]
    files: list[ArtifactInfo]


class ProblemView(Reply):
    """RFC 9457."""

    title: str
    status: int
    detail: str


class Health(Reply):
    status: Literal["ok", "stopping", "unready"]
