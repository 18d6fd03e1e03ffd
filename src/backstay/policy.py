"""What happens when the engine is down, and how far a lock may be kept. One object, chosen once.

Every option here is read by code and covered by a test; the tables in the docs are made from this file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

MINUTE = 60.0
HOUR = 3600.0

#: What a limit answers while its engine is away: no, yes, or what this process alone can say.
OnUnavailable = Literal["deny", "allow", "local"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The defaults of every primitive. A lock always fails closed: no option turns that off."""

    lock_ttl: float = field(default=30.0, metadata={"doc": "seconds a lease lives without renewal"})
    lock_renew: bool = field(default=True, metadata={"doc": "renew leases in the background"})
    lock_max_hold: float = field(default=HOUR, metadata={"doc": "seconds after which renewal stops for good"})
    lock_retries: int = field(default=3, metadata={"doc": "attempts after the first when the engine is unreachable"})
    limit_on_unavailable: OnUnavailable = field(
        default="deny",
        metadata={"doc": "what a limit answers while the engine is away: `deny`, `allow`, or `local` for this process"},
    )
    idempotency_ttl: float = field(default=24 * HOUR, metadata={"doc": "seconds an outcome is kept and replayed"})
    idempotency_lease: float = field(default=30.0, metadata={"doc": "seconds a running call lives without renewal"})
    idempotency_on_unavailable: Literal["raise", "allow"] = field(
        default="raise", metadata={"doc": "engine unreachable: `raise`, or `allow` the call to run unprotected"}
    )


#: The everyday choice.
BALANCED = Policy()
#: The TTL is a hard bound: nothing is renewed behind your back.
MAX_SAFETY = Policy(lock_renew=False)
#: Keep going: long holds, and no waiting for an engine that is away.
MAX_AVAILABILITY = Policy(
    lock_max_hold=24 * HOUR, lock_retries=1, limit_on_unavailable="local", idempotency_on_unavailable="allow"
)
