"""Many small operations of one kind, sent as one: what a busy event loop asks for while earlier ones are under way.

A lone caller waits for nobody. Under load each trip carries all that has come since the one before it left, so that a
hundred tasks cost a few scripts, not a hundred.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from backstay.engine.base import Op
from backstay.engine.redis.encoder import Ready
from backstay.errors import EngineError

#: While one trip is under way, this many who wait are worth a second: made here while the server is at work.
ENOUGH = 32
UNDER_WAY = 2
#: The most that one script is given: the server serves nobody else meanwhile.
MOST = 500


class Gathered(Ready, frozen=True):
    """An operation that may travel with others of its key. Only for what fails for all of them alike, if at all."""

    item: Any = None
    #: One operation out of many; answers what each of them would have, in order.
    together: Callable[[list[Any]], Op[list[Any]]] | None = None


Waiting = list[tuple[Gathered, asyncio.Future[Any]]]


class Gathering:
    """What is under way and what waits, by key. Belongs to an event loop."""

    def __init__(self, carry: Callable[[Op[Any]], Awaitable[Any]]) -> None:
        self._carry = carry
        self._loop = asyncio.get_running_loop()
        self._under_way: dict[str, int] = {}
        self._waiting: dict[str, Waiting] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def is_here(self) -> bool:
        """Whether this event loop is its own."""
        return self._loop is asyncio.get_running_loop()

    async def submit(self, op: Gathered) -> Any:
        key = op.key
        trips = self._under_way.get(key, 0)
        if not trips:
            self._under_way[key] = 1
            try:
                return await self._carry(Ready(op.work, key, request=op.request, read=op.read))
            finally:
                self._done(key)
        future = self._loop.create_future()
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = []
        waiting.append((op, future))
        if trips < UNDER_WAY and len(waiting) >= ENOUGH:
            self._under_way[key] = trips + 1
            self._next(key)
        return await future

    def _done(self, key: str) -> None:
        """A trip is over: those who wait go on the next one."""
        if not self._next(key):
            self._under_way[key] -= 1
            if not self._under_way[key]:
                del self._under_way[key]

    def _next(self, key: str) -> bool:
        waiting = [(op, future) for op, future in self._waiting.pop(key, ()) if not future.done()]
        if not waiting:
            return False
        if waiting[MOST:]:
            self._waiting[key] = waiting[MOST:]
        task = self._loop.create_task(self._go(key, waiting[:MOST]))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def _go(self, key: str, waiting: Waiting) -> None:
        together = waiting[0][0].together
        try:
            if together is None:
                raise TypeError("a gathered operation says how to go together")
            answers = await self._carry(together([op.item for op, _ in waiting]))
        except asyncio.CancelledError:  # the loop ends
            for _, future in waiting:
                future.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - it belongs to those who wait
            for _, future in waiting:
                if not future.done():
                    future.set_exception(type(error)(str(error)) if isinstance(error, EngineError) else error)
        else:
            for (_, future), answer in zip(waiting, answers, strict=True):
                if not future.done():
                    future.set_result(answer)
        finally:
            self._done(key)
