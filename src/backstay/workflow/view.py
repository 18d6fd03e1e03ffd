"""Read-only views of workflows, runs and their jobs for users: datetimes with a time zone, jobs by key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from backstay.engine.base import Micros
from backstay.errors import CorruptRecord
from backstay.job.metadata import key_of
from backstay.job.model import Job, JobResult, State
from backstay.job.reserved import RESERVED
from backstay.job.run_model import FINISHED, Definition, Run, RunStatus
from backstay.job.view import JobInfo, job_info
from backstay.runtime.lease import instant
from backstay.workflow.definition import Workflow, unpack
from backstay.workflow.run import RunDoc, RunJob, unpack_doc

J = TypeVar("J", bound=Job | JobResult)


@dataclass(frozen=True, slots=True)
class WorkflowInfo:
    """One version of a workflow."""

    name: str
    version: int
    digest: str
    created: datetime | None
    #: None in the results of `stay.workflows.list`.
    definition: Workflow | None


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A snapshot of a run."""

    id: str
    workflow: str
    version: int
    status: RunStatus
    #: The inputs of the run by name. Empty in the results of `stay.runs.list`.
    inputs: dict[str, Any]
    trigger: str
    created: datetime | None
    started: datetime | None
    finished: datetime | None
    #: When the run's timeout cancels it; None: never.
    deadline: datetime | None
    cancel_requested: bool
    reason: str
    #: Number of its jobs by state.
    counts: dict[str, int]
    #: The number of the run's last event. Events are numbered from 1.
    events: int

    @property
    def is_finished(self) -> bool:
        return self.status in FINISHED


@dataclass(frozen=True, slots=True)
class RunJobInfo:
    """A job of a run, by key. Where a job was continued by others (a chain), this is the last of them."""

    key: str
    name: str
    #: The job's id in the workflow definition: "test" for the job with the key "test (3.11)".
    job: str
    state: State
    #: Keys of the jobs that this job waits for.
    needs: tuple[str, ...]
    condition: str
    command: str
    soft: bool
    matrix: dict[str, Any]
    #: Attempts, times, result and error of the last job that the chain has at this moment. If an internal job evaluates
    #: the condition first, these are the values of the internal job until it has ended.
    info: JobInfo
    #: True: the last job of its chain is an internal job (decide, map or gather).
    is_internal: bool

    @property
    def id(self) -> str:
        return self.info.id


def _to_datetime(at: Micros) -> datetime | None:
    return instant(at) if at else None


def workflow_info(found: Definition) -> WorkflowInfo:
    return WorkflowInfo(
        name=found.workflow,
        version=found.version,
        digest=found.digest,
        created=_to_datetime(found.created),
        definition=unpack(found.doc) if found.doc else None,
    )


def run_info(run: Run) -> RunInfo:
    doc = read_run_doc(run)
    return RunInfo(
        id=run.id,
        workflow=run.workflow,
        version=run.version,
        status=run.status,
        inputs=doc.inputs,
        trigger=doc.trigger,
        created=_to_datetime(run.created),
        started=_to_datetime(run.started),
        finished=_to_datetime(run.finished),
        deadline=_to_datetime(run.deadline),
        cancel_requested=run.cancel_requested,
        reason=run.reason,
        counts=dict(run.counts),
        events=run.events,
    )


def read_run_doc(run: Run) -> RunDoc:
    """Decode a run's document. Returns an empty document if it is corrupt."""
    try:
        return unpack_doc(run.doc)
    except CorruptRecord:
        return RunDoc(workflow=run.workflow)


def last_of_chains(rows: Sequence[J]) -> dict[str, J]:
    """Map each chain of a run to its last job."""
    return {row.chain or row.id: row for row in rows if not row.followed_by}


def has_only_initial_jobs(doc: RunDoc, rows: Sequence[Job | JobResult]) -> bool:
    """Whether the run has only the jobs that it was started with."""
    known = {job.id for job in doc.jobs}
    return all(row.chain in known for row in rows)


def iter_keyed_jobs(doc: RunDoc, rows: Sequence[J]) -> Iterator[tuple[str, RunJob, J]]:
    """Yield (key, entry, job) for each chain of a run, in the order of the run's document `doc`. The entry describes
    the job in the document; the job is the last one of the chain. Jobs that a map job added follow the map job, and
    come with its entry.
    """
    last = last_of_chains(rows)
    known = {job.id: job for job in doc.jobs}
    made: dict[str, list[tuple[str, J]]] = {}
    for chain, row in sorted(last.items()):
        if chain not in known:
            key = row.id if isinstance(row, JobResult) else key_of(row)
            made.setdefault(key.rpartition(" (")[0] or key, []).append((key, row))
    for job in doc.jobs:
        if job.id in last:
            yield job.key, job, last[job.id]
        for key, row in made.pop(job.key, ()):
            yield key, job, row
    for parent, rest in made.items():
        for key, row in rest:
            yield key, RunJob(key=parent, id=""), row


def run_jobs(doc: RunDoc, rows: Sequence[Job]) -> list[RunJobInfo]:
    """Build the views of all jobs of a run."""
    return [
        _initial_job(job, row) if key == job.key else _added_job(key, job, row)
        for key, job, row in iter_keyed_jobs(doc, rows)
    ]


def _initial_job(job: RunJob, row: Job) -> RunJobInfo:
    return RunJobInfo(
        key=job.key,
        name=job.name or job.key,
        job=job.job or job.key,
        state=row.state,
        needs=job.needs,
        condition=job.condition,
        command=job.command,
        soft=job.soft,
        matrix=job.matrix,
        info=job_info(row),
        is_internal=row.type.startswith(RESERVED) and row.type != job.type,
    )


def _added_job(key: str, parent: RunJob, row: Job) -> RunJobInfo:
    return RunJobInfo(
        key=key,
        name=key,
        job=parent.key,
        state=row.state,
        needs=parent.needs,
        condition="",
        command="",
        soft=parent.soft,
        matrix={},
        info=job_info(row),
        is_internal=False,
    )
