"""A job as the model keeps it: see `job_model.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from holdfast.engine.base import Micros
from holdfast.job.model import Claimed, Failure, Job, LogLine, NewJob, State, rank

T = TypeVar("T", Claimed, Job)


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
    followed_by: str = ""
    watched: int = 0
    log: dict[int, LogLine] = field(default_factory=dict[int, LogLine])
    outputs: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def order(self) -> tuple[int, str]:
        return rank(self.due, self.new.priority), self.new.id

    def claimed(self) -> Claimed:
        return self._told(Claimed, upstream=dict(self.upstream))

    def view(self) -> Job:
        cancel, waits = self.cancel is not None, tuple(sorted(self.waits))
        return self._told(Job, lease_until=self.until, cancel_requested=cancel, waits_for=waits)

    def _told(self, kind: type[T], **more: Any) -> T:
        """What a row tells of itself, in the terms of `kind`: what it was asked for, what became of it."""
        known = {**msgspec.structs.asdict(self.new), **vars(self), **more}
        return kind(**{field.name: known[field.name] for field in msgspec.structs.fields(kind)})
