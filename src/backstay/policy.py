"""Policies: the defaults of locks, limits and idempotency keys, and what happens while the engine is unavailable.

Every option is used by code and covered by a test; the tables in the docs are generated from this file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

MINUTE = 60.0
HOUR = 3600.0

#: What a limit decides while its engine is unavailable: deny, allow, or count within this process only.
OnUnavailable = Literal["deny", "allow", "local"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The default options of all primitives. While the engine is unavailable, a lock is never granted (it fails
    closed); no option changes that.
    """

    lock_ttl: float = field(default=30.0, metadata={"doc": "seconds until a lease ends unless it is renewed"})
    lock_renew: bool = field(default=True, metadata={"doc": "renew leases in the background"})
    lock_max_hold: float = field(default=HOUR, metadata={"doc": "seconds after which renewal stops for good"})
    lock_retries: int = field(default=3, metadata={"doc": "retries while the engine is unreachable"})
    limit_on_unavailable: OnUnavailable = field(
        default="deny",
        metadata={"doc": "limits while the engine is unavailable: `deny`, `allow`, or `local` (count in this process)"},
    )
    idempotency_ttl: float = field(default=24 * HOUR, metadata={"doc": "seconds an outcome is stored and replayed"})
    idempotency_lease: float = field(
        default=30.0, metadata={"doc": "seconds until a running call's lease ends unless it is renewed"}
    )
    idempotency_on_unavailable: Literal["raise", "allow"] = field(
        default="raise",
        metadata={"doc": "calls while the engine is unreachable: `raise`, or `allow` them to run unprotected"},
    )


#: The default policy.
BALANCED = Policy()
#: Leases are not renewed in the background: a lease ends when its TTL has passed, even if its holder still works.
MAX_SAFETY = Policy(lock_renew=False)
#: Prefer availability: long holds, and few retries while the engine is unavailable.
MAX_AVAILABILITY = Policy(
    lock_max_hold=24 * HOUR, lock_retries=1, limit_on_unavailable="local", idempotency_on_unavailable="allow"
)
