"""A worker for a blocking Backstay: the same one, on an event loop of its own."""

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
    """An async Backstay over the same engine, with the same jobs."""

    @property
    def worker(self) -> Callable[..., Worker]: ...


def new_loop() -> asyncio.AbstractEventLoop:
    """Uvloop's where it is installed: a third faster under load."""
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
        """What became of the attempts here: completed, failed, retried, snoozed, released, cancelled, lost."""
        return dict(self._worker.counts) if self._worker is not None else {}

    @property
    def done(self) -> int:
        """Attempts that have ended here and were stored."""
        return self._worker.done if self._worker is not None else 0

    @property
    def running(self) -> int:
        """Handlers that run now."""
        return self._worker.running if self._worker is not None else 0

    def run(self, *, burst: bool = False) -> None:
        """Work until stopped; burst: until nothing is left that this worker could do now."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise ConfigError("this worker runs an event loop of its own; inside one, use backstay.Backstay")
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
        """Claim no more, wait for what runs, give back the rest. A second call, or now=True: do not wait."""
        self._stops.append(now)
        worker, loop = self._worker, self._loop
        if worker is not None and loop is not None:
            with suppress(RuntimeError):  # it has stopped
                loop.call_soon_threadsafe(lambda: worker.stop(now=now))
