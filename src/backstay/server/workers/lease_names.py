"""Names of leases over HTTP: job id, fence, and the time to live unless it is the default. Since the name holds all of
that, any server can serve any lease, also one that has just started.
"""

from __future__ import annotations

from backstay.engine.base import Micros
from backstay.job.ids import lease_id, split_lease

#: The default of workers that connect to the engine.
DEFAULT_TTL: Micros = 30_000_000
#: The times to live that a worker may request: from a second to a day.
SHORTEST, LONGEST = 1_000_000, 86_400_000_000
#: Fences are signed 64-bit numbers in all engines.
LARGEST_FENCE = 2**63 - 1


def make_lease_name(job: str, fence: int, ttl: Micros) -> str:
    """Return the lease's name, which ends with the fence."""
    return lease_id(job, fence) if ttl == DEFAULT_TTL else lease_id(f"{job}.{ttl // 1000}", fence)


def parse_lease_name(lease: str) -> tuple[str, int, Micros]:
    """Return job, fence and time to live. Raises ValueError for a malformed name."""
    rest, fence = split_lease(lease)
    job, dot, millis = rest.partition(".")
    ttl = int(millis) * 1000 if dot else DEFAULT_TTL
    if not 0 <= fence <= LARGEST_FENCE or not SHORTEST <= ttl <= LONGEST:
        raise ValueError(lease)
    return job, fence, ttl
