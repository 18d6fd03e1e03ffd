"""What the columns of `backstay_job` mean: states and flags as numbers, and the part of a row that transitions need."""

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
#: Pending to whoever asks, but in no lane: its concurrency key is taken.
PARKED: Final = 8

#: By number: what the state is called.
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
#: By number: the column of `backstay_job_kind` that counts it.
COLUMNS = (*STATES[:8], "parked")
#: By name: the numbers it stands for.
NUMBERS: dict[str, tuple[int, ...]] = {
    state: tuple(number for number, name in enumerate(STATES) if name == state) for state in STATES
}
FINALS = (COMPLETED, FAILED, CANCELLED, SKIPPED)

JOB_WATCHED: Final = 1
CHAIN_WATCHED: Final = 2
#: Other jobs wait for its chain.
AWAITED: Final = 4
#: It starts however its blockers ended.
ALL_DONE: Final = 8
CANCEL_WANTED: Final = 16
HAS_BLOCKERS: Final = 32
HAS_LOG: Final = 64
HAS_OUTPUTS: Final = 128
#: It has a run, a chain, a unique or a concurrency key: its end takes more than a row.
SPECIAL: Final = 256
#: Its arguments are large, and lie in a table of their own.
HAS_BODY: Final = 512
#: Its failure holds nobody up.
SOFT: Final = 1024
#: It starts when all of its blockers ended and one of them failed.
ANY_FAILURE: Final = 2048
#: It was skipped because one before it had failed.
BLAMED: Final = 4096
#: Its run is stored, and decides how long it stays.
IN_RUN: Final = 8192
HAS_FILES: Final = 16384
#: With any of these, others must hear of its end.
TOLD: Final = JOB_WATCHED | CHAIN_WATCHED | AWAITED | SPECIAL

#: How a blocker ended.
NOT_YET: Final = 0
WELL: Final = 1
BADLY: Final = 2
#: It failed, or was skipped because one before it had.
FAILING: Final = 4
#: Well, and its result lies with itself: both belong to one run, and stay as long.
THERE: Final = 6

encode = msgspec.msgpack.Encoder().encode
decode_failure = msgspec.msgpack.Decoder(Failure).decode
decode_unique = msgspec.msgpack.Decoder(Unique).decode
to_json = msgspec.json.Encoder().encode


def cancellation(reason: str, attempt: int, now: int) -> bytes:
    """Why a job was cancelled, as it is stored."""
    return encode(Failure(kind="Cancelled", message=reason, attempt=attempt, at=now))


class Entry(NamedTuple):
    """A stored job as a transition sees it; the columns of `entry` in the SQL files, in this order."""

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
def labels_of(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text))


@lru_cache(maxsize=1024)
def label_set(text: str) -> frozenset[str]:
    return frozenset(json.loads(text))


def text_of(values: Any) -> str:
    """A list as the JSON that a statement's `json_each` takes apart."""
    return to_json(values).decode()
