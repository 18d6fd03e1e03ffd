"""The wire protocol of hubs: channel names, payloads and counter keys, the same on every hub.

    channel                    payload             meaning
    <prefix>:sched             <hint id>:<type>    jobs of a type became pending
                               <type>              the same, from a program that has one counter for each type
    <prefix>:chainc            <chain id>          a chain completed
    <prefix>:owls              <job id>            "ownership lost": the worker of this job has lost the job's lease, or
                                                   the job's cancellation is requested
    <prefix>:hand:<inbox>      an encoded job      a job leased directly to an idle worker, which alone subscribes to
                                                   <inbox>; internal

    counter key                meaning
    <prefix>:hint:<hint id>    how many workers may still respond to the announcement with this hint id
    <prefix>:hint:<type>       the same, for all announcements of a type that have no hint id

Other programs may publish on these channels, too. An unreadable payload decodes to `None` and raises no error.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from functools import lru_cache

SCHEDULED, CHAIN_COMPLETED, OWNERSHIP_LOST, HANDOFF = "sched", "chainc", "owls", "hand"

#: The TTL of a hint's counter in seconds. A worker that finds no counter claims jobs anyway.
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
    """An announcement: jobs of `type` became pending. `hint_id` names a counter of how many workers may respond; in an
    announcement without a hint id, it is the type. A worker decrements the counter, and claims jobs only if it was
    above 0. `missed`: announcements may have been lost, so the worker claims without asking a counter.
    """

    type: str
    hint_id: str
    missed: bool = False


@dataclass(frozen=True, slots=True)
class ChainCompleted:
    """A chain completed: read its result. `missed`: messages may be lost, so check whether the chain has completed."""

    id: str
    missed: bool = False


@dataclass(frozen=True, slots=True)
class OwnershipLost:
    """The lease of this job is lost: its worker must stop the job. If `missed` is True, the connection was interrupted
    and such a message may have been lost: the worker must check the lease instead.
    """

    job_id: str
    missed: bool = False


def channel(prefix: str, name: str) -> str:
    return f"{prefix}:{name}"


def hint_key(prefix: str, hint_id: str) -> str:
    return f"{prefix}:hint:{hint_id}"


def new_hint_id() -> str:
    """Return a random UUID. `uuid4` would take five times as long, and a new id is needed for each job that is enqueued
    alone.
    """
    text = f"{_random.getrandbits(128):032x}"
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-a{text[17:20]}-{text[20:]}"


def is_hint_id(text: str) -> bool:
    """Whether the text has the form of a UUID. Every worker checks this for every announcement before it claims, so it
    avoids a regular expression.
    """
    if len(text) != _UUID_SIZE or not text[8] == text[13] == text[18] == text[23] == "-":
        return False
    try:
        return len(bytes.fromhex(text.replace("-", ""))) == _UUID_BYTES  # fromhex skips white space, so check the size
    except ValueError:
        return False


def write_scheduled(hint_id: str, job_type: str) -> str:
    return f"{hint_id}:{job_type}"


def split_scheduled(payload: str) -> tuple[str, str] | None:
    """Return job type and hint id; None if malformed. Splits at the first colon: a type name may contain colons. A
    payload that does not begin with a hint id is a type, whose name is also the hint id.
    """
    hint_id, colon, job_type = payload[: LONGEST_PAYLOAD + 1].partition(":")
    if is_hint_id(hint_id):
        return (job_type, hint_id) if colon and _is_name(job_type) else None
    # Not every engine can store a NUL, and the name becomes a part of a counter's key.
    return (payload, payload) if _is_name(payload) and "\0" not in payload else None


@lru_cache(maxsize=64)  # all listeners of a process decode each payload
def read_scheduled(payload: str) -> Scheduled | None:
    parts = split_scheduled(payload)
    return Scheduled(*parts) if parts is not None else None


def read_chain_completed(payload: str) -> ChainCompleted | None:
    return ChainCompleted(payload) if _is_name(payload) else None


def read_ownership_lost(payload: str) -> OwnershipLost | None:
    return OwnershipLost(payload) if _is_name(payload) else None


def _is_name(text: str) -> bool:
    return 0 < len(text) <= LONGEST_NAME and (text.isascii() or len(text.encode()) <= LONGEST_NAME)
