"""The worker of the blocking API: runs an async worker on its own event loop."""

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
    """The async Backstay that a BlockingWorker runs on. It has the settings and job types of the blocking Backstay."""

    @property
    def worker(self) -> Callable[..., Worker]: ...


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop: uvloop's if it is installed (a third faster under load), else asyncio's."""
    if find_spec("uvloop") is not None:
        loop: asyncio.AbstractEventLoop = import_module("uvloop").new_event_loop()
        return loop
    return asyncio.new_event_loop()


class BlockingWorker:
    """A worker of a blocking Backstay. `run()` blocks until the worker has stopped; `stop()` may be called on any
    thread or in a signal handler.
    """

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
        """The number of attempts that this worker has finished and the store has acknowledged."""
        return self._worker.done if self._worker is not None else 0

    @property
    def running(self) -> int:
        """The number of handlers running now."""
        return self._worker.running if self._worker is not None else 0

    def run(self, *, burst: bool = False) -> None:
        """Work until stopped. burst=True: also return once no job is left that this worker could run now."""
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
        """Stop claiming, wait up to `drain` seconds for the running jobs, then interrupt and release those that still
        run. A second call, or now=True, does not wait. Thread-safe.
        """
        self._stops.append(now)
        worker, loop = self._worker, self._loop
        if worker is not None and loop is not None:
            with suppress(RuntimeError):  # the worker has stopped and its loop is closed
                loop.call_soon_threadsafe(lambda: worker.stop(now=now))
