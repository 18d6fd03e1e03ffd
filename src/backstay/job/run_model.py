"""Data types of workflow runs: the run's record, its events, definitions, artifacts and tokens.

A run lives in one shard: its id contains the shard, and all of its jobs live there. So a job's end, the release of its
dependents, the run's status and its events change in one transaction.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from backstay.engine.base import Micros
from backstay.errors import ConfigError
from backstay.job.model import NewJob

#: queued: none of its jobs has started. A finished run becomes running again when one of its jobs is retried.
RunStatus = Literal["queued", "running", "success", "failure", "cancelled"]
FINISHED: tuple[RunStatus, ...] = ("success", "failure", "cancelled")

#: Events of a job: ready (it became pending), started, scheduled (a retry or snooze), its final state, lease_expired.
#: Events of a run: created, finished, reopened by a retry, cancellation requested.
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

#: The most jobs of a new run: it is stored in one transaction.
LARGEST_RUN = 20_000


class NewRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run to be stored. All of its jobs have its id as `run` and live in its shard; `after` names jobs of the run."""

    id: str
    #: The workflow definition it was created from.
    workflow: str
    version: int = 0
    #: Opaque to the store: inputs, job names, the trigger.
    doc: bytes = b""
    jobs: tuple[NewJob, ...] = ()
    #: The run is cancelled if it has not finished after this time; 0: never.
    timeout: Micros = 0
    #: How long the run and its jobs are kept after it has finished.
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
    #: When the run is cancelled automatically; 0: never.
    deadline: Micros = 0
    cancel_requested: bool = False
    reason: str = ""
    #: The number of its jobs by state, counting only the last job of each chain; states without jobs are left out.
    counts: dict[str, int] = {}
    #: The seq of its last event.
    events: int = 0


class RunEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An event of a run. `seq` counts from 1 in each run, without gaps."""

    run: str
    seq: int
    at: Micros
    kind: EventKind
    #: "" for events of the run itself.
    job: str = ""
    #: The job's attempt and worker at that time.
    attempt: int = 0
    worker: str = ""
    #: The message of a failure, the reason of a cancellation, or the run's status for run_finished.
    why: str = ""


class EventPage(msgspec.Struct, frozen=True, array_like=True):
    """Events of all runs of a shard. No event ever appears before a cursor that was already returned."""

    events: tuple[RunEvent, ...]
    #: Where the next page starts: after the last event.
    cursor: str


def no_cursor(after: str) -> ConfigError:
    """Return the error for a cursor that `events()` never returned."""
    return ConfigError(f"{after[:100]!r} is not a cursor returned by events(): start with '' or '$'")


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a workflow's definition."""

    workflow: str
    version: int
    #: The hash of `doc`: storing the same document again returns the same version.
    digest: str
    doc: bytes
    created: Micros = 0


class Artifact(msgspec.Struct, frozen=True, kw_only=True):
    """A file stored by a job, by name."""

    job: str
    name: str
    size: int
    digest: str
    created: Micros = 0


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An access token of the server. Only its hash is stored."""

    id: str
    digest: bytes
    role: str
    name: str = ""
    created: Micros = 0
    #: 0: never.
    expires: Micros = 0
