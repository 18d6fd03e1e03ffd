"""Coalesce small operations of one kind: those that arrive while a request is in flight are sent as one request.

A single caller never waits. Under load each request takes all operations that arrived since the previous one was sent,
so a hundred tasks cost a few script calls, not a hundred.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from backstay.engine.base import Op
from backstay.engine.redis.encoder import SingleRequest
from backstay.errors import EngineError

#: This many waiting operations justify a second request in flight, which is encoded while the server runs the first.
SECOND_REQUEST_AT = 32
MAX_IN_FLIGHT = 2
#: The largest number of operations in one script call: the server is blocked while the script runs.
MAX_BATCH = 500


class CoalescedRequest(SingleRequest, frozen=True):
    """An operation that can be merged with other operations that have the same `key` into one request. That request
    succeeds or fails as a whole.
    """

    item: Any = None
    #: Builds the merged operation from the `item`s of the single operations. Its result is the list of their results,
    #: in the same order.
    combine: Callable[[list[Any]], Op[list[Any]]] | None = None


Waiting = list[tuple[CoalescedRequest, asyncio.Future[Any]]]


class Coalescer:
    """Sends the coalesced operations of one event loop. For each key it counts the requests in flight and keeps the
    operations that wait to be merged. Not thread-safe.
    """

    def __init__(self, send: Callable[[Op[Any]], Awaitable[Any]]) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._in_flight: dict[str, int] = {}
        self._waiting: dict[str, Waiting] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def is_on_this_loop(self) -> bool:
        """Whether this coalescer belongs to the running event loop."""
        return self._loop is asyncio.get_running_loop()

    async def submit(self, op: CoalescedRequest) -> Any:
        key = op.key
        in_flight = self._in_flight.get(key, 0)
        if not in_flight:
            self._in_flight[key] = 1
            try:
                return await self._send(SingleRequest(op.work, key, request=op.request, read=op.read))
            finally:
                self._on_done(key)
        future = self._loop.create_future()
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = []
        waiting.append((op, future))
        if in_flight < MAX_IN_FLIGHT and len(waiting) >= SECOND_REQUEST_AT:
            self._in_flight[key] = in_flight + 1
            self._send_next(key)
        return await future

    def _on_done(self, key: str) -> None:
        """A request of this key has completed: send the operations that wait for it; if
        there are none, one request less is in flight.
        """
        if not self._send_next(key):
            self._in_flight[key] -= 1
            if not self._in_flight[key]:
                del self._in_flight[key]

    def _send_next(self, key: str) -> bool:
        waiting = [(op, future) for op, future in self._waiting.pop(key, ()) if not future.done()]
        if not waiting:
            return False
        if waiting[MAX_BATCH:]:
            self._waiting[key] = waiting[MAX_BATCH:]
        task = self._loop.create_task(self._send_batch(key, waiting[:MAX_BATCH]))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def _send_batch(self, key: str, waiting: Waiting) -> None:
        combine = waiting[0][0].combine
        try:
            if combine is None:
                raise TypeError("a coalesced operation needs combine=")
            results = await self._send(combine([op.item for op, _ in waiting]))
        except asyncio.CancelledError:  # the event loop is shutting down
            for _, future in waiting:
                future.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - it becomes the result of each waiting operation
            for _, future in waiting:
                if not future.done():
                    future.set_exception(type(error)(str(error)) if isinstance(error, EngineError) else error)
        else:
            for (_, future), result in zip(waiting, results, strict=True):
                if not future.done():
                    future.set_result(result)
        finally:
            self._on_done(key)
