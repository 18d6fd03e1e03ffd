"""A job and a run as the model keeps them: see `support.job_model.store`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from backstay.engine.base import Micros
from backstay.job.model import FINAL, Claimed, Failure, Job, LogLine, NewJob, State, rank
from backstay.job.run_model import FINISHED, Artifact, NewRun, Run, RunEvent, RunStatus

T = TypeVar("T", Claimed, Job)


@dataclass
class File:
    """An artifact that is whole."""

    artifact: Artifact
    parts: list[bytes]


@dataclass(eq=False)
class Row:
    """A job as it lies there."""

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
    #: Chains that have not ended, and what the others came to.
    waits: set[str] = field(default_factory=set[str])
    upstream: dict[str, bytes | None] = field(default_factory=dict[str, "bytes | None"])
    #: Chains it waited for that did not succeed; those of them that count as a failure; whether it was skipped for one.
    spoilt: set[str] = field(default_factory=set[str])
    blame: set[str] = field(default_factory=set[str])
    blamed: bool = False
    followed_by: str = ""
    watched: int = 0
    log: dict[int, LogLine] = field(default_factory=dict[int, LogLine])
    outputs: dict[str, str] = field(default_factory=dict[str, str])
    files: dict[str, File] = field(default_factory=dict[str, "File"])
    #: What is on its way, by name and digest.
    uploads: dict[tuple[str, str], list[bytes]] = field(default_factory=dict[tuple[str, str], list[bytes]])

    @property
    def has_failed(self) -> bool:
        """Whether its end counts as a failure for its dependents."""
        return (self.state == "failed" and not self.new.soft) or (self.state == "skipped" and self.blamed)

    @property
    def has_succeeded(self) -> bool:
        return self.state == "completed" or (self.state == "failed" and self.new.soft)

    @property
    def order(self) -> tuple[int, str]:
        return rank(self.due, self.new.priority), self.new.id

    def claimed(self) -> Claimed:
        return self._told(Claimed, upstream=dict(self.upstream))

    def view(self) -> Job:
        cancel, waits = self.cancel is not None, tuple(sorted(self.waits))
        worker = "" if self.state in ("scheduled", "blocked", "pending") else self.worker
        return self._told(Job, lease_until=self.until, cancel_requested=cancel, waits_for=waits, worker=worker)

    def _told(self, kind: type[T], **more: Any) -> T:
        """Build a `kind` struct from the row's request and its current state."""
        known = {**msgspec.structs.asdict(self.new), **vars(self), **more}
        return kind(**{field.name: known[field.name] for field in msgspec.structs.fields(kind)})


@dataclass(eq=False)
class RunRow:
    """A run as it lies there."""

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
    #: How many of its events have been announced.
    announced: int = 0

    @property
    def is_finished(self) -> bool:
        return self.status in FINISHED

    @property
    def is_over(self) -> bool:
        """Whether none of its jobs has anything left to do."""
        return not any(count for state, count in self.counts.items() if state not in FINAL)

    def outcome(self) -> RunStatus:
        if self.cancel is not None:
            return "cancelled"
        return "failure" if any(row.state == "failed" and not row.new.soft for row in self.jobs) else "success"

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
