"""The progress of a run's jobs, computed from its events alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from backstay.engine.base import Micros
from backstay.job.reserved import DECIDE, GATHER, MAP
from backstay.job.run_model import RunEvent
from backstay.workflow.run import RunDoc

#: The status of a job, as the HTTP API names it.
Status = Literal["waiting", "queued", "running", "success", "failure", "skipped", "cancelled"]
ENDED: tuple[Status, ...] = ("success", "failure", "skipped", "cancelled")
INTERNAL = (DECIDE, MAP, GATHER)

_ENDS: dict[str, Status] = {
    "completed": "success",
    "failed": "failure",
    "skipped": "skipped",
    "cancelled": "cancelled",
}


@dataclass(slots=True)
class Row:
    """The progress of one job of the workflow."""

    key: str
    name: str
    needs: tuple[str, ...] = ()
    soft: bool = False
    status: Status = "waiting"
    attempt: int = 0
    #: When the job started; 0 before that.
    started: Micros = 0
    finished: Micros = 0
    #: Why the job ended or is retried.
    why: str = ""
    #: The ids of the stored jobs that have this row's key, oldest first, without Backstay's internal jobs.
    ids: list[str] = field(default_factory=list[str])
    #: The last line of its output.
    line: str = ""
    outputs: dict[str, str] = field(default_factory=dict[str, str])

    def seconds(self, now: Micros) -> float:
        return ((self.finished or now) - self.started) / 1_000_000 if self.started else 0.0

    @property
    def is_bad(self) -> bool:
        return self.status == "failure" and not self.soft


class RunProgress:
    """All jobs of a run, in the order of the definition."""

    def __init__(self, doc: RunDoc) -> None:
        self.rows = {
            job.key: Row(key=job.key, name=job.name or job.key, needs=job.needs, soft=job.soft) for job in doc.jobs
        }
        self.began: Micros = 0
        self.ended: Micros = 0

    def apply(self, event: RunEvent, key: str, kind: str) -> Row | None:
        """Apply an event of the run. `key` and `kind` are the key and the job type of the job that the event is about.
        Return the row that changes, or None.
        """
        if not event.job:
            if event.kind == "run_created":
                self.began = event.at
            elif event.kind == "run_finished":
                self.ended = event.at
            return None
        row = self.rows.setdefault(key, Row(key=key, name=key))
        own = kind not in INTERNAL
        if own and event.job not in row.ids:
            row.ids.append(event.job)
        match event.kind:
            case "ready" if own:
                row.status = "queued"
            case "started" if own:
                row.status, row.attempt = "running", event.attempt
                row.started, row.finished, row.why = row.started or event.at, 0, ""
            case "scheduled" | "lease_expired" if own:
                row.status, row.why = "queued", event.why
            case "completed" | "failed" | "skipped" | "cancelled" if own or event.kind != "completed":
                row.status, row.finished, row.why = _ENDS[event.kind], event.at, event.why
                row.attempt = event.attempt or row.attempt
            case _:
                return None
        return row

    def count(self) -> dict[Status, int]:
        counts: dict[Status, int] = {}
        for row in self.rows.values():
            counts[row.status] = counts.get(row.status, 0) + 1
        return counts
