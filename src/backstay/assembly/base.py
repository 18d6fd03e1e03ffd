"""The part of the public API that the async and the blocking Backstay share: locks, guards and decorators."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from backstay.assembly.internals import Internals
from backstay.engine.base import Engine
from backstay.errors import ConfigError
from backstay.gate.durability import required_replicas
from backstay.gate.flows import GateSpec
from backstay.gate.machine import UNLIMITED
from backstay.gate.options import MAX_WAITERS, UNSET, Unset, spec
from backstay.idempotency.flows import IdempotencySpec
from backstay.idempotency.options import OnError, OnUnavailable
from backstay.idempotency.options import spec as idempotency_spec
from backstay.interop.n8n_wire import keys
from backstay.interop.n8n_wire.gate.options import n8n_spec
from backstay.interop.n8n_wire.limit import options as n8n_limits
from backstay.interop.n8n_wire.option import is_n8n, is_n8n_lock
from backstay.limit.spec import WiredSpec
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.serialization import Codec
from backstay.runtime.validation import Duration, KeyTemplate, Wire
from backstay.telemetry import Telemetry

if TYPE_CHECKING:
    from backstay.gate.lease import GateLease
    from backstay.guard.base import Guard

LockT = TypeVar("LockT")
SemaphoreT = TypeVar("SemaphoreT")
ReadWriteT = TypeVar("ReadWriteT")
F = TypeVar("F", bound=Callable[..., Any])


class BaseBackstay(Generic[LockT, SemaphoreT, ReadWriteT]):
    """The methods that the async and the blocking Backstay share. Subclasses define which lock classes the methods
    return, and how `locked` and `idempotent` wrap a function.
    """

    _core: Core
    _lock_type: Callable[[Core, GateSpec, Duration | None], LockT]
    _semaphore_type: Callable[[Core, GateSpec, Duration | None], SemaphoreT]
    _rwlock_type: Callable[[Core, GateSpec, GateSpec, Duration | None], ReadWriteT]
    _wired_spec: WiredSpec = staticmethod(n8n_limits.n8n_spec)

    @property
    def telemetry(self) -> Telemetry:
        """Counters and events of this Backstay: `stay.telemetry.subscribe(print)`."""
        return self._core.telemetry

    @property
    def engine(self) -> Engine:
        """The engine that stores the state."""
        return self._core.engine

    @property
    def internals(self) -> Internals:
        """The parts below the public API, for the server, the CLI and test helpers. May change without notice."""
        return Internals(self._core)

    def lock(
        self,
        name: str,
        *,
        ttl: Duration | None = None,
        wait: Duration | Unset | None = UNSET,
        renew: bool | None = None,
        max_hold: Duration | None = None,
        max_waiters: int = MAX_WAITERS,
        reentrant: bool = False,
        durability: str | None = None,
        wire: Wire = "backstay",
        poll: Duration | None = None,
    ) -> LockT:
        """Return a lock with one holder at a time, granted in arrival order, with a fence: `with stay.lock("x"): …`.

        name: The name of the lock, 1 to 512 bytes. All processes with the same engine and namespace share it.
        ttl: Seconds until the lease ends unless it is renewed. Default: the policy's, 30.
        wait: Seconds to wait in the queue, then LockTimeout. 0: raise LockHeld at once. None, the default: no limit.
        renew: Whether the lease is renewed in the background. Default: the policy's, yes.
        max_hold: Seconds after which renewal stops, so a hung holder loses the lock. Default: the policy's, 1 hour.
        max_waiters: Raise QueueFull if that many callers already wait. Default 1000.
        reentrant: A second acquire by the holding task or thread succeeds and is counted. Otherwise: WouldDeadlock.
        durability: "replicas:1" returns a grant only after one replica has confirmed it, else NotReplicated (Redis).
        wire: "n8n" shares the lock with n8n's own Redis nodes (Redis only). Then ttl and wait default to one day, the
            lease is not renewed unless `renew=True`, and there is no queue, no notification and no fence.
        poll: With wire="n8n": seconds between two attempts of a waiter, default 1.
        """
        core = self._core
        if is_n8n_lock(core.engine, wire, validation.check_name(name)):
            shared = n8n_spec(core, name, ttl, renew, max_hold, max_waiters, reentrant, durability, poll)
            return self._lock_type(core, shared, keys.MAX_WAIT_SECONDS if isinstance(wait, Unset) else wait)
        if poll is not None:
            raise ConfigError("poll= is for wire='n8n': other waiters are notified of their turn")
        if isinstance(wait, Unset):
            wait = None
        wanted = spec(core, name, True, 1, ttl, renew, max_hold, max_waiters, reentrant, durability)
        return self._lock_type(core, wanted, wait)

    def semaphore(
        self,
        name: str,
        permits: int,
        *,
        ttl: Duration | None = None,
        wait: Duration | None = None,
        renew: bool | None = None,
        max_hold: Duration | None = None,
        max_waiters: int = MAX_WAITERS,
        durability: str | None = None,
    ) -> SemaphoreT:
        """Return a semaphore with at most `permits` holders at a time, granted in arrival order.

        permits: The number of holders. All callers of one name must pass the same number while it is in use, else
            ConfigError.
        The other options are those of `lock`.
        """
        core = self._core
        permits = validation.check_count(permits, "permits")
        wanted = spec(core, name, False, permits, ttl, renew, max_hold, max_waiters, False, durability)
        return self._semaphore_type(core, wanted, wait)

    def rwlock(
        self,
        name: str,
        *,
        ttl: Duration | None = None,
        wait: Duration | None = None,
        renew: bool | None = None,
        max_hold: Duration | None = None,
        max_waiters: int = MAX_WAITERS,
        reentrant: bool = False,
        durability: str | None = None,
    ) -> ReadWriteT:
        """Return a read-write lock: many readers (`.read()`) or one writer (`.write()`). Grants follow the order of
        arrival, so neither readers nor writers starve. The options are those of `lock`.
        """
        core = self._core
        reader, writer = (
            spec(core, name, exclusive, UNLIMITED, ttl, renew, max_hold, max_waiters, reentrant, durability)
            for exclusive in (False, True)
        )
        return self._rwlock_type(core, reader, writer, wait)

    def guard(self, lease: GateLease) -> Guard:
        """Return a guard for database writes that only the holder of the lock may do:
        `stay.guard(lease).sql(db).update(…)`. If a later holder has already written the same data, the write fails with
        StaleFence.

        lease: An exclusive lease, of `lock` or `rwlock.write()`.
        """
        from backstay.guard.base import Guard  # not imported above: most programs use no guard

        return Guard(lease)

    def locked(
        self,
        key: str,
        *,
        ttl: Duration | None = None,
        wait: Duration | Unset | None = UNSET,
        renew: bool | None = None,
        max_hold: Duration | None = None,
        reentrant: bool = False,
        durability: str | None = None,
        wire: Wire = "backstay",
        poll: Duration | None = None,
    ) -> Callable[[F], F]:
        """Run each call of a function under a lock named by its arguments: `@stay.locked("user:{user_id}")`. The async
        Backstay accepts async and blocking functions, the blocking one only blocking functions.

        key: The name of the lock, a format string over the function's arguments.
        The other options are those of `lock`.
        """
        required_replicas(self._core, durability)  # raise for invalid options now, not at the first call
        is_n8n(self._core.engine, wire)
        options: dict[str, Any] = {
            "ttl": ttl,
            "wait": wait,
            "renew": renew,
            "max_hold": max_hold,
            "reentrant": reentrant,
            "durability": durability,
            "wire": wire,
            "poll": poll,
        }

        def decorate(function: F) -> F:
            return self._wrap_locked(function, KeyTemplate(key, function), options)

        return decorate

    def idempotent(
        self,
        key: str | None = None,
        *,
        fingerprint: Iterable[str] | None = None,
        ttl: Duration | None = None,
        lease: Duration | None = None,
        wait: Duration | None = None,
        on_error: OnError = "forget",
        on_unavailable: OnUnavailable | None = None,
        codec: Codec | None = None,
    ) -> Callable[[F], F]:
        """Run each call of a function once per key; a repeated call returns the stored result:
        `@stay.idempotent("charge:{order_id}")`. The async Backstay accepts async and blocking functions, the blocking
        one only blocking functions.

        key: A format string over the function's arguments. Default: the function's name and all its arguments.
        fingerprint: The arguments that must not differ between calls with the same key, else FingerprintMismatch.
        The other options are those of `stay.idempotency.run`.
        """
        options = idempotency_spec(self._core, "-", "", ttl, lease, wait, on_error, on_unavailable)

        def decorate(function: F) -> F:
            return self._wrap_idempotent(function, key, fingerprint, options, codec)

        return decorate

    def _wrap_locked(self, function: F, template: KeyTemplate, options: dict[str, Any]) -> F:
        """Wrap a function, so that each call runs under a lock. `template` makes the lock's name from the call's
        arguments; `options` are those of `lock`.
        """
        raise NotImplementedError

    def _wrap_idempotent(
        self,
        function: F,
        key: str | None,
        fingerprint: Iterable[str] | None,
        options: IdempotencySpec,
        codec: Codec | None,
    ) -> F:
        """Wrap a function, so that it runs once per idempotency key. The parameters are those of `idempotent`."""
        raise NotImplementedError


def wrap_blocking_locked(
    function: F, template: KeyTemplate, make_lock: Callable[[str], AbstractContextManager[object]]
) -> F:
    """Wrap a blocking function, so that each call runs under a lock. `template` makes the lock's name from the call's
    arguments; `make_lock` returns the lock of that name.
    """

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with make_lock(template.key(args, kwargs)):
            return function(*args, **kwargs)

    return cast("F", wrapper)
