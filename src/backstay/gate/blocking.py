"""The blocking API of locks, semaphores and read-write locks: the twin of `api.py`. Thread-safe."""

from __future__ import annotations

import builtins
import threading
from collections.abc import Sequence
from types import TracebackType

from backstay.errors import LockHeld
from backstay.gate import flows
from backstay.gate.admin import BaseLocks, list_gates
from backstay.gate.flows import Spec
from backstay.gate.lease import GateLease
from backstay.gate.options import UNSET, BaseGate, Unset, caller_options
from backstay.gate.rwlock import BaseReadWriteLock
from backstay.gate.view import Cleanup, ForceReleased, Inspection, Released
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.flows import run
from backstay.runtime.lease import LOST
from backstay.runtime.validation import Duration, Wire


class Lease(GateLease):
    """A held lock, permit, or read or write lock. Work done after `lost` is unsafe, and Backstay cannot stop a thread:
    call check() before each step that must not run twice.
    """

    __slots__ = ("_lost_event",)
    _lost_event: threading.Event

    @property
    def lost(self) -> threading.Event:
        """An event that is set when the lease is lost."""
        event = getattr(self, "_lost_event", None)
        if event is None:
            event = self._lost_event = threading.Event()
            self.on_end(lambda: event.set() if self.state is LOST else None)
        return event

    def renew(self, ttl: Duration | None = None) -> None:
        """Extend the lease now, optionally with another TTL. Raises LeaseLost; a lost lease cannot be revived."""
        run(flows.renew(self, None if ttl is None else validation.to_seconds(ttl, "ttl")))

    def release(self) -> Released:
        """Release the lease. Raises NotOwner when another caller holds the lock by now."""
        return run(flows.release(self))


class BlockingGate(BaseGate):
    """A lock, semaphore, or one side of a read-write lock: acquire it, try it, or enter it with `with`."""

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
        """Acquire a lease. `wait=0` raises LockHeld at once, seconds raise LockTimeout, None waits for ever."""
        options = caller_options(lock_id, execution_id, workflow_id, workflow_name)
        return run(flows.acquire(self._core, self._spec, options, self._wait_seconds(wait), Lease))

    def try_acquire(
        self, *, lock_id: str = "", execution_id: str = "", workflow_id: str = "", workflow_name: str = ""
    ) -> Lease | None:
        """Acquire a lease if one is free now; else return None."""
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
        loss = run(flows.release_at_exit(lease))
        if loss is not None and kind is None:
            raise loss


class Lock(BlockingGate):
    """A lock: one holder at a time, in FIFO order."""

    __slots__ = ()


class Semaphore(BlockingGate):
    """A semaphore: `permits` holders at a time, in FIFO order. All callers of one name must pass the same number."""

    __slots__ = ()


class ReadWriteLock(BaseReadWriteLock[BlockingGate]):
    """A read-write lock: `rw.read()` is shared, `rw.write()` is exclusive."""

    __slots__ = ()

    def __init__(self, core: Core, reader: Spec, writer: Spec, wait: Duration | None) -> None:
        super().__init__(core, reader, writer, wait, BlockingGate)


class Locks(BaseLocks):
    """Inspects and repairs locks, semaphores and read-write locks: `stay.locks`."""

    __slots__ = ()

    def inspect(self, name: str, *, wire: Wire = "backstay") -> Inspection:
        """Return the holders, the queue with waiting times, and the fence of one name."""
        return run(self._inspect(name, wire))

    def list(self, prefix: str = "") -> builtins.list[Inspection]:
        """List the names that have a holder or a waiter. On Redis this is a SCAN of the whole key space."""
        return run(list_gates(self._core, prefix))

    def release(self, name: str, lock_id: str, *, wire: Wire = "backstay") -> Released:
        """Release a lease that another process holds, by its lock_id. Raises NotOwner when another lock_id holds it."""
        return run(self._release(name, lock_id, wire))

    def force_release(self, name: str, *, wire: Wire = "backstay") -> ForceReleased:
        """Remove all holders and advance the fence, so that fence-checked writes of the old holders are refused."""
        return run(self._force_release(name, wire))

    def cleanup(self, execution_id: str, scopes: Sequence[str] | None = None, *, wire: Wire = "backstay") -> Cleanup:
        """Release what a failed execution holds: in `scopes`, or (None) everywhere it passed its execution_id."""
        return run(self._cleanup(execution_id, scopes, wire))
