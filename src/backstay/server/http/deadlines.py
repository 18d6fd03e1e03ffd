"""Time limits of requests. One shared timer checks them every half second, so a limit costs only a dictionary entry and
may fire half a second late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from backstay.engine.base import steady

T = TypeVar("T")

TICK = 0.5


class DeadlineExceeded(Exception):
    """An awaitable did not finish in time."""


class Deadline:
    """A callback that is due at a time of the steady clock."""

    __slots__ = ("at", "callback", "fired")

    def __init__(self, at: float, callback: Callable[[], object]) -> None:
        self.at = at
        self.callback = callback
        self.fired = False


class Deadlines:
    """All deadlines of a server. Not thread-safe: use it on the event loop only."""

    def __init__(self) -> None:
        self._deadlines: dict[Deadline, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, seconds: float, callback: Callable[[], object]) -> Deadline:
        """Call `callback` in `seconds`, unless `drop` removes the returned deadline before that."""
        deadline = Deadline(steady() + seconds, callback)
        self._deadlines[deadline] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK, self._tick)
        return deadline

    def drop(self, deadline: Deadline) -> None:
        self._deadlines.pop(deadline, None)

    async def run_within(self, seconds: float, function: Callable[[], Awaitable[T]]) -> T:
        """Await `function()`. Raises DeadlineExceeded after `seconds`."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - requests are tasks
        deadline = self.add(seconds, task.cancel)
        try:
            return await function()
        except asyncio.CancelledError:
            if deadline.fired and not task.uncancel():
                raise DeadlineExceeded from None
            raise
        finally:
            self._deadlines.pop(deadline, None)

    def _tick(self) -> None:
        now = steady()
        for deadline in [deadline for deadline in self._deadlines if deadline.at <= now]:
            del self._deadlines[deadline]
            deadline.fired = True
            deadline.callback()
        self._timer = asyncio.get_running_loop().call_later(TICK, self._tick) if self._deadlines else None

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
