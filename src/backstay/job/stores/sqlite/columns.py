"""Constants and types for the columns of `backstay_job`: states, flags, and the columns that state transitions need."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from backstay.job.model import Failure, State, Unique

SCHEDULED: Final = 0
BLOCKED: Final = 1
PENDING: Final = 2
RUNNING: Final = 3
COMPLETED: Final = 4
FAILED: Final = 5
CANCELLED: Final = 6
SKIPPED: Final = 7
#: A parked job is reported as pending but is in no lane: its concurrency key already has as many running jobs as it
#: allows.
PARKED: Final = 8

#: The name of each state. The index is the state's number. A parked job is reported as pending.
STATES: tuple[State, ...] = (
    "scheduled",
    "blocked",
    "pending",
    "running",
    "completed",
    "failed",
    "cancelled",
    "skipped",
    "pending",
)
#: For each state, the column of `backstay_job_kind` that counts the jobs in it. The index is the state's number.
COLUMNS = (*STATES[:8], "parked")
#: For each name of a state, the numbers of the states with this name. Two states have the name pending: PENDING and
#: PARKED.
NUMBERS: dict[str, tuple[int, ...]] = {
    state: tuple(number for number, name in enumerate(STATES) if name == state) for state in STATES
}
FINALS = (COMPLETED, FAILED, CANCELLED, SKIPPED)

JOB_WATCHED: Final = 1
CHAIN_WATCHED: Final = 2
#: Other jobs wait for the job's chain.
AWAITED: Final = 4
#: The job starts when all its blockers have ended, whatever their outcome.
ALL_DONE: Final = 8
CANCEL_REQUESTED: Final = 16
HAS_BLOCKERS: Final = 32
HAS_LOG: Final = 64
HAS_OUTPUTS: Final = 128
#: The job belongs to a run, continues a chain, or has a unique key or a concurrency key, so its end changes more than
#: its own row.
SPECIAL: Final = 256
#: The job's arguments are large, so they are in `backstay_job_body`.
HAS_BODY: Final = 512
#: The job's failure neither skips its dependents nor fails its run.
SOFT: Final = 1024
#: The job starts when all its blockers have ended and at least one failed.
ANY_FAILURE: Final = 2048
#: The job was skipped because a job that it depends on failed.
UPSTREAM_FAILED: Final = 4096
#: The job belongs to a run that has a row in `backstay_run`, so the job is deleted together with the run.
IN_RUN: Final = 8192
HAS_FILES: Final = 16384
#: If a job has any of these flags, its end affects clients that wait for it, dependents, a run, a unique key or a
#: concurrency key.
END_HAS_EFFECTS: Final = JOB_WATCHED | CHAIN_WATCHED | AWAITED | SPECIAL

#: The constants OUTCOME_* are the values of `backstay_job_wait.outcome`: how a blocker of a job ended. OUTCOME_OPEN:
#: the blocker has not ended.
OUTCOME_OPEN: Final = 0
OUTCOME_OK: Final = 1
#: The blocker was cancelled, or was skipped for a reason other than a failure.
OUTCOME_BAD: Final = 2
#: The blocker failed, or was skipped because a job that it depends on failed.
OUTCOME_FAILED: Final = 4
#: Like OUTCOME_OK, but the dependent has no copy of the result: a claim reads it from the blocker's row. That row is
#: still there, because blocker and dependent belong to one run and are deleted together.
OUTCOME_OK_SHARED: Final = 6

encode = msgspec.msgpack.Encoder().encode
decode_failure = msgspec.msgpack.Decoder(Failure).decode
decode_unique = msgspec.msgpack.Decoder(Unique).decode
to_json = msgspec.json.Encoder().encode


def encode_cancellation(reason: str, attempt: int, now: int) -> bytes:
    """Encode why a job was cancelled, as the value of the job's `error` column."""
    return encode(Failure(kind="Cancelled", message=reason, attempt=attempt, at=now))


class JobRecord(NamedTuple):
    """The columns of a stored job that state transitions use. The SQL statements that return a JobRecord select them in
    this order.
    """

    num: int
    id: str
    kind: int
    lane: int
    state: int
    due: int
    priority: int
    attempt: int
    retries: int
    snoozes: int
    flags: int
    fence: int
    worker: str
    keep: int
    keep_failed: int
    chain: str
    run: str
    ckey: str | None
    uniq: bytes | None
    error: bytes | None


@lru_cache(maxsize=1024)
def parse_labels(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text))


@lru_cache(maxsize=1024)
def parse_label_set(text: str) -> frozenset[str]:
    return frozenset(json.loads(text))


def json_text(values: Any) -> str:
    """Encode a list as JSON text for a statement's `json_each`."""
    return to_json(values).decode()
