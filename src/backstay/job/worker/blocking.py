"""The worker of the blocking API: runs the async worker on an event loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

from backstay.errors import ConfigError
from backstay.job.worker.worker import Worker


class AsyncTwin(Protocol):
    """An async Backstay over the same engine with the same job types."""

    @property
    def worker(self) -> Callable[..., Worker]: ...


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop: uvloop's if it is installed (a third faster under load), else asyncio's."""
    if find_spec("uvloop") is not None:
        loop: asyncio.AbstractEventLoop = import_module("uvloop").new_event_loop()
        return loop
    return asyncio.new_event_loop()


class BlockingWorker:
    """`run()` blocks until the worker has stopped; `stop()` may be called from any thread or a signal handler."""

    def __init__(self, twin: Callable[[], AbstractAsyncContextManager[AsyncTwin]], options: dict[str, Any]) -> None:
        self._twin = twin
        self._options = options
        self._worker: Worker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stops: list[bool] = []

    @property
    def counts(self) -> dict[str, int]:
        """Acknowledged attempts by outcome: completed, failed, retried, snoozed, released, cancelled, skipped, lost."""
        return dict(self._worker.counts) if self._worker is not None else {}

    @property
    def done(self) -> int:
        """The number of attempts finished and acknowledged by this worker."""
        return self._worker.done if self._worker is not None else 0

    @property
    def running(self) -> int:
        """The number of handlers running now."""
        return self._worker.running if self._worker is not None else 0

    def run(self, *, burst: bool = False) -> None:
        """Work until stopped. burst=True: return once no job is left that this worker could run now."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise ConfigError("a blocking worker runs its own event loop; inside a running loop, use backstay.Backstay")
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(self._run(burst=burst))

    async def _run(self, *, burst: bool) -> None:
        async with self._twin() as twin:
            self._loop = asyncio.get_running_loop()
            self._worker = worker = twin.worker(**self._options)
            for now in self._stops:
                worker.stop(now=now)
            await worker.run(burst=burst)

    def stop(self, *, now: bool = False) -> None:
        """Stop claiming, wait up to `drain` seconds for running jobs, and release the others. A second call, or
        now=True, does not wait. Thread-safe.
        """
        self._stops.append(now)
        worker, loop = self._worker, self._loop
        if worker is not None and loop is not None:
            with suppress(RuntimeError):  # the worker has stopped and its loop is closed
                loop.call_soon_threadsafe(lambda: worker.stop(now=now))
