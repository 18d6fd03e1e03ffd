"""The keys that n8n's own Redis nodes can speak, described once: for `wire="n8n"` in Python and for the primitives.

A lock is two keys: a counter (who made it 1 holds the lock) and beside it the holder's identity as JSON. A limit is a
counter for each window of time. A scope is part of the key as it is: `:` and braces are not escaped, since n8n's side
writes it that way, too.
"""

from __future__ import annotations

#: Long, because a stock node cannot renew: it is how long a crashed holder is in the way.
TTL_SECONDS = 86_400
MAX_WAIT_SECONDS = 86_400
#: Ten years, as everywhere; Redis itself refuses what is much longer, and would do so after it has counted.
LONGEST_SECONDS = 315_360_000
LARGEST_LIMIT = 1_000_000_000
#: A waiter looks this often.
POLL_SECONDS = 1.0

LOCK_PREFIX = "n8n-lock-"
META_SUFFIX = ":meta"
LIMIT_PREFIX = "n8n-ratelimit-"

#: What the identity beside a lock says, in this order.
IDENTITY = ("lock_id", "workflow_id", "workflow_name", "execution_id", "locked_at")


def lock_key(scope: str) -> str:
    return f"{LOCK_PREFIX}{scope}"


def meta_key(scope: str) -> str:
    return f"{lock_key(scope)}{META_SUFFIX}"


def limit_key(scope: str, bucket: int) -> str:
    return f"{LIMIT_PREFIX}{scope}-{bucket}"


def limit_bucket(now_ms: int, window_seconds: int) -> int:
    """The window that a moment is in."""
    return now_ms // (window_seconds * 1000)


def hash_tag(scope: str) -> str:
    """What a Redis Cluster goes by when it places the keys of a scope; empty: by each whole key, so they part."""
    _, opened, rest = scope.partition("{")
    tag, closed, _ = rest.partition("}")
    return tag if opened and closed else ""
