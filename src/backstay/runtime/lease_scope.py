"""Cancel the task that runs under a lease on an event loop when the lease is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

from backstay.runtime.lease import LOST, BaseLease

L = TypeVar("L", bound=BaseLease)


class LeaseScope(Generic[L]):
    """The part of a task that runs under a lease, from the creation of this object until `close`. If the lease is lost
    in between, the scope cancels the task, in the way asyncio.timeout does.
    """

    __slots__ = ("_cancelling", "_fired", "_open", "_outer", "_signal", "lease", "task")

    def __init__(self, lease: L, signal: Callable[[Callable[[], None]], None]) -> None:
        self.lease = lease
        self.task = cast("asyncio.Task[Any]", asyncio.current_task())
        #: Runs a callback on the event loop; callable from any thread.
        self._signal = signal
        self._cancelling = self.task.cancelling()
        self._fired = False
        self._open = True
        #: The watcher (the callback for the loss of the lease) that was set before this scope; `close` restores it.
        #: There is one if the task acquired a reentrant lock twice, so that two scopes are nested.
        self._outer = lease.watcher
        lease.watcher = self._on_lost
        if lease.state is LOST:
            self._on_lost()

    def _on_lost(self) -> None:
        self._signal(self._cancel)

    def _cancel(self) -> None:
        if self._open and not self._fired:
            self._fired = True
            self.task.cancel()

    def close(self) -> bool:
        """Leave the scope. Returns True if this scope caused the cancellation that the task received."""
        self._open = False
        self.lease.watcher = self._outer
        if self._outer is not None and self.lease.state is LOST:
            self._outer()  # the lease was lost while this scope was its watcher, so the enclosing scope was not called
        return self._fired and self.task.uncancel() <= self._cancelling
