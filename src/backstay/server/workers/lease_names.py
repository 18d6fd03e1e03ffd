"""What leases are called over HTTP: the job's id and its fence, and how long it lives unless that is the usual time. So
any server of a fleet can answer for any lease, one that was started a moment ago included.
"""

from __future__ import annotations

from backstay.engine.base import Micros
from backstay.job.ids import lease_id, split_lease

#: As workers that speak to the engine have it.
USUAL: Micros = 30_000_000
#: What a worker may ask for: from a second to a day.
SHORTEST, LONGEST = 1_000_000, 86_400_000_000
#: Beyond it, no engine can count.
LARGEST_FENCE = 2**63 - 1


def lease_name(job: str, fence: int, ttl: Micros) -> str:
    """It ends with the fence."""
    return lease_id(job, fence) if ttl == USUAL else lease_id(f"{job}.{ttl // 1000}", fence)


def read_name(lease: str) -> tuple[str, int, Micros]:
    """Job, fence and time to live. Raises ValueError for what is no lease's name."""
    rest, fence = split_lease(lease)
    job, dot, millis = rest.partition(".")
    ttl = int(millis) * 1000 if dot else USUAL
    if not 0 <= fence <= LARGEST_FENCE or not SHORTEST <= ttl <= LONGEST:
        raise ValueError(lease)
    return job, fence, ttl
