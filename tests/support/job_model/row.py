"""The records of jobs and runs in the model."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from backstay.engine.base import Micros
from backstay.job.exchange import Claimed
from backstay.job.model import FINAL, Failure, Job, LogLine, NewJob, State, rank
from backstay.job.run_model import FINISHED, Artifact, NewRun, Run, RunEvent, RunStatus
from backstay.job.run_status import final_status

T = TypeVar("T", Claimed, Job)


@dataclass
class File:
    """An artifact that was uploaded completely."""

    artifact: Artifact
    parts: list[bytes]


@dataclass(eq=False)
class Row:
    """The record of a job."""

    new: NewJob
    chain: str
    enqueued: Micros
    due: Micros
    state: State = "pending"
    attempt: int = 0
    snoozes: int = 0
    fence: int = 0
    worker: str = ""
    until: Micros = 0
    started: Micros = 0
    finished: Micros = 0
    keep_until: Micros = 0
    progress: float = 0.0
    cancel: str | None = None
    result: bytes | None = None
    error: Failure | None = None
    #: The chains that the job waits for; by chain that has ended, its result, or None without one.
    waits: set[str] = field(default_factory=set[str])
    upstream: dict[str, bytes | None] = field(default_factory=dict[str, "bytes | None"])
    #: The chains that ended without success; those of them that ended in a failure; whether such a failure made the
    #: store skip this job.
    unsuccessful: set[str] = field(default_factory=set[str])
    failed_blockers: set[str] = field(default_factory=set[str])
    skipped_for_failure: bool = False
    followed_by: str = ""
    watched: int = 0
    log: dict[int, LogLine] = field(default_factory=dict[int, LogLine])
    outputs: dict[str, str] = field(default_factory=dict[str, str])
    files: dict[str, File] = field(default_factory=dict[str, "File"])
    #: The parts of unfinished uploads, by name and digest.
    uploads: dict[tuple[str, str], list[bytes]] = field(default_factory=dict[tuple[str, str], list[bytes]])

    @property
    def has_failed(self) -> bool:
        """Whether dependents treat this job as failed."""
        return (self.state == "failed" and not self.new.soft) or (self.state == "skipped" and self.skipped_for_failure)

    @property
    def has_succeeded(self) -> bool:
        return self.state == "completed" or (self.state == "failed" and self.new.soft)

    @property
    def order(self) -> tuple[int, str]:
        return rank(self.due, self.new.priority), self.new.id

    def claimed(self) -> Claimed:
        return self._build(Claimed, upstream=dict(self.upstream))

    def view(self) -> Job:
        cancel, waits = self.cancel is not None, tuple(sorted(self.waits))
        worker = "" if self.state in ("scheduled", "blocked", "pending") else self.worker
        return self._build(Job, lease_until=self.until, cancel_requested=cancel, waits_for=waits, worker=worker)

    def _build(self, kind: type[T], **more: Any) -> T:
        """Build a `kind` struct from the row's request and its current state."""
        known = {**msgspec.structs.asdict(self.new), **vars(self), **more}
        return kind(**{field.name: known[field.name] for field in msgspec.structs.fields(kind)})


@dataclass(eq=False)
class RunRow:
    """The record of a run."""

    new: NewRun
    created: Micros
    deadline: Micros
    status: RunStatus = "queued"
    started: Micros = 0
    finished: Micros = 0
    cancel: str | None = None
    jobs: list[Row] = field(default_factory=list[Row])
    counts: Counter[str] = field(default_factory=Counter[str])
    events: list[RunEvent] = field(default_factory=list[RunEvent])
    #: The number of events that have been announced.
    announced: int = 0

    @property
    def is_finished(self) -> bool:
        return self.status in FINISHED

    @property
    def is_over(self) -> bool:
        """Whether all jobs of the run are in a final state."""
        return not any(count for state, count in self.counts.items() if state not in FINAL)

    def outcome(self) -> RunStatus:
        """Return the status of the run after its last job has ended."""
        return final_status(
            hard_failures=sum(row.state == "failed" and not row.new.soft for row in self.jobs),
            cancelled=self.counts["cancelled"],
            cancel_requested=self.cancel is not None,
        )

    def view(self) -> Run:
        return Run(
            id=self.new.id,
            workflow=self.new.workflow,
            version=self.new.version,
            status=self.status,
            doc=self.new.doc,
            created=self.created,
            started=self.started,
            finished=self.finished,
            deadline=self.deadline,
            cancel_requested=self.cancel is not None,
            reason=self.cancel or "",
            counts={state: count for state, count in sorted(self.counts.items()) if count},
            events=len(self.events),
        )
