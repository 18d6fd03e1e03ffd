"""What the columns of `holdfast_job` mean: states and flags as numbers, and the part of a row that transitions need."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.job.model import Failure, State, Unique

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
#: By number: the column of `holdfast_job_kind` that counts it.
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
#: With any of these, others must hear of its end.
TOLD: Final = JOB_WATCHED | CHAIN_WATCHED | AWAITED | SPECIAL

#: How a blocker ended.
NOT_YET: Final = 0
WELL: Final = 1
BADLY: Final = 2
#: Badly, but somebody had the job go on by hand.
FORGIVEN: Final = 3

encode = msgspec.msgpack.Encoder().encode
decode_failure = msgspec.msgpack.Decoder(Failure).decode
decode_unique = msgspec.msgpack.Decoder(Unique).decode
to_json = msgspec.json.Encoder().encode


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
