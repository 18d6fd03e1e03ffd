"""Bodies of locks, limits and idempotency."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from backstay.interop.n8n_wire.option import Wire
from backstay.server.http.route import Body, Query, Reply
from backstay.server.schemas.common import Count, Fence, MaybeName, MaybeSeconds, Name, PollSeconds, Seconds, Words

#: Ten rates are more than a limit has.
Rates = Annotated[list[Name], Meta(max_length=10)]
Scopes = Annotated[list[Name], Meta(max_length=10_000)]


class AcquireRequest(Body):
    """Take a lock. The same `request_id` again goes on waiting in the same place, or gets the same grant."""

    #: Names this wish: made by the caller, new for each new one.
    request_id: MaybeName = ""
    #: 30; with `wire: n8n` a day.
    ttl_seconds: Seconds | None = None
    #: False: answer at once.
    wait_till_lock_released: bool = True
    #: Since the first request with this request_id.
    max_wait_seconds: MaybeSeconds = 86400.0
    #: How long this one request may take.
    poll_seconds: PollSeconds = 50.0
    #: Above 0: the grant ends after so long unless it is confirmed.
    confirm_seconds: MaybeSeconds = 0.0
    #: More than 1: a semaphore. All callers of a name must agree.
    permits: Count = 1
    lock_id: MaybeName = ""
    execution_id: MaybeName = ""
    workflow_id: MaybeName = ""
    workflow_name: MaybeName = ""
    #: `n8n`: the keys of n8n's own Redis nodes (Redis only): no queue, no fence; the server looks once a second.
    wire: Wire = "backstay"


class LockReply(Reply):
    """The ten fields of the reference's primitive, and what Backstay knows beyond."""

    acquired: bool
    #: 1 for the holder; else how many hold it or wait.
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
    #: Text: not every reader has 64-bit numbers. "" while waiting, and with `wire: n8n`.
    fence: str
    expires_at: str
    #: How many wait before this one; 0 for the holder.
    position: int
    #: False: it ends with `expires_at` unless /confirm is called.
    confirmed: bool


class HoldRequest(Body):
    """Whose lock this is about, and for how long from now on."""

    lock_id: Name
    #: 30; with `wire: n8n` a day.
    ttl_seconds: Seconds | None = None
    wire: Wire = "backstay"


class ReleaseRequest(Body):
    lock_id: Name
    wire: Wire = "backstay"


class ReleasedReply(Reply):
    """`idempotent`: it was gone already, and nobody else has it."""

    released: bool
    idempotent: bool
    scope: str
    lock_id: str


class CleanupRequest(Body):
    """Release what a failed execution holds. No scopes: wherever it said its execution_id (`wire: n8n` needs them)."""

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
    """One lock, semaphore or read-write lock at one moment. `permits` null: a read-write lock, or nobody's."""

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
    """Take from a limit: `rates` as in "100/minute", or `limit` in `windowSeconds`."""

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
    #: Who decided: "engine", "memory", or the policy where the engine is away.
    by: str


class BeginRequest(Body):
    """Start a call, or learn what came of it. The same `request_id` again keeps a running call alive."""

    request_id: MaybeName = ""
    #: What the call is about: the same key with another one is refused.
    fingerprint: Any = None
    lease_seconds: Seconds = 30.0
    #: How long to wait for a call that runs elsewhere.
    wait_seconds: PollSeconds = 0.0


class BeginReply(Reply):
    """`begun`: it is yours to carry out, then /complete or /fail. Else what came of it."""

    state: Literal["begun", "completed", "failed"]
    key: str
    #: Both for /complete and /fail; "" unless begun.
    request_id: str
    fence: str
    #: When the lease ends, or the outcome is forgotten.
    until: str
    result: Any = None
    error: str = ""


class CompleteCallRequest(Body):
    request_id: Name
    fence: Fence
    result: Any = None
    ttl_seconds: Seconds = 86400.0


class FailCallRequest(Body):
    """`replay` keeps the failure for whoever calls again; else the next call runs."""

    request_id: Name
    fence: Fence
    error: Words = ""
    replay: bool = False
    ttl_seconds: Seconds = 86400.0


class SettledReply(Reply):
    key: str
    state: Literal["completed", "failed", "forgotten"]
