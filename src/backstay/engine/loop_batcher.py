"""What one turn of an event loop asked for, handed over together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from backstay.engine.base import Op

Asked = list[tuple[Op[Any], "asyncio.Future[Any]"]]


class Turn:
    """Collects operations until the loop turn ends, then flushes them in one go."""

    def __init__(self, flush: Callable[[asyncio.AbstractEventLoop, Asked], None]) -> None:
        self._flush = flush
        self._asked: Asked = []

    def submit(self, op: Op[Any]) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._asked.append((op, future))
        if len(self._asked) == 1:
            loop.call_soon(self._end, loop)
        return future

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        asked, self._asked = self._asked, []
        try:
            self._flush(loop, asked)
        except Exception as error:  # noqa: BLE001 - whatever it is, those who asked wait for an answer
            settle([future for _, future in asked], [(place, error) for place in range(len(asked))])


def settle(futures: list[asyncio.Future[Any]], results: Sequence[tuple[int, Any]]) -> None:
    """Resolve futures that still wait; a cancelled one takes no answer."""
    for place, result in results:
        future = futures[place]
        if future.done():
            continue
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)
