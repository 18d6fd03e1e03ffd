"""Batch the operations that one iteration of an event loop submits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from backstay.engine.base import Op

Submitted = list[tuple[Op[Any], "asyncio.Future[Any]"]]


class LoopBatcher:
    """Collects operations until the loop iteration ends, then flushes them as one batch."""

    def __init__(self, flush: Callable[[asyncio.AbstractEventLoop, Submitted], None]) -> None:
        self._flush = flush
        self._submitted: Submitted = []

    def submit(self, op: Op[Any]) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._submitted.append((op, future))
        if len(self._submitted) == 1:
            loop.call_soon(self._flush_all, loop)
        return future

    def _flush_all(self, loop: asyncio.AbstractEventLoop) -> None:
        submitted, self._submitted = self._submitted, []
        try:
            self._flush(loop, submitted)
        except Exception as error:  # noqa: BLE001 - every submitter awaits its future, so each one gets the error
            resolve_futures([future for _, future in submitted], [(index, error) for index in range(len(submitted))])


def resolve_futures(futures: list[asyncio.Future[Any]], results: Sequence[tuple[int, Any]]) -> None:
    """Resolve pending futures with their results or exceptions; skip cancelled ones."""
    for index, result in results:
        future = futures[index]
        if future.done():
            continue
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)
