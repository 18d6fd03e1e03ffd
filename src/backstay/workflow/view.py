"""What people see of workflows, runs and their jobs: times with their zone, jobs by key. Never changes anything."""

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
    #: None in lists.
    definition: Workflow | None


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run at one moment."""

    id: str
    workflow: str
    version: int
    status: RunStatus
    #: Empty in lists.
    inputs: dict[str, Any]
    trigger: str
    created: datetime | None
    started: datetime | None
    finished: datetime | None
    #: When it is cancelled by itself.
    deadline: datetime | None
    cancel_requested: bool
    reason: str
    #: How many of its jobs are in which state.
    counts: dict[str, int]
    #: The number of its last event.
    events: int

    @property
    def is_finished(self) -> bool:
        return self.status in FINISHED


@dataclass(frozen=True, slots=True)
class RunJobInfo:
    """A job of a run: the last one of its chain, under its name in the run."""

    key: str
    name: str
    #: Its id in the definition: "test" for "test (3.11)".
    job: str
    state: State
    #: Keys of those it waits for.
    needs: tuple[str, ...]
    condition: str
    command: str
    soft: bool
    matrix: dict[str, Any]
    #: The job behind it: attempts, times, result, error. What decides about it, before it is its turn.
    info: JobInfo
    #: What stands behind it now is one of Backstay's own, which decides about it or gathers for it.
    is_internal: bool

    @property
    def id(self) -> str:
        return self.info.id


def _when(at: Micros) -> datetime | None:
    return instant(at) if at else None


def workflow_info(found: Definition) -> WorkflowInfo:
    return WorkflowInfo(
        name=found.workflow,
        version=found.version,
        digest=found.digest,
        created=_when(found.created),
        definition=unpack(found.doc) if found.doc else None,
    )


def run_info(run: Run) -> RunInfo:
    doc = doc_of(run)
    return RunInfo(
        id=run.id,
        workflow=run.workflow,
        version=run.version,
        status=run.status,
        inputs=doc.inputs,
        trigger=doc.trigger,
        created=_when(run.created),
        started=_when(run.started),
        finished=_when(run.finished),
        deadline=_when(run.deadline),
        cancel_requested=run.cancel_requested,
        reason=run.reason,
        counts=dict(run.counts),
        events=run.events,
    )


def doc_of(run: Run) -> RunDoc:
    """What it remembers; nothing, where that cannot be read."""
    try:
        return unpack_doc(run.doc)
    except CorruptRecord:
        return RunDoc(workflow=run.workflow)


def last_of_chains(rows: Sequence[J]) -> dict[str, J]:
    """By chain: its last job, of all jobs of a run."""
    return {row.chain or row.id: row for row in rows if not row.followed_by}


def all_known(doc: RunDoc, rows: Sequence[Job | JobResult]) -> bool:
    """Whether a run has no other jobs than those it began with."""
    known = {job.id for job in doc.jobs}
    return all(row.chain in known for row in rows)


def named(doc: RunDoc, rows: Sequence[J]) -> Iterator[tuple[str, RunJob, J]]:
    """All jobs of a run with their keys: those it began with as they were written, each with those that it made later
    behind it (with what they were made for).
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
    """All jobs of a run, as people see them."""
    return [_job(job, row) if key == job.key else _added(key, job, row) for key, job, row in named(doc, rows)]


def _job(job: RunJob, row: Job) -> RunJobInfo:
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


def _added(key: str, parent: RunJob, row: Job) -> RunJobInfo:
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
