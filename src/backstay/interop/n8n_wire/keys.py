"""The Redis keys that Backstay shares with n8n's nodes: used by `wire="n8n"` and by the n8n primitives.

A lock has two keys: a counter (the client that sets it to 1 holds the lock) and the holder's identity as JSON. A limit
has one counter per time window. The scope is part of the key without escaping of `:` or braces, because n8n's nodes
do not escape it either.
"""

from __future__ import annotations

#: The default TTL of a lock: one day, because n8n's stock nodes cannot renew a lock. A crashed holder blocks the lock
#: for this long.
TTL_SECONDS = 86_400
MAX_WAIT_SECONDS = 86_400
#: The most seconds of a lock's TTL, a limit's window and similar options: ten years, as in the rest of Backstay. The
#: window is also the TTL of a limit's counter. Redis itself rejects a much larger TTL, but only after it has
#: counted the hit.
LONGEST_SECONDS = 315_360_000
LARGEST_LIMIT = 1_000_000_000
#: Seconds between the polls of a waiter.
POLL_SECONDS = 1.0

LOCK_PREFIX = "n8n-lock-"
META_SUFFIX = ":meta"
LIMIT_PREFIX = "n8n-ratelimit-"

#: The fields of the holder's identity, in order.
IDENTITY = ("lock_id", "workflow_id", "workflow_name", "execution_id", "locked_at")
#: A further field, which n8n's nodes ignore: the tag of the owner to whom a server granted the lock over HTTP.
OWNER = "owner"


def lock_key(scope: str) -> str:
    return f"{LOCK_PREFIX}{scope}"


def meta_key(scope: str) -> str:
    return f"{lock_key(scope)}{META_SUFFIX}"


def limit_key(scope: str, bucket: int) -> str:
    return f"{LIMIT_PREFIX}{scope}-{bucket}"


def limit_bucket(now_ms: int, window_seconds: int) -> int:
    """Return the number of the time window that contains `now_ms`, counting windows from the epoch."""
    return now_ms // (window_seconds * 1000)


def hash_tag(scope: str) -> str:
    """Return the Redis Cluster hash tag of a scope. Empty if it has none: then its keys may be in different slots."""
    _, opened, rest = scope.partition("{")
    tag, closed, _ = rest.partition("}")
    return tag if opened and closed else ""
