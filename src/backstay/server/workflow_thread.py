"""A thread for CPU-bound work on workflows: reading a definition, planning a run. On the event loop it would delay all
other requests.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

from backstay.server.http.problem import Refusal

T = TypeVar("T")

#: Limit of the pending tasks of one caller.
MAX_PENDING = 100

_Pending = tuple[Callable[[], Any], asyncio.Future[Any]]


class WorkflowThread:
    """Runs one task at a time and takes turns between callers: a caller with many tasks delays another one by at most
    one task. Each task bounds its own work. `run` and `close` run on the event loop.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="backstay-workflow")
        self._pending: dict[str, deque[_Pending]] = {}
        self._pump: asyncio.Task[None] | None = None

    async def run(self, caller: str, function: Callable[[], T]) -> T:
        """Run a function in the thread and return its result. Raises Refusal (503) when the caller has too many pending
        tasks.
        """
        queue = self._pending.setdefault(caller, deque())
        if len(queue) >= MAX_PENDING:
            raise Refusal(503, "too many workflows of this caller wait to be read", headers={"retry-after": "1"})
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        context = contextvars.copy_context()
        queue.append((lambda: context.run(function), cast("asyncio.Future[Any]", done)))
        if self._pump is None:
            self._pump = asyncio.create_task(self._run_pending())
        return await done

    async def _run_pending(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._pending:
                caller = next(iter(self._pending))
                queue = self._pending.pop(caller)
                function, done = queue.popleft()
                if queue:
                    self._pending[caller] = queue  # at the end: the other callers are next
                if done.cancelled():
                    continue
                try:
                    result = await loop.run_in_executor(self._executor, function)
                except Exception as error:  # noqa: BLE001 - the caller of `run` gets it
                    if not done.cancelled():
                        done.set_exception(error)
                else:
                    if not done.cancelled():
                        done.set_result(result)
        finally:
            self._pump = None

    def close(self) -> None:
        """End the thread after its current task. Safe to call twice."""
        if self._pump is not None:
            self._pump.cancel()
        for queue in self._pending.values():
            for _, done in queue:
                done.cancel()
        self._pending.clear()
        self._executor.shutdown(wait=False, cancel_futures=True)
