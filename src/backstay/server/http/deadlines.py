"""Time limits of requests: one timer for all of them. A limit costs a dictionary entry, not a timer, and comes up to
half a second late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from backstay.engine.base import steady

T = TypeVar("T")

LOOK = 0.5


class Late(Exception):
    """Its time was over."""


class Alarm:
    __slots__ = ("at", "call", "fired")

    def __init__(self, at: float, call: Callable[[], object]) -> None:
        self.at = at
        self.call = call
        self.fired = False


class Deadlines:
    """On the loop only."""

    def __init__(self) -> None:
        self._alarms: dict[Alarm, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, seconds: float, call: Callable[[], object]) -> Alarm:
        alarm = Alarm(steady() + seconds, call)
        self._alarms[alarm] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK, self._look)
        return alarm

    def drop(self, alarm: Alarm) -> None:
        self._alarms.pop(alarm, None)

    async def within(self, seconds: float, call: Callable[[], Awaitable[T]]) -> T:
        """What `call()` answers, or Late."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - requests are tasks
        alarm = self.add(seconds, task.cancel)
        try:
            return await call()
        except asyncio.CancelledError:
            if alarm.fired and not task.uncancel():
                raise Late from None
            raise
        finally:
            self._alarms.pop(alarm, None)

    def _look(self) -> None:
        now = steady()
        for alarm in [alarm for alarm in self._alarms if alarm.at <= now]:
            del self._alarms[alarm]
            alarm.fired = True
            alarm.call()
        self._timer = asyncio.get_running_loop().call_later(LOOK, self._look) if self._alarms else None

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
