"""Errors of locks, limits and idempotency keys, and the facts they carry (`HolderInfo`, `Decision`)."""

from __future__ import annotations

from dataclasses import dataclass

from backstay.errors.engine import BackstayError


@dataclass(frozen=True, slots=True)
class HolderInfo:
    """The holder of a lock, as errors and `inspect` report it. `lock_id` is empty where a server hides it from a client
    that does not own the lock.
    """

    lock_id: str
    fence: int
    execution_id: str
    workflow_id: str
    workflow_name: str
    locked_at: str
    expires_at: str
    exclusive: bool = True

    def __str__(self) -> str:
        lock_id = f", lock_id {self.lock_id}" if self.lock_id else ""
        return (
            f"{self.workflow_name or self.workflow_id or 'unknown'}"
            f" (execution {self.execution_id or '?'}{lock_id}, locked_at {self.locked_at})"
        )


class LockError(BackstayError):
    """An error of one lock, semaphore or read-write lock, named by `.name`."""

    name: str

    def __init__(self, message: str, *, name: str) -> None:
        super().__init__(message)
        self.name = name


class LockHeld(LockError):
    """The lock is not free and the caller does not wait. `.holder` is the current holder."""

    def __init__(self, *, name: str, holder: HolderInfo | None, count: int) -> None:
        status = f"held by {holder}" if holder else "offered to a waiter"
        super().__init__(f"{name!r} is {status}; holders and waiters: {count}. Pass wait=seconds to queue.", name=name)
        self.holder = holder
        self.count = count


class LockTimeout(LockError, TimeoutError):
    """The lock was not granted within `wait` seconds; the caller has left the queue."""

    def __init__(self, *, name: str, waited: float, holder: HolderInfo | None) -> None:
        status = f"held by {holder}" if holder else "offered to another waiter"
        super().__init__(f"{name!r} was not free within {waited:g} s: {status}.", name=name)
        self.waited = waited
        self.holder = holder


class QueueFull(LockError):
    """`max_waiters` callers already wait; try again later."""

    def __init__(self, *, name: str, waiters: int) -> None:
        super().__init__(f"{waiters} callers already wait for {name!r} (max_waiters={waiters}).", name=name)
        self.waiters = waiters


class NotOwner(LockError):
    """The caller tried to release a lock that another caller holds. Nothing was released."""

    def __init__(self, *, name: str, lock_id: str, holder: HolderInfo | None) -> None:
        super().__init__(
            f"LOGIC ERROR: lock_id {lock_id} does not hold {name!r}; it is held by {holder}. "
            "The lease ended before this release, or the wrong lock_id was passed.",
            name=name,
        )
        self.lock_id = lock_id
        self.holder = holder


class LeaseLost(LockError):
    """The lease ended before its work did. Work after that point was not exclusive; guard writes with the fence."""

    def __init__(self, *, name: str, lock_id: str, fence: int, reason: str) -> None:
        super().__init__(f"lease {lock_id} on {name!r} (fence {fence}) was lost: {reason}.", name=name)
        self.lock_id = lock_id
        self.fence = fence
        self.reason = reason


class StaleFence(LockError):
    """A guarded write compares its fence with the one that is stored with the row or key. Here the stored one is
    newer, because a later holder of the lock has written. This write changed nothing.
    """

    def __init__(self, *, name: str, fence: int, newer: int) -> None:
        super().__init__(
            f"the write under {name!r} carries fence {fence}, but fence {newer} has already written: the lease ended"
            " and another holder took over. Nothing was written.",
            name=name,
        )
        self.fence = fence
        self.newer = newer


class RowMissing(LockError, LookupError):
    """A guarded update (a write that compares fences, see `StaleFence`) matched no row. Nothing was written."""

    def __init__(self, *, name: str, table: str, row: dict[str, object]) -> None:
        super().__init__(
            f"{table} has no row {row!r}, so nothing was written under {name!r}; upsert() would insert it.", name=name
        )
        self.table = table
        self.row = row


class WouldDeadlock(LockError):
    """This task or thread would wait for a lock that only it can release."""

    def __init__(
        self, *, name: str, lock_id: str, way_out: str = "Pass reentrant=True to let it acquire again."
    ) -> None:
        super().__init__(
            f"this task already holds {name!r} (lock_id {lock_id}) and would wait for itself forever. {way_out}",
            name=name,
        )
        self.lock_id = lock_id


@dataclass(slots=True)  # not frozen, because creating a frozen one doubles the cost of a denied hit
class Decision:
    """What a limit decided about one hit; truthy if the hit is admitted. If the limit has several rates, `count`,
    `limit`, `remaining`, `reset_after`, `retry_after` and `window` describe one of them: after an admitted hit the rate
    with the least remaining, after a denied hit the rate that denies such a hit for the longest time.
    """

    allowed: bool
    #: The key that the hit was for, as in `limit.hit("user:7")`.
    scope: str
    #: How much of `limit` is in use, including this hit if it is admitted.
    count: int
    limit: int
    remaining: int
    #: Seconds until `count` is zero, if there are no other hits.
    reset_after: float
    #: Seconds until the same hit would be admitted, if there are no other hits; 0 for an admitted hit.
    retry_after: float
    #: The window in seconds in which `limit` hits are admitted.
    window: float
    #: The time of the decision or, if the caller must wait for the hit, the later time for which the hit is reserved:
    #: seconds since the epoch, by the engine's clock.
    at: float
    #: What decided. "engine": the engine. "memory": this process, from an earlier denial of the engine that is still
    #: valid. "deny", "allow" or "local": the `on_unavailable` of the limit, because the engine is unavailable.
    by: str = "engine"
    #: The engine's error if the engine did not decide; else empty.
    trouble: str = ""

    def __bool__(self) -> bool:
        return self.allowed


class RateLimited(BackstayError):
    """The limit is exceeded; `.decision.retry_after` is the number of seconds to wait."""

    def __init__(self, decision: Decision, *, name: str) -> None:
        why = (
            f"could not be checked: {decision.trouble}"
            if decision.trouble
            else f"has taken {decision.count} of {decision.limit} in {decision.window:g} s"
        )
        super().__init__(f"{decision.scope!r} of {name!r} {why}; try again in {decision.retry_after:.3f} s.")
        self.name = name
        self.decision = decision


class IdempotencyError(BackstayError):
    """An error of one idempotency key, named by `.name`."""

    name: str

    def __init__(self, message: str, *, name: str) -> None:
        super().__init__(message)
        self.name = name


class InProgress(IdempotencyError, TimeoutError):
    """Another call with this key is still running after `wait` seconds. This call was not run."""

    def __init__(self, *, name: str, by: str, since: str, waited: float, retry_after: float) -> None:
        super().__init__(
            f"{name!r} has been running since {since} ({by})"
            + (f" and did not finish within {waited:g} s" if waited else "")
            + ". Try again later, or pass wait=None to wait for its outcome.",
            name=name,
        )
        self.by = by
        self.since = since
        self.waited = waited
        #: Seconds until the lease of the running call ends, unless it is renewed.
        self.retry_after = retry_after


class FingerprintMismatch(IdempotencyError):
    """This key was used for a call with another fingerprint. Nothing was run."""

    def __init__(self, *, name: str, since: str) -> None:
        super().__init__(
            f"{name!r} was used at {since} for a call with another fingerprint: a key names one call and its"
            " arguments. Use a new key for a new call.",
            name=name,
        )
        self.since = since


class ReplayedFailure(IdempotencyError):
    """The call ran before and failed; it is not run again. `.kind` and `.reason` describe the stored exception."""

    def __init__(self, *, name: str, kind: str, reason: str) -> None:
        super().__init__(f"{name!r} ran before and failed: {kind}: {reason}", name=name)
        self.kind = kind
        self.reason = reason
