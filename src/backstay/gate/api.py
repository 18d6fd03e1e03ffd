"""The async API of locks, semaphores and read-write locks: `async with stay.lock("invoice:42"): …`."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Generator, Sequence
from types import TracebackType
from typing import Any

from backstay.errors import LockHeld
from backstay.gate import flows
from backstay.gate.admin import BaseLocks, list_gates
from backstay.gate.flows import GateSpec
from backstay.gate.lease import GateLease
from backstay.gate.options import UNSET, BaseGate, Unset, caller_options
from backstay.gate.rwlock import BaseReadWriteLock
from backstay.gate.view import Cleanup, ForceReleased, Inspection, Released
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.lease import LIVE, LOST
from backstay.runtime.lease_scope import LeaseScope
from backstay.runtime.validation import Duration, Wire


class Loss:
    """An awaitable that waits for the end of a lease. It returns True when the lease is lost, False when it is
    released.
    """

    __slots__ = ("_lease",)

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def is_set(self) -> bool:
        return self._lease.is_lost

    def __await__(self) -> Generator[Any, None, bool]:
        return self._wait().__await__()

    async def _wait(self) -> bool:
        lease = self._lease
        latch = lease.core.port.latch()
        on_end = latch.set
        lease.on_end(on_end)
        try:
            while lease.state is LIVE:
                await lease.core.port.park(latch, None)
        finally:
            lease.off_end(on_end)
        return lease.state is LOST


class Lease(GateLease):
    """A held lock, permit, or read or write lock. Work after the lease is lost is unsafe, because another caller may
    hold the lock.
    """

    __slots__ = ()

    @property
    def lost(self) -> Loss:
        """`await lease.lost` returns when the lease ends: True if it is lost, False if it was released."""
        return Loss(self)

    async def renew(self, ttl: Duration | None = None) -> None:
        """Extend the lease now, optionally with another TTL. Raises LeaseLost; a lost lease cannot be revived."""
        await flows.renew(self, None if ttl is None else validation.to_seconds(ttl, "ttl"))

    async def release(self) -> Released:
        """Release the lease. Raises NotOwner if it had ended and another caller holds the lock."""
        return await flows.release(self)


class AsyncGate(BaseGate):
    """A lock, semaphore, or one side of a read-write lock: acquire it, try it, or enter it with `async with`."""

    __slots__ = ("_scopes",)

    def __init__(self, core: Core, spec: GateSpec, wait: Duration | None) -> None:
        super().__init__(core, spec, wait)
        self._scopes: list[LeaseScope[Lease]] = []

    async def acquire(
        self,
        *,
        wait: Duration | Unset | None = UNSET,
        lock_id: str = "",
        execution_id: str = "",
        workflow_id: str = "",
        workflow_name: str = "",
    ) -> Lease:
        """Acquire a lease. If it is not free: `wait=0` raises LockHeld at once, `wait=5` raises LockTimeout after 5
        seconds, `wait=None` waits without limit. The default is the `wait` of the lock.
        """
        options = caller_options(lock_id, execution_id, workflow_id, workflow_name)
        return await flows.acquire(self._core, self._spec, options, self._wait_seconds(wait), Lease)

    async def try_acquire(
        self, *, lock_id: str = "", execution_id: str = "", workflow_id: str = "", workflow_name: str = ""
    ) -> Lease | None:
        """Acquire a lease if one is free now; else return None."""
        try:
            return await self.acquire(
                wait=0,
                lock_id=lock_id,
                execution_id=execution_id,
                workflow_id=workflow_id,
                workflow_name=workflow_name,
            )
        except LockHeld:
            return None

    async def __aenter__(self) -> Lease:
        lease = await flows.acquire(self._core, self._spec, flows.ANONYMOUS, self._wait, Lease)
        self._scopes.append(LeaseScope(lease, self._core.port.signal))
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        scope = self._pop_scope()
        caused_cancellation = scope.close()
        loss = await flows.release_at_exit(scope.lease)
        if loss is not None and (kind is None or (caused_cancellation and kind is asyncio.CancelledError)):
            raise loss from error

    def _pop_scope(self) -> LeaseScope[Lease]:
        """Remove and return the LeaseScope, which holds the lease, of the `async with` block that ends now. It is the
        innermost one of this task. Other tasks may be in blocks on the same lock object.
        """
        scopes = self._scopes
        if len(scopes) == 1:
            return scopes.pop()
        task = asyncio.current_task()
        scope = next(s for s in reversed(scopes) if s.task is task)
        scopes.remove(scope)
        return scope


class Lock(AsyncGate):
    """A lock: one holder at a time, in FIFO order."""

    __slots__ = ()


class Semaphore(AsyncGate):
    """A semaphore: `permits` holders at a time, in FIFO order. All callers of one name must pass the same number."""

    __slots__ = ()


class ReadWriteLock(BaseReadWriteLock[AsyncGate]):
    """A read-write lock: `rw.read()` is shared, `rw.write()` is exclusive."""

    __slots__ = ()

    def __init__(self, core: Core, reader: GateSpec, writer: GateSpec, wait: Duration | None) -> None:
        super().__init__(core, reader, writer, wait, AsyncGate)


class Locks(BaseLocks):
    """Inspects and repairs locks, semaphores and read-write locks: `stay.locks`."""

    __slots__ = ()

    async def inspect(self, name: str, *, wire: Wire = "backstay") -> Inspection:
        """Return the holders, the queue with waiting times, and the fence of one name."""
        return await self._inspect(name, wire)

    async def list(self, prefix: str = "") -> builtins.list[Inspection]:
        """List the locks, semaphores and read-write locks that have a holder or a waiter and whose name begins with
        `prefix`. On Redis this is a SCAN of the whole key space.
        """
        return await list_gates(self._core, prefix)

    async def release(self, name: str, lock_id: str, *, wire: Wire = "backstay") -> Released:
        """Release a lease that another process holds, by its lock_id. Raises NotOwner when another lock_id holds it."""
        return await self._release(name, lock_id, wire)

    async def force_release(self, name: str, *, wire: Wire = "backstay") -> ForceReleased:
        """Remove all holders and advance the fence, so that guarded writes of the old holders are refused."""
        return await self._force_release(name, wire)

    async def cleanup(
        self, execution_id: str, scopes: Sequence[str] | None = None, *, wire: Wire = "backstay"
    ) -> Cleanup:
        """Release the locks of a failed workflow execution, for example of n8n. `scopes`: the names of the locks to
        check; without it, all locks that were acquired with this execution_id.
        """
        return await self._cleanup(execution_id, scopes, wire)
