"""The code that runs under a lease on an event loop: it is cancelled when the lease is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

from backstay.runtime.lease import LOST, BaseLease

L = TypeVar("L", bound=BaseLease)


class Body(Generic[L]):
    """What this task does from now on: cancelled when its lease is lost, as asyncio.timeout would."""

    __slots__ = ("_cancelling", "_fired", "_open", "_outer", "_signal", "lease", "task")

    def __init__(self, lease: L, signal: Callable[[Callable[[], None]], None]) -> None:
        self.lease = lease
        self.task = cast("asyncio.Task[Any]", asyncio.current_task())
        #: Runs something on the loop, from any thread.
        self._signal = signal
        self._cancelling = self.task.cancelling()
        self._fired = False
        self._open = True
        #: A lease that is entered again may be watched by a block around this one.
        self._outer = lease.watcher
        lease.watcher = self._lost
        if lease.state is LOST:
            self._lost()

    def _lost(self) -> None:
        self._signal(self._cancel)

    def _cancel(self) -> None:
        if self._open and not self._fired:
            self._fired = True
            self.task.cancel()

    def close(self) -> bool:
        """The body has ended. True when the cancellation it saw was ours."""
        self._open = False
        self.lease.watcher = self._outer
        if self._outer is not None and self.lease.state is LOST:
            self._outer()  # it was lost while this block was the one to be told
        return self._fired and self.task.uncancel() <= self._cancelling
