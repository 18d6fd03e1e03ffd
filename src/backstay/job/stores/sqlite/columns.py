"""Constants and types for the columns of `backstay_job`: states, flags, and the part of a row that transitions use."""

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
#: Reported as pending, but in no lane: its concurrency key is at its limit.
PARKED: Final = 8

#: Name of each state, by number.
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
#: Column of `backstay_job_kind` that counts each state, by number.
COLUMNS = (*STATES[:8], "parked")
#: Numbers of each state, by name.
NUMBERS: dict[str, tuple[int, ...]] = {
    state: tuple(number for number, name in enumerate(STATES) if name == state) for state in STATES
}
FINALS = (COMPLETED, FAILED, CANCELLED, SKIPPED)

JOB_WATCHED: Final = 1
CHAIN_WATCHED: Final = 2
#: Other jobs wait for its chain.
AWAITED: Final = 4
#: It starts when all blockers ended, whatever their outcome.
ALL_DONE: Final = 8
CANCEL_WANTED: Final = 16
HAS_BLOCKERS: Final = 32
HAS_LOG: Final = 64
HAS_OUTPUTS: Final = 128
#: It has a run, a chain, a unique or a concurrency key: its end changes more than its own row.
SPECIAL: Final = 256
#: Its arguments are large and stored in `backstay_job_body`.
HAS_BODY: Final = 512
#: Its failure neither skips its dependents nor fails its run.
SOFT: Final = 1024
#: It starts when all blockers ended and at least one failed.
ANY_FAILURE: Final = 2048
#: It was skipped because an upstream job failed.
BLAMED: Final = 4096
#: Its run is stored; its record is deleted together with the run.
IN_RUN: Final = 8192
HAS_FILES: Final = 16384
#: With any of these flags, the end of the job affects watchers, dependents, a run or a key.
END_HAS_EFFECTS: Final = JOB_WATCHED | CHAIN_WATCHED | AWAITED | SPECIAL

#: Outcome of a blocker, as stored in `backstay_job_wait.ended`. OPEN: it has not ended.
OUTCOME_OPEN: Final = 0
OUTCOME_OK: Final = 1
OUTCOME_BAD: Final = 2
#: It failed, or was skipped because an upstream job failed.
OUTCOME_FAILED: Final = 4
#: OK, and the result is not copied but read from the blocker: both jobs belong to one run and are deleted together.
OUTCOME_OK_SHARED: Final = 6

encode = msgspec.msgpack.Encoder().encode
decode_failure = msgspec.msgpack.Decoder(Failure).decode
decode_unique = msgspec.msgpack.Decoder(Unique).decode
to_json = msgspec.json.Encoder().encode


def cancellation(reason: str, attempt: int, now: int) -> bytes:
    """Encode the reason of a cancellation for the `error` column."""
    return encode(Failure(kind="Cancelled", message=reason, attempt=attempt, at=now))


class JobRecord(NamedTuple):
    """The columns of a stored job that state transitions use, in the order of the SQL statements that return it."""

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
