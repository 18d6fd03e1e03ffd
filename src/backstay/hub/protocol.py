"""The wire protocol of hubs: channel names, payloads and counter keys, the same on every hub.

    <prefix>:sched             <hint id>:<type>    jobs of a type became pending
    <prefix>:chainc            <chain id>          a chain completed
    <prefix>:owls              <job id>            the worker of this job has lost its lease
    <prefix>:hand:<inbox>      an encoded job      a job for an idle worker (direct handoff); internal
    <prefix>:hint:<hint id>    a counter: how many workers may still respond

Other programs may publish here, too: an unreadable payload decodes to `None`, never to an error.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from functools import lru_cache

SCHEDULED, CHAIN_COMPLETED, OWNERSHIP_LOST, HANDED = "sched", "chainc", "owls", "hand"

#: The TTL of a hint's counter in seconds. A worker that finds no counter polls.
HINT_LIFE = 60.0
#: The longest payload (bytes): longer ones do not fit into the messages of every transport.
LONGEST_PAYLOAD = 7000
#: The longest name of a job type, and the longest id, in bytes.
LONGEST_NAME = 512

#: A separate generator: an application that seeds `random` would otherwise create the same ids in every process.
_random = random.Random(os.urandom(32))
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_random.seed)

_UUID_SIZE, _UUID_BYTES = 36, 16


@dataclass(frozen=True, slots=True)
class Scheduled:
    """Jobs of `type` became pending: call `take_hint(hint_id)`, and claim jobs if it returns more than 0. `missed`:
    some announcements may be lost, so claim anyway; there is no hint to take then.
    """

    type: str
    hint_id: str
    missed: bool = False


@dataclass(frozen=True, slots=True)
class ChainCompleted:
    """A chain completed: read its result. `missed`: messages may be lost, so check whether it has completed."""

    id: str
    missed: bool = False


@dataclass(frozen=True, slots=True)
class OwnershipLost:
    """The worker's lease on this job is lost: stop it. `missed`: messages may be lost; ask the engine."""

    job_id: str
    missed: bool = False


def channel(prefix: str, name: str) -> str:
    return f"{prefix}:{name}"


def hint_key(prefix: str, hint_id: str) -> str:
    return f"{prefix}:hint:{hint_id}"


def new_hint_id() -> str:
    """Return a random UUID, in a fifth of the time of `uuid4`: each job that is enqueued alone needs one."""
    text = f"{_random.getrandbits(128):032x}"
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-a{text[17:20]}-{text[20:]}"


def is_hint_id(text: str) -> bool:
    """Whether the text has the form of a UUID. Without a regular expression, because it delays an idle worker's
    start.
    """
    if len(text) != _UUID_SIZE or not text[8] == text[13] == text[18] == text[23] == "-":
        return False
    try:
        return len(bytes.fromhex(text.replace("-", ""))) == _UUID_BYTES  # fromhex skips white space
    except ValueError:
        return False


def write_scheduled(hint_id: str, job_type: str) -> str:
    return f"{hint_id}:{job_type}"


def split_scheduled(payload: str) -> tuple[str, str] | None:
    """Return job type and hint id. Splits at the first colon: a type name may contain colons."""
    hint_id, colon, job_type = payload[: LONGEST_PAYLOAD + 1].partition(":")
    if not colon or not is_hint_id(hint_id) or not _is_name(job_type):
        return None
    return job_type, hint_id


@lru_cache(maxsize=64)  # all listeners of a process decode the same payload
def read_scheduled(payload: str) -> Scheduled | None:
    parts = split_scheduled(payload)
    return Scheduled(*parts) if parts is not None else None


def read_chain_completed(payload: str) -> ChainCompleted | None:
    return ChainCompleted(payload) if _is_name(payload) else None


def read_ownership_lost(payload: str) -> OwnershipLost | None:
    return OwnershipLost(payload) if _is_name(payload) else None


def _is_name(text: str) -> bool:
    return 0 < len(text) <= LONGEST_NAME and (text.isascii() or len(text.encode()) <= LONGEST_NAME)
