"""Bodies and queries of locks, limits and idempotent calls."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from backstay.runtime.validation import Wire
from backstay.server.http.route import Body, Query, Reply
from backstay.server.schemas.common import (
    Count,
    Fence,
    MaybeName,
    MaybeSeconds,
    MessageText,
    Name,
    PollSeconds,
    Seconds,
)

#: More than any limit needs.
Rates = Annotated[list[Name], Meta(max_length=10)]
Scopes = Annotated[list[Name], Meta(max_length=10_000)]


class AcquireRequest(Body):
    """Acquire a lock. Repeating a `request_id` keeps the place in the queue, or returns the same grant."""

    #: Identifies one acquisition. The client chooses a new one for each acquisition and repeats it with each poll.
    request_id: MaybeName = ""
    #: 30 by default; with `wire: n8n` a day.
    ttl_seconds: Seconds | None = None
    #: False: reply at once.
    wait_till_lock_released: bool = True
    #: Counted from the first request with this request_id.
    max_wait_seconds: MaybeSeconds = 86400.0
    #: How long this one request may take.
    poll_seconds: PollSeconds = 50.0
    #: Above 0: the grant expires after that many seconds unless it is confirmed.
    confirm_seconds: MaybeSeconds = 0.0
    #: More than 1: a semaphore. All callers of one name must agree.
    permits: Count = 1
    lock_id: MaybeName = ""
    execution_id: MaybeName = ""
    workflow_id: MaybeName = ""
    workflow_name: MaybeName = ""
    #: `n8n`: the keys of n8n's own Redis nodes (Redis only): no queue, no fence; the server polls once a second.
    wire: Wire = "backstay"


class LockReply(Reply):
    """The state of an acquisition: the ten fields of the reference implementation, then Backstay's own."""

    acquired: bool
    #: 1 for the holder; else the number of callers that hold the lock or wait for it.
    count: int
    scope: str
    lock_id: str
    key: str
    meta_key: str
    workflow_id: str
    workflow_name: str
    execution_id: str
    #: ISO 8601; "" while waiting.
    locked_at: str
    state: Literal["held", "waiting"]
    request_id: str
    #: A number as text. "" while waiting, and with `wire: n8n`.
    fence: str
    expires_at: str
    #: The number of waiters ahead of this one; 0 for the holder.
    position: int
    #: False: the grant expires at `expires_at` unless the client calls /confirm.
    confirmed: bool


class HoldRequest(Body):
    """Renew or confirm a held lock: it expires `ttl_seconds` from now."""

    lock_id: Name
    #: 30 by default; with `wire: n8n` a day.
    ttl_seconds: Seconds | None = None
    wire: Wire = "backstay"


class ReleaseRequest(Body):
    lock_id: Name
    wire: Wire = "backstay"


class ReleasedReply(Reply):
    """The result of a release. `idempotent`: the lock was already released, and has no other holder."""

    released: bool
    idempotent: bool
    scope: str
    lock_id: str


class CleanupRequest(Body):
    """Release the locks of a failed execution: those named in `scopes`; without them all locks that were acquired with
    its `execution_id` (`wire: n8n` requires scopes).
    """

    execution_id: Name
    scopes: Scopes | None = None
    wire: Wire = "backstay"


class CleanupReply(Reply):
    cleaned: bool
    cleaned_count: int
    scopes: list[str]
    reason: str


class HolderView(Reply):
    lock_id: str
    fence: str
    execution_id: str
    workflow_id: str
    workflow_name: str
    locked_at: str
    expires_at: str
    exclusive: bool


class WaiterView(Reply):
    lock_id: str
    position: int
    waiting_seconds: float
    execution_id: str
    workflow_id: str
    workflow_name: str


class LockView(Reply):
    """The state of one lock, semaphore or read-write lock. `permits` null: a read-write lock, or one that is not in
    use.
    """

    name: str
    fence: str
    permits: int | None
    holders: list[HolderView]
    queue: list[WaiterView]


class WireQuery(Query):
    wire: Wire = "backstay"


class LocksQuery(Query):
    prefix: MaybeName = ""


class HitRequest(Body):
    """Take `cost` from a rate limit, given as `rates` (as in "100/minute"), or as `limit` per `windowSeconds`."""

    scope: Name = "all"
    rates: Rates = []
    limit: Count | None = None
    window_seconds: Seconds | None = msgspec.field(default=None, name="windowSeconds")
    algorithm: Literal["sliding", "fixed", "sliding-counter", "token-bucket", "gcra"] = "sliding"
    burst: Count | None = None
    cost: Count = 1
    #: `n8n`: the counter of n8n's own rate_limit_check for this scope (Redis only). Every hit counts, denied or not.
    wire: Wire = "backstay"


class HitReply(Reply):
    allowed: bool
    scope: str
    count: int
    limit: int
    remaining: int
    #: Seconds.
    reset_after: float
    retry_after: float
    window_seconds: float
    #: What decided: "engine", "memory", or the policy while the engine is unavailable.
    by: str


class BeginRequest(Body):
    """Begin an idempotent call, or get the outcome of a finished one. Repeating a `request_id` renews the lease of a
    running call.
    """

    request_id: MaybeName = ""
    #: The call's arguments: a key with another fingerprint is refused.
    fingerprint: Any = None
    lease_seconds: Seconds = 30.0
    #: How long to wait for a call that another client runs.
    wait_seconds: PollSeconds = 0.0


class BeginReply(Reply):
    """`begun`: the client runs the call and then sends /complete or /fail. Else the outcome of an earlier call."""

    state: Literal["begun", "completed", "failed"]
    key: str
    #: Send both with /complete and /fail; "" unless begun.
    request_id: str
    fence: str
    #: When the lease expires, or when the outcome is deleted.
    until: str
    result: Any = None
    error: str = ""


class CompleteCallRequest(Body):
    request_id: Name
    fence: Fence
    result: Any = None
    ttl_seconds: Seconds = 86400.0


class FailCallRequest(Body):
    """Report that a call failed. With `replay`, later callers get this failure; else the next call runs."""

    request_id: Name
    fence: Fence
    error: MessageText = ""
    replay: bool = False
    ttl_seconds: Seconds = 86400.0


class SettledReply(Reply):
    key: str
    state: Literal["completed", "failed", "forgotten"]
