"""Locks for async code: `async with stay.lock("invoice:42"): …`."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Generator, Sequence
from types import TracebackType
from typing import Any

from backstay.errors import LockHeld
from backstay.gate import admin, flows
from backstay.gate.flows import Spec
from backstay.gate.lease import Held
from backstay.gate.n8n import admin as n8n
from backstay.gate.options import UNSET, BaseGate, Unset, caller
from backstay.gate.rwlock import BaseReadWriteLock
from backstay.gate.view import Cleanup, ForceReleased, Inspection, Released
from backstay.interop.n8n_wire.option import Wire, is_n8n, locks_n8n
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.lease import LIVE, LOST
from backstay.runtime.lease_scope import Body
from backstay.runtime.validation import Duration


class Loss:
    """Awaitable: True once the lease is lost, False when it was given back instead."""

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
        told = latch.set
        lease.on_end(told)
        try:
            while lease.state is LIVE:
                await lease.core.port.park(latch, None)
        finally:
            lease.off_end(told)
        return lease.state is LOST


class Lease(Held):
    """A held lock, permit, read or write. Work after `lost` is unsafe."""

    __slots__ = ()

    @property
    def lost(self) -> Loss:
        """`await lease.lost` returns when the lease is lost."""
        return Loss(self)

    async def renew(self, ttl: Duration | None = None) -> None:
        """Extend it now, perhaps to another TTL. Raises LeaseLost; a lost lease never comes back."""
        await flows.renew(self, None if ttl is None else validation.seconds(ttl, "ttl"))

    async def release(self) -> Released:
        """Give it back. Raises NotOwner when somebody else holds it by now."""
        return await flows.release(self)


class AsyncGate(BaseGate):
    """Acquire, try, or enter as a context manager."""

    __slots__ = ("_bodies",)

    def __init__(self, core: Core, spec: Spec, wait: Duration | None) -> None:
        super().__init__(core, spec, wait)
        self._bodies: list[Body[Lease]] = []

    async def acquire(
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
        return await flows.acquire(self._core, self._spec, who, self._patience(wait), Lease)

    async def try_acquire(
        self, *, lock_id: str = "", execution_id: str = "", workflow_id: str = "", workflow_name: str = ""
    ) -> Lease | None:
        """Take it if it is free right now."""
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
        lease = await flows.acquire(self._core, self._spec, flows.NOBODY, self._wait, Lease)
        self._bodies.append(Body(lease, self._core.port.signal))
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        body = self._leaving()
        ours = body.close()
        loss = await flows.leave_body(body.lease)
        if loss is not None and (kind is None or (ours and kind is asyncio.CancelledError)):
            raise loss from error

    def _leaving(self) -> Body[Lease]:
        """The innermost block that this task is in; several tasks may share one lock object."""
        bodies = self._bodies
        if len(bodies) == 1:
            return bodies.pop()
        task = asyncio.current_task()
        body = next(b for b in reversed(bodies) if b.task is task)
        bodies.remove(body)
        return body


class Lock(AsyncGate):
    """One holder at a time, first come, first served."""

    __slots__ = ()


class Semaphore(AsyncGate):
    """A counted lock. All callers of one name must agree on `permits` while it is in use."""

    __slots__ = ()


class ReadWriteLock(BaseReadWriteLock[AsyncGate]):
    """`rw.read()` is shared, `rw.write()` is exclusive."""

    __slots__ = ()

    def __init__(self, core: Core, reader: Spec, writer: Spec, wait: Duration | None) -> None:
        super().__init__(core, reader, writer, wait, AsyncGate)


class Locks:
    """Look at locks, semaphores and read-write locks, and set right what went wrong."""

    __slots__ = ("_core",)

    def __init__(self, core: Core) -> None:
        self._core = core

    async def inspect(self, name: str, *, wire: Wire = "backstay") -> Inspection:
        """Holders, queue with waiting times, and the fence of one name."""
        if locks_n8n(self._core.engine, wire, validation.name(name)):
            return await n8n.inspect(self._core, name)
        return await admin.inspect(self._core, validation.name(name))

    async def list(self, prefix: str = "") -> builtins.list[Inspection]:
        """Everything held or waited for. On Redis this is a SCAN of the whole key space."""
        return await admin.list_gates(self._core, prefix)

    async def release(self, name: str, lock_id: str, *, wire: Wire = "backstay") -> Released:
        """Release what another process took, by its lock_id. Verifies ownership."""
        if locks_n8n(self._core.engine, wire, validation.name(name)):
            return await n8n.release_by_id(self._core, name, validation.name(lock_id, "lock_id"))
        return await admin.release_by_id(self._core, validation.name(name), validation.name(lock_id, "lock_id"))

    async def force_release(self, name: str, *, wire: Wire = "backstay") -> ForceReleased:
        """Take it from whoever holds it. The fence moves on, so guarded writes of theirs are refused."""
        if locks_n8n(self._core.engine, wire, validation.name(name)):
            return await n8n.force_release(self._core, name)
        return await admin.force_release(self._core, validation.name(name))

    async def cleanup(
        self, execution_id: str, scopes: Sequence[str] | None = None, *, wire: Wire = "backstay"
    ) -> Cleanup:
        """Release what a failed execution holds: in `scopes`, or (None) wherever it said its execution_id."""
        if is_n8n(self._core.engine, wire):
            return await n8n.cleanup(self._core, validation.name(execution_id, "execution_id"), admin.checked(scopes))
        return await admin.cleanup(self._core, validation.name(execution_id, "execution_id"), admin.checked(scopes))
