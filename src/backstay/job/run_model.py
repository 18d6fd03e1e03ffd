"""Workflow runs as data: what the store keeps of a run beside its jobs, and what it tells of them.

A run is one shard: its id carries it, and all of its jobs live there. So a job's end, the release of those who wait for
it, the run's status and its events change in one step.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from backstay.engine.base import Micros
from backstay.errors import ConfigError
from backstay.job.model import NewJob

#: queued: no job of it has started yet. A finished run goes back to running when one of its jobs is tried again.
RunStatus = Literal["queued", "running", "success", "failure", "cancelled"]
FINISHED: tuple[RunStatus, ...] = ("success", "failure", "cancelled")

#: What happens to a job of a run: it can be had; somebody has it; it is put off (a retry, a snooze); how it ended; a
#: lease ran out. And to the run: it was begun, it ended, it goes on after all, somebody wants it to end.
EventKind = Literal[
    "ready",
    "started",
    "scheduled",
    "completed",
    "failed",
    "cancelled",
    "skipped",
    "lease_expired",
    "run_created",
    "run_finished",
    "run_reopened",
    "run_cancelling",
]

#: The largest run that is stored in one step.
LARGEST_RUN = 20_000


class NewRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run to be. All of its jobs have its id as `run` and live in its shard; `after` names jobs of the run."""

    id: str
    #: The definition it was made from.
    workflow: str
    version: int = 0
    #: What the store does not read: inputs, the names of jobs, how it was begun.
    doc: bytes = b""
    jobs: tuple[NewJob, ...] = ()
    #: It is cancelled when it has not ended after so long; 0: never.
    timeout: Micros = 0
    #: How long it stays after its end, with all of its jobs.
    keep: Micros = 7 * 86_400_000_000


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run as stored."""

    id: str
    workflow: str
    version: int
    status: RunStatus
    doc: bytes
    created: Micros
    #: 0: not yet.
    started: Micros = 0
    finished: Micros = 0
    #: When it is cancelled by itself; 0: never.
    deadline: Micros = 0
    cancel_requested: bool = False
    reason: str = ""
    #: How many of its jobs are in which state, of a chain only the last one; states with none are left out.
    counts: dict[str, int] = {}
    #: The number of its last event.
    events: int = 0


class RunEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Something happened in a run. `seq` counts from 1 in each run, without gaps."""

    run: str
    seq: int
    at: Micros
    kind: EventKind
    #: "": it is about the run.
    job: str = ""
    #: Of the job, when it happened.
    attempt: int = 0
    worker: str = ""
    #: Why: the message of a failure, the reason of a cancellation, the run's status for run_finished.
    why: str = ""


class EventPage(msgspec.Struct, frozen=True, array_like=True):
    """Events of all runs of a shard, in an order in which none appears behind a cursor that was given out."""

    events: tuple[RunEvent, ...]
    #: Behind the last of them: go on from here.
    cursor: str


def no_cursor(after: str) -> ConfigError:
    return ConfigError(f"{after[:100]!r} is no cursor that events() gave out: begin with '' or '$'")


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow's definition, one version of it."""

    workflow: str
    version: int
    #: Of `doc`: the same document stored again is the same version.
    digest: str
    doc: bytes
    created: Micros = 0


class Artifact(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a job left, by name."""

    job: str
    name: str
    size: int
    digest: str
    created: Micros = 0


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Who may use the server. Only the hash is stored."""

    id: str
    digest: bytes
    role: str
    name: str = ""
    created: Micros = 0
    #: 0: never.
    expires: Micros = 0
