"""A `with` block of the blocking API: which statement holds a lease, and what happens if the statement is interrupted.

A signal handler may raise (Ctrl-C, a time limit with SIGALRM) wherever Python runs handlers, also at the first
instruction of `__exit__`. No `try` inside `__exit__` covers that, and the statement does not call `__exit__` again. But
the interpreter looks up `__exit__` before it calls `__enter__`, keeps what it found until it has left the statement,
and then drops it. So the lookup returns an object of its own for each statement: when that object is gone and the lease
was not released, the statement was interrupted, and the keeper releases the lease.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, TypeVar, cast

from backstay.gate import flows
from backstay.gate.give_back import give_back
from backstay.gate.lease import GateLease
from backstay.runtime.flows import run
from backstay.runtime.lease import LOST, Handover

L = TypeVar("L", bound=GateLease)

ExitFunction = Callable[[type[BaseException] | None, BaseException | None, TracebackType | None], None]


class WithBlock(Handover[L]):
    """One `with` statement. It holds the lease; nothing else in it is visible to users."""

    __slots__ = ("_exit", "_leave_last")

    def __init__(self, leave_last: ExitFunction) -> None:
        super().__init__()
        #: Leaves the block that the thread has entered last without a `with` statement.
        self._leave_last = leave_last
        #: The statement's exit function, which only the interpreter references. None: there is none, or the statement
        #: has released its lease.
        self._exit: weakref.ref[ExitFunction] | None = None

    def make_exit(self) -> ExitFunction:
        # A partial, not this object or its method: a traceback keeps this object alive, but never the partial.
        leave = partial(self.leave)
        self._exit = weakref.ref(leave, self._on_dropped)
        return leave

    @property
    def is_open(self) -> bool:
        """Whether a statement still has the exit function."""
        return self._exit is not None and self._exit() is not None

    def disarm(self) -> None:
        """The lease has been given back: the end of the statement needs no action."""
        self._exit = None

    def leave(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Release the lease at the end of the block. Raises LeaseLost if it was lost, and the block raised nothing."""
        lease = self.lease
        if lease is None:  # no `with` statement: a program calls lock.__enter__() and lock.__exit__(None, None, None)
            self._leave_last(kind, error, trace)
            return
        try:
            loss = run(flows.release_at_exit(lease, self))
        except BaseException:
            give_back(lease.core, self)
            self._exit = None
            raise
        self._exit = None
        if loss is not None and kind is None:
            raise loss

    def _on_dropped(self, _: object) -> None:
        """The interpreter has left the statement. Callback of a weak reference: it may run at any moment, so it takes
        no locks and leaves the rest to the keeper's thread.
        """
        lease = self.lease
        if lease is None or lease.confirmed or lease.deferred or lease.state is LOST:
            return
        core = lease.core
        if len(lease.holds) <= 1:
            core.untrack(lease)  # now, so that the interrupted thread may acquire the lock again
        core.keeper.call_soon(partial(give_back, core, self))


class ExitLookup:
    """The attribute `__exit__` of a gate: each lookup returns the exit function of a new block. Looked up on the class,
    as contextlib.ExitStack does, it is a function that leaves the thread's last block.

    entering: The gate's attribute with the block of the statement, by thread, that has looked up `__exit__` and calls
        `__enter__` next.
    leave_last: The gate's method that leaves the block which the thread has entered last without a `with` statement.
    """

    def __init__(self, entering: str, leave_last: str) -> None:
        self._entering = entering
        self._leave_last = leave_last

    def __get__(self, gate: object | None, owner: Any) -> Callable[..., None]:
        if gate is None:
            return cast("Callable[..., None]", getattr(owner, self._leave_last))
        block: WithBlock[GateLease] = WithBlock(getattr(gate, self._leave_last))
        getattr(gate, self._entering)[threading.get_ident()] = block
        return block.make_exit()
