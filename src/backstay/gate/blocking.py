"""The blocking API of locks, semaphores and read-write locks: the twin of `api.py`. Thread-safe."""

from __future__ import annotations

import builtins
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from backstay.errors import LockHeld
from backstay.gate import flows
from backstay.gate.admin import BaseLocks, list_gates
from backstay.gate.flows import ANONYMOUS, GateSpec
from backstay.gate.give_back import give_back, settle
from backstay.gate.lease import GateLease
from backstay.gate.options import UNSET, BaseGate, Unset, caller_options
from backstay.gate.rwlock import BaseReadWriteLock
from backstay.gate.view import Cleanup, ForceReleased, Inspection, Released
from backstay.gate.with_block import ExitLookup, WithBlock
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.flows import run
from backstay.runtime.lease import LOST, Handover
from backstay.runtime.validation import Duration, Wire


class Lease(GateLease):
    """A held lock, permit, or read or write lock. Work after the lease is lost is unsafe, and Backstay cannot stop a
    thread: call check() before each step that must not run twice.
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
        """Release the lease. Raises NotOwner if it had ended and another caller holds the lock."""
        if self.depth:
            return run(flows.release(self))
        try:
            return run(flows.release(self))
        except BaseException:  # also an interrupt (Ctrl-C): the keeper sends a release that was not sent
            settle(self)
            raise


class BlockingGate(BaseGate):
    """A lock, semaphore, or one side of a read-write lock: acquire it, try it, or enter it with `with`."""

    __slots__ = ("_blocks", "_entering")

    def __init__(self, core: Core, spec: GateSpec, wait: Duration | None) -> None:
        super().__init__(core, spec, wait)
        #: By thread, the block of the `with` statement that calls `__enter__` next.
        self._entering: dict[int, WithBlock[Any]] = {}
        #: By thread, the blocks that were entered without a `with` statement, the innermost last.
        self._blocks: dict[int, list[WithBlock[Lease]]] = {}

    def acquire(
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
        hold: Handover[Lease] = Handover()
        try:
            return run(flows.acquire(self._core, self._spec, options, self._wait_seconds(wait), Lease, hold))
        except BaseException:
            give_back(self._core, hold)
            raise

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
        block: WithBlock[Lease] | None = self._entering.pop(threading.get_ident(), None)
        if block is None or not block.is_open:
            return self._enter_without_statement()
        try:
            return run(flows.acquire(self._core, self._spec, ANONYMOUS, self._wait_seconds(UNSET), Lease, block))
        except BaseException:
            give_back(self._core, block)
            block.disarm()
            raise

    def _enter_without_statement(self) -> Lease:
        """Enter for a program that calls `__enter__` itself, such as contextlib.ExitStack."""
        block: WithBlock[Lease] = WithBlock(self._leave_last_block)
        blocks = self._blocks.setdefault(threading.get_ident(), [])
        try:
            lease = run(flows.acquire(self._core, self._spec, ANONYMOUS, self._wait_seconds(UNSET), Lease, block))
            blocks.append(block)
            return lease
        except BaseException:
            give_back(self._core, block)
            if block in blocks:
                blocks.remove(block)
            raise

    def _leave_last_block(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the block that this thread has entered last without a `with` statement."""
        thread = threading.get_ident()
        blocks = self._blocks[thread]
        block = blocks.pop()
        if not blocks:
            del self._blocks[thread]
        block.leave(kind, error, trace)

    if TYPE_CHECKING:

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None: ...
    else:
        __exit__ = ExitLookup("_entering", "_leave_last_block")


class Lock(BlockingGate):
    """A lock: one holder at a time, in FIFO order."""

    __slots__ = ()


class Semaphore(BlockingGate):
    """A semaphore: `permits` holders at a time, in FIFO order. All callers of one name must pass the same number."""

    __slots__ = ()


class ReadWriteLock(BaseReadWriteLock[BlockingGate]):
    """A read-write lock: `rw.read()` is shared, `rw.write()` is exclusive."""

    __slots__ = ()

    def __init__(self, core: Core, reader: GateSpec, writer: GateSpec, wait: Duration | None) -> None:
        super().__init__(core, reader, writer, wait, BlockingGate)


class Locks(BaseLocks):
    """Inspects and repairs locks, semaphores and read-write locks: `stay.locks`."""

    __slots__ = ()

    def inspect(self, name: str, *, wire: Wire = "backstay") -> Inspection:
        """Return the holders, the queue with waiting times, and the fence of one name."""
        return run(self._inspect(name, wire))

    def list(self, prefix: str = "") -> builtins.list[Inspection]:
        """List the locks, semaphores and read-write locks that have a holder or a waiter and whose name begins with
        `prefix`. On Redis this is a SCAN of the whole key space.
        """
        return run(list_gates(self._core, prefix))

    def release(self, name: str, lock_id: str, *, wire: Wire = "backstay") -> Released:
        """Release a lease that another process holds, by its lock_id. Raises NotOwner when another lock_id holds it."""
        return run(self._release(name, lock_id, wire))

    def force_release(self, name: str, *, wire: Wire = "backstay") -> ForceReleased:
        """Remove all holders and advance the fence, so that guarded writes of the old holders are refused."""
        return run(self._force_release(name, wire))

    def cleanup(self, execution_id: str, scopes: Sequence[str] | None = None, *, wire: Wire = "backstay") -> Cleanup:
        """Release the locks of a failed workflow execution, for example of n8n. `scopes`: the names of the locks to
        check; without it, all locks that were acquired with this execution_id.
        """
        return run(self._cleanup(execution_id, scopes, wire))
