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

#: The rates of one limit, as in `100/minute`.
Rates = Annotated[list[Name], Meta(max_length=10)]
Scopes = Annotated[list[Name], Meta(max_length=10_000)]


class AcquireRequest(Body):
    """Acquire a lock. Repeating a `request_id` keeps the place in the queue, or returns the same grant."""

    #: Identifies one acquisition. The client chooses a new one for each acquisition and repeats it with each poll.
    request_id: MaybeName = ""
    #: The lock's time to live. The default is 30 s, with `wire: n8n` one day.
    ttl_seconds: Seconds | None = None
    #: False: reply at once, even if the lock is not free.
    wait_till_lock_released: bool = True
    #: How long the client waits in total, counted from its first request with this request_id.
    max_wait_seconds: MaybeSeconds = 86400.0
    #: How long this one request may wait before the server replies 202.
    poll_seconds: PollSeconds = 50.0
    #: Above 0: the grant expires after that many seconds unless the client sends /confirm.
    confirm_seconds: MaybeSeconds = 0.0
    #: How many callers can hold the lock at once; more than 1: a semaphore. All callers of one name must send the same.
    permits: Count = 1
    lock_id: MaybeName = ""
    execution_id: MaybeName = ""
    workflow_id: MaybeName = ""
    workflow_name: MaybeName = ""
    #: `n8n`: lock with the Redis keys that n8n's own nodes use (Redis only). These keys hold no queue and no fence, so
    #: the server waits by polling.
    wire: Wire = "backstay"


class LockReply(Reply):
    """The state of an acquisition. The first ten fields are those that the n8n workflow lock_acquisition returns."""

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
    #: The time of the grant in ISO 8601; "" while waiting.
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
    """Renew or confirm a held lock: the lock expires `ttl_seconds` from now."""

    lock_id: Name
    #: The lock's time to live. The default is 30 s, with `wire: n8n` one day.
    ttl_seconds: Seconds | None = None
    wire: Wire = "backstay"


class ReleaseRequest(Body):
    lock_id: Name
    wire: Wire = "backstay"


class ReleasedReply(Reply):
    """The result of a release. `idempotent`: the request changed nothing, because the lock was already released and no
    other client holds it.
    """

    released: bool
    idempotent: bool
    scope: str
    lock_id: str


class CleanupRequest(Body):
    """Release the locks of a failed execution: those named in `scopes`, or by default all locks that were acquired with
    its `execution_id`. With `wire: n8n`, `scopes` is required.
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
    """The state of one lock, semaphore or read-write lock. `permits`: how many callers can hold it at once; null for a
    read-write lock, and for a name that is not in use.
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
    #: `n8n`: count in the Redis key that the n8n workflow rate_limit_check uses for this scope (Redis only). Denied
    #: hits are counted, too.
    wire: Wire = "backstay"


class HitReply(Reply):
    allowed: bool
    scope: str
    count: int
    limit: int
    remaining: int
    #: Seconds until the limit's count is zero, if no further hits are counted.
    reset_after: float
    retry_after: float
    window_seconds: float
    #: What made the decision: "engine"; "memory", a recent denial that the server remembers; or, while the engine is
    #: unavailable, the setting for this case: "deny", "allow" or "local".
    by: str


class BeginRequest(Body):
    """Begin an idempotent call, or get the outcome of a finished one. Repeating a `request_id` renews the lease of a
    running call.
    """

    request_id: MaybeName = ""
    #: The call's arguments, or what identifies them. A key that was begun with another fingerprint is refused (422).
    fingerprint: Any = None
    lease_seconds: Seconds = 30.0
    #: How long to wait for a call that another client runs.
    wait_seconds: PollSeconds = 0.0


class BeginReply(Reply):
    """The state of the key's call. `begun`: this client must run the call and then send /complete or /fail.
    `completed` or `failed`: the call ran before, and the reply contains its outcome.
    """

    state: Literal["begun", "completed", "failed"]
    key: str
    #: The client sends `request_id` and `fence` with /complete or /fail. Both are "" unless `state` is `begun`.
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
    """Report that a call failed. With `replay`, later callers get this failure; else the next caller runs the call."""

    request_id: Name
    fence: Fence
    error: MessageText = ""
    replay: bool = False
    ttl_seconds: Seconds = 86400.0


class SettledReply(Reply):
    key: str
    state: Literal["completed", "failed", "forgotten"]
