"""Backstay for blocking code: the same names, the same flows, any number of threads."""

from __future__ import annotations

import builtins
import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from backstay.app import Backstay as AsyncBackstay
from backstay.app import build_core
from backstay.assembly.base import Rooms, Settings
from backstay.channel.api import BlockingChannels as Channels
from backstay.engine.base import Engine, Ping
from backstay.engine.client_types import Owned
from backstay.errors import ConfigError, LockHeld
from backstay.gate import admin, flows
from backstay.gate.durability import replicas
from backstay.gate.flows import Spec
from backstay.gate.lease import Held
from backstay.gate.n8n import admin as n8n
from backstay.gate.options import UNSET, BaseGate, Unset, caller
from backstay.gate.rwlock import BaseReadWriteLock
from backstay.gate.view import Cleanup, ForceReleased, Inspection, Released
from backstay.hub.base import Hub
from backstay.idempotency.api import BlockingIdempotency as Idempotency
from backstay.idempotency.decorator import Calls, blocking
from backstay.idempotency.options import OnError, OnUnavailable, spec
from backstay.interop.n8n_wire.option import Wire, is_n8n, locks_n8n
from backstay.job import shutdown
from backstay.job.api.mixin import BlockingJobDoor
from backstay.job.worker.blocking import BlockingWorker
from backstay.limit.blocking import Limit as Limit  # noqa: PLC0414 - offered here
from backstay.limit.blocking import LimitDoor
from backstay.limit.blocking import Limits as Limits  # noqa: PLC0414 - the same
from backstay.policy import Policy
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.flows import run
from backstay.runtime.lease import LOST
from backstay.runtime.serialization import Codec
from backstay.runtime.validation import Duration, Template
from backstay.workflow.api.mixin import BlockingWorkflowDoor

F = TypeVar("F", bound=Callable[..., Any])


class Lease(Held):
    """A held lock, permit, read or write. Work after `lost` is unsafe: a thread cannot be stopped, so check()."""

    __slots__ = ("_lost_event",)
    _lost_event: threading.Event

    @property
    def lost(self) -> threading.Event:
        """Set when the lease is lost."""
        event = getattr(self, "_lost_event", None)
        if event is None:
            event = self._lost_event = threading.Event()
            self.on_end(lambda: event.set() if self.state is LOST else None)
        return event

    def renew(self, ttl: Duration | None = None) -> None:
        """Extend it now, perhaps to another TTL. Raises LeaseLost; a lost lease never comes back."""
        run(flows.renew(self, None if ttl is None else validation.seconds(ttl, "ttl")))

    def release(self) -> Released:
        """Give it back. Raises NotOwner when somebody else holds it by now."""
        return run(flows.release(self))


class BlockingGate(BaseGate):
    """Acquire, try, or enter as a context manager."""

    __slots__ = ("_leases",)

    def __init__(self, core: Core, spec: Spec, wait: Duration | None) -> None:
        super().__init__(core, spec, wait)
        self._leases: dict[int, list[Lease]] = {}

    def acquire(
        self,
        *,
        wait: Duration | Unset | None = UNSET,
        lock_id: str = "",
        execution_id: str = "",
        workflow_id: str = "",
        workflow_name: str = "",
    ) -> Lease:
        """Take it. `wait=0` raises LockHeld at once, seconds raise LockTimeout, None waits for ever."""
        who = caller(lock_id, execution_id, workflow_id, workflow_name)
        return run(flows.acquire(self._core, self._spec, who, self._patience(wait), Lease))

    def try_acquire(
        self, *, lock_id: str = "", execution_id: str = "", workflow_id: str = "", workflow_name: str = ""
    ) -> Lease | None:
        """Take it if it is free right now."""
        try:
            return self.acquire(
                wait=0,
                lock_id=lock_id,
                execution_id=execution_id,
                workflow_id=workflow_id,
                workflow_name=workflow_name,
            )
        except LockHeld:
            return None

    def __enter__(self) -> Lease:
        lease = self.acquire()
        self._leases.setdefault(threading.get_ident(), []).append(lease)
        return lease

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        thread = threading.get_ident()
        leases = self._leases[thread]
        lease = leases.pop()
        if not leases:
            del self._leases[thread]
        loss = run(flows.leave_body(lease))
        if loss is not None and kind is None:
            raise loss


class Lock(BlockingGate):
    """One holder at a time, first come, first served."""

    __slots__ = ()


class Semaphore(BlockingGate):
    """A counted lock. All callers of one name must agree on `permits` while it is in use."""

    __slots__ = ()


class ReadWriteLock(BaseReadWriteLock[BlockingGate]):
    """`rw.read()` is shared, `rw.write()` is exclusive."""

    __slots__ = ()

    def __init__(self, core: Core, reader: Spec, writer: Spec, wait: Duration | None) -> None:
        super().__init__(core, reader, writer, wait, BlockingGate)


class Locks:
    """Look at locks, semaphores and read-write locks, and set right what went wrong."""

    __slots__ = ("_core",)

    def __init__(self, core: Core) -> None:
        self._core = core

    def inspect(self, name: str, *, wire: Wire = "backstay") -> Inspection:
        """Holders, queue with waiting times, and the fence of one name."""
        if locks_n8n(self._core.engine, wire, validation.name(name)):
            return run(n8n.inspect(self._core, name))
        return run(admin.inspect(self._core, validation.name(name)))

    def list(self, prefix: str = "") -> builtins.list[Inspection]:
        """Everything held or waited for. On Redis this is a SCAN of the whole key space."""
        return run(admin.list_gates(self._core, prefix))

    def release(self, name: str, lock_id: str, *, wire: Wire = "backstay") -> Released:
        """Release what another process took, by its lock_id. Verifies ownership."""
        if locks_n8n(self._core.engine, wire, validation.name(name)):
            return run(n8n.release_by_id(self._core, name, validation.name(lock_id, "lock_id")))
        return run(admin.release_by_id(self._core, validation.name(name), validation.name(lock_id, "lock_id")))

    def force_release(self, name: str, *, wire: Wire = "backstay") -> ForceReleased:
        """Take it from whoever holds it. The fence moves on, so guarded writes of theirs are refused."""
        if locks_n8n(self._core.engine, wire, validation.name(name)):
            return run(n8n.force_release(self._core, name))
        return run(admin.force_release(self._core, validation.name(name)))

    def cleanup(self, execution_id: str, scopes: Sequence[str] | None = None, *, wire: Wire = "backstay") -> Cleanup:
        """Release what a failed execution holds: in `scopes`, or (None) wherever it said its execution_id."""
        if is_n8n(self._core.engine, wire):
            return run(n8n.cleanup(self._core, validation.name(execution_id, "execution_id"), admin.checked(scopes)))
        return run(admin.cleanup(self._core, validation.name(execution_id, "execution_id"), admin.checked(scopes)))


class Backstay(Rooms[Lock, Semaphore, ReadWriteLock], LimitDoor, BlockingJobDoor, BlockingWorkflowDoor):
    """Everything, from one URL, for any number of threads. The arguments are those of `backstay.Backstay`."""

    _lock_type = Lock
    _semaphore_type = Semaphore
    _rwlock_type = ReadWriteLock

    def __init__(
        self,
        url: str | Owned | None = None,
        *,
        namespace: str | None = None,
        profile: Policy | None = None,
        engine: Engine | Owned | None = None,
        hub: str | Hub | Owned | None = None,
        hub_prefix: str | None = None,
        shards: int | None = None,
    ) -> None:
        settings = self._settings = Settings(url, namespace, profile, hub, hub_prefix, engine, shards)
        self._core = build_core(settings, blocking=True)
        self._owns_engine = settings.engine is None

    @property
    def locks(self) -> Locks:
        """Inspect, list, force-release, clean up."""
        return Locks(self._core)

    @property
    def idempotency(self) -> Idempotency:
        """Run once for a key; inspect, forget."""
        return Idempotency(self._core)

    @property
    def hub(self) -> Channels:
        """Publish and listen."""
        return Channels(self._core)

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
        """Run a function under a lock named by its arguments: `@stay.locked("user:{user_id}")`."""
        replicas(self._core, durability)  # what cannot work is said here, not at the first call
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
            if inspect.iscoroutinefunction(function):
                raise ConfigError(f"{function.__qualname__} is async: use the async Backstay's `locked`")
            template = Template(key, function)

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                name = template.key(args, kwargs)
                with self.lock(name, **options):
                    return function(*args, **kwargs)

            return cast("F", wrapper)

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
        """Run each call of a function once: `@stay.idempotent("charge:{order_id}")`. The options are those of the async
        API.
        """
        options = spec(self._core, "-", "", ttl, lease, wait, on_error, on_unavailable)

        def decorate(function: F) -> F:
            if inspect.iscoroutinefunction(function):
                raise ConfigError(f"{function.__qualname__} is async: use the async Backstay's `idempotent`")
            return blocking(Calls(self._core, function, key, fingerprint, options, codec), function)

        return decorate

    def open(self) -> Self:
        """Reach the engine now instead of at first use."""
        self._core.check_open()
        self._core.engine.correct(self._core.engine.apply(Ping()))
        return self

    def worker(self, **options: Any) -> BlockingWorker:
        """Somebody who runs jobs: `stay.worker(queues=["default"], concurrency=100).run()` blocks until it has stopped.
        The options are those of the async API. It has an event loop, and unless the engine lives in this process
        alone a connection, of its own.
        """
        return BlockingWorker(self._async_twin, options)

    def _async_twin(self) -> AsyncBackstay:
        settings = self._settings
        shares = self._owns_engine is False or settings.url == "memory://"
        twin = AsyncBackstay(
            settings.url,
            namespace=settings.namespace,
            profile=settings.policy,
            engine=self._core.engine if shares else None,
            hub=settings.hub,
            hub_prefix=settings.hub_prefix,
            shards=settings.shards,
        )
        core = twin._core  # noqa: SLF001 - its other half
        core.jobs, core.middleware, core.workflows = self._core.jobs, self._core.middleware, self._core.workflows
        return twin

    def close(self) -> None:
        """Let go of connections and threads. Leases still held run out by themselves. Safe twice."""
        if not self._core.closed:
            run(shutdown.close(self._core))
            run(self._core.dismiss())
            self._core.close_parts()
        if (carrier := self._core.foreign_carrier) is not None:
            carrier.close_blocking()
        if self._owns_engine:
            self._core.engine.close_blocking()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
