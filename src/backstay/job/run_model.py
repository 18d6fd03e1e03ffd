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

#: queued: none of the run's jobs has started. A finished run becomes running again when one of its jobs is retried.
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

#: The most jobs of a new run, because all of them are stored in one transaction.
LARGEST_RUN = 20_000


class NewRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run to be stored. All of its jobs have its id as `run`, live in its shard and wait only for one another."""

    id: str
    #: The name of the workflow from whose definition the run was created.
    workflow: str
    #: The version of that definition.
    version: int = 0
    #: The run's document, opaque to the store: inputs, job names and what started the run ("manual", "cron", …).
    doc: bytes = b""
    jobs: tuple[NewJob, ...] = ()
    #: The run is cancelled if it has not finished after this time; 0: never.
    timeout: Micros = 0
    #: How long the records of the run and its jobs are stored after the run has finished.
    keep: Micros = 7 * 86_400_000_000


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run's stored record."""

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
    #: The number of the run's last event (`RunEvent.seq`).
    events: int = 0


class RunEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An event of a run. `seq` counts from 1 in each run, without gaps."""

    run: str
    seq: int
    at: Micros
    kind: EventKind
    #: The id of the job; "" for an event of the run itself.
    job: str = ""
    #: The number of the job's attempt at the time of the event.
    attempt: int = 0
    #: The worker that ran this attempt; "": none.
    worker: str = ""
    #: The message of a failure, the reason of a cancellation, or the run's status for run_finished.
    why: str = ""


class EventPage(msgspec.Struct, frozen=True, array_like=True):
    """A page of the events of all runs of a shard. A cursor is a position in the list of these events. No event is ever
    added before a cursor that was already returned, so a reader that continues there misses none.
    """

    events: tuple[RunEvent, ...]
    #: Where the next page starts: after the last event.
    cursor: str


def bad_cursor_error(after: str) -> ConfigError:
    """Return the error for a cursor that `events()` never returned."""
    return ConfigError(f"{after[:100]!r} is not a cursor returned by events(): start with '' or '$'")


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a workflow's definition."""

    workflow: str
    version: int
    #: The hash of `doc`. A document with the same hash as the newest version is not stored as a new version.
    digest: str
    doc: bytes
    created: Micros = 0


class Artifact(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a file that a job stored under a name. The content is stored in parts (`Store.put_artifact`)."""

    job: str
    name: str
    size: int
    digest: str
    created: Micros = 0


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of an access token of the server. Of the token itself only a hash (`digest`) is stored."""

    id: str
    digest: bytes
    role: str
    name: str = ""
    created: Micros = 0
    #: 0: never.
    expires: Micros = 0
    #: Tokens with the same owner share what they take: locks, leases and worker ids. "": the token has its own.
    owner: str = ""
