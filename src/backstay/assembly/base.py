"""What both Backstays offer by the same names; only the types of what they hand out differ."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from backstay.engine.base import Engine
from backstay.engine.client_types import Owned
from backstay.errors import ConfigError
from backstay.gate.flows import Spec
from backstay.gate.machine import UNLIMITED
from backstay.gate.options import MAX_WAITERS, UNSET, Unset, n8n_spec, spec
from backstay.hub.base import Hub
from backstay.interop.n8n_wire import keys
from backstay.interop.n8n_wire.option import Wire, locks_n8n
from backstay.policy import BALANCED, Policy
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.validation import Duration
from backstay.telemetry import Telemetry

if TYPE_CHECKING:
    from backstay.gate.lease import Held
    from backstay.guard.base import Guard

LockT = TypeVar("LockT")
SemaphoreT = TypeVar("SemaphoreT")
ReadWriteT = TypeVar("ReadWriteT")

NAMESPACE = "backstay"
#: A worker asks each shard in turn.
MOST_SHARDS = 256


class Rooms(Generic[LockT, SemaphoreT, ReadWriteT]):
    """The doors to every room."""

    _core: Core
    _lock_type: Callable[[Core, Spec, Duration | None], LockT]
    _semaphore_type: Callable[[Core, Spec, Duration | None], SemaphoreT]
    _rwlock_type: Callable[[Core, Spec, Spec, Duration | None], ReadWriteT]

    @property
    def telemetry(self) -> Telemetry:
        """Subscribe to what happens inside: `stay.telemetry.subscribe(print)`."""
        return self._core.telemetry

    @property
    def engine(self) -> Engine:
        return self._core.engine

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
        """One holder at a time, first come, first served, with a fence.

        ttl: seconds the lease lives without renewal (30). wait: seconds to queue; 0 not at all, None for ever.
        renew: keep it alive in the background (yes). max_hold: renewal stops after that (1 h).
        max_waiters: the longest queue to join. reentrant: count instead of refusing a second entry of one task.
        durability: "replicas:1" hands a grant out only once a replica has it (Redis); else NotReplicated.
        wire: "n8n" shares the lock with n8n's own Redis nodes (Redis only). Then ttl and wait are a day, nothing is
        renewed unless asked, and there is no queue, no push and no fence: waiters look every `poll` seconds (1).
        """
        core = self._core
        if locks_n8n(core.engine, wire, validation.name(name)):
            shared = n8n_spec(core, name, ttl, renew, max_hold, max_waiters, reentrant, durability, poll)
            return self._lock_type(core, shared, keys.MAX_WAIT_SECONDS if isinstance(wait, Unset) else wait)
        if poll is not None:
            raise ConfigError("poll= is for wire='n8n': otherwise whoever waits is told of its turn")
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
        """At most `permits` holders at a time. All callers of one name must agree on the number while it is in use."""
        core = self._core
        permits = validation.count(permits, "permits")
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
        """Many readers or one writer: `.read()` and `.write()`. In arrival order, so neither starves."""
        core = self._core
        reader, writer = (
            spec(core, name, exclusive, UNLIMITED, ttl, renew, max_hold, max_waiters, reentrant, durability)
            for exclusive in (False, True)
        )
        return self._rwlock_type(core, reader, writer, wait)

    def guard(self, lease: Held) -> Guard:
        """Writes that are refused once a later holder has written: `stay.guard(lease).sql(db).update(…)`.

        Exclusive leases only: those of `lock` and `rwlock.write()`.
        """
        from backstay.guard.base import Guard  # programs that only lock do without

        return Guard(lease)


class Settings:
    """What a Backstay was asked for, with the environment filled in."""

    __slots__ = ("engine", "hub", "hub_prefix", "namespace", "policy", "shards", "url")

    def __init__(
        self,
        url: str | Owned | None,
        namespace: str | None,
        profile: Policy | None,
        hub: str | Hub | Owned | None = None,
        hub_prefix: str | None = None,
        engine: Engine | Owned | None = None,
        shards: int | None = None,
    ) -> None:
        #: None: what the environment says, where jobs can be cut at all.
        self.shards = None if shards is None else _shards(shards, "shards")
        self.engine: Engine | None = None
        if engine is not None and hasattr(engine, "apply_many"):
            self.engine = cast("Engine", engine)
        elif engine is not None:
            url = cast("Owned", engine)  # type: ignore[redundant-cast] # pyright narrows less here
        #: A URL, or a client or pool of the user's.
        self.url: str | Owned = (
            url if url is not None and url != "" else os.environ.get("BACKSTAY_URL") or "sqlite:///backstay.db"
        )
        self.namespace = validation.namespace(namespace or os.environ.get("BACKSTAY_NAMESPACE") or NAMESPACE)
        self.policy = profile or BALANCED
        self.hub: str | Hub | Owned | None = hub if hub is not None else os.environ.get("BACKSTAY_HUB") or None
        if self.hub is self.url or (isinstance(self.hub, str) and self.hub == self.url):  # it has that hub anyway
            self.hub = None
        self.hub_prefix = self.namespace if hub_prefix is None else validation.namespace(hub_prefix, "hub_prefix")


def shards_here() -> int:
    """Into how many parts jobs are cut on Redis when nobody says so in the program."""
    given = os.environ.get("BACKSTAY_SHARDS") or "1"
    if not (given.isascii() and given.isdigit()):
        raise ConfigError(f"BACKSTAY_SHARDS is a whole number, as in BACKSTAY_SHARDS=8; got {given!r}")
    return _shards(int(given), "BACKSTAY_SHARDS")


def _shards(given: int, what: str) -> int:
    if validation.count(given, what) > MOST_SHARDS:
        raise ConfigError(f"{what} is at most {MOST_SHARDS}; got {given}")
    return given


def observer(telemetry: Telemetry, prefix: str) -> Callable[..., None]:
    def observe(event: str, **facts: Any) -> None:
        telemetry.emit(f"{prefix}.{event}", **facts)

    return observe
