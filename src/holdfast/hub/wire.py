"""What travels: channel names, payloads and counter keys, the same on every hub.

    <prefix>:sched             <hint id>:<type>    jobs of a type became pending
    <prefix>:chainc            <chain id>          a chain completed
    <prefix>:owls              <job id>            whoever works on this job has lost it
    <prefix>:hint:<hint id>    a counter: how many may still come

Strangers may publish here, too: whatever cannot be read is `None`, never an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

SCHEDULED, CHAIN_COMPLETED, OWNERSHIP_LOST = "sched", "chainc", "owls"

#: How long a hint's counter lives. Whoever comes later finds none, and looks for itself.
HINT_LIFE = 60.0
#: A hint is short text. Longer than this it would not fit into every transport's message.
LONGEST_PAYLOAD = 7000
#: The longest name of a job type, and the longest id, in bytes.
LONGEST_NAME = 512

_UUID = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")


@dataclass(frozen=True, slots=True)
class Scheduled:
    """Jobs of `type` became pending: `take_hint(hint_id)`, and look if it answers more than 0. `missed`: some
    announcements may have passed unheard, so look anyway; there is no hint to take then.
    """

    type: str
    hint_id: str
    missed: bool = False


@dataclass(frozen=True, slots=True)
class ChainCompleted:
    """A chain completed: read its result. `missed`: it may have, so look."""

    id: str
    missed: bool = False


@dataclass(frozen=True, slots=True)
class OwnershipLost:
    """Somebody else has this job by now: stop. `missed`: it may be so; only the engine knows."""

    job_id: str
    missed: bool = False


def channel(prefix: str, name: str) -> str:
    return f"{prefix}:{name}"


def hint_key(prefix: str, hint_id: str) -> str:
    return f"{prefix}:hint:{hint_id}"


def is_hint_id(text: str) -> bool:
    return _UUID.fullmatch(text) is not None


def write_scheduled(hint_id: str, job_type: str) -> str:
    return f"{hint_id}:{job_type}"


@lru_cache(maxsize=64)  # every listener of a process reads the same payload
def read_scheduled(payload: str) -> Scheduled | None:
    """Split at the first colon: a type's name may have more of them."""
    hint_id, colon, job_type = payload[: LONGEST_PAYLOAD + 1].partition(":")
    if not colon or not is_hint_id(hint_id) or not _is_name(job_type):
        return None
    return Scheduled(job_type, hint_id)


def read_chain_completed(payload: str) -> ChainCompleted | None:
    return ChainCompleted(payload) if _is_name(payload) else None


def read_ownership_lost(payload: str) -> OwnershipLost | None:
    return OwnershipLost(payload) if _is_name(payload) else None


def _is_name(text: str) -> bool:
    return 0 < len(text) <= LONGEST_NAME and (text.isascii() or len(text.encode()) <= LONGEST_NAME)
