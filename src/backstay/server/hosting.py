"""A server and what runs beside it: scheduler, reaper, the runs' own decisions, a worker, a watched directory. Started
together, stopped in order: no more requests, then no more work.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from backstay import Backstay
from backstay.engine.base import steady
from backstay.errors import ConfigError, EngineUnavailable, OutcomeUnknown
from backstay.job.api.registry import store_of
from backstay.job.flows import send
from backstay.job.reserved import INTERNAL
from backstay.job.worker.worker import Worker
from backstay.runtime.loop import Loop
from backstay.server.app import Server
from backstay.server.http.uvicorn_server import Serving
from backstay.server.settings import Settings, is_loopback, refuse_open_door
from backstay.server.workflow_folder import Folder

T = TypeVar("T")

log = logging.getLogger("backstay.server")

#: How long a server that starts waits for its engine, and how often it tries.
REACH, AGAIN = 60.0, 0.5


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to host."""

    host: str = "127.0.0.1"
    port: int = 3000
    settings: Settings = field(default_factory=Settings)
    #: Neither scheduler nor worker.
    api_only: bool = False
    #: Options of a worker in this process; None: only the runs' own decisions are made here.
    worker: dict[str, Any] | None = None
    #: Of the runs' own decisions: how long they stay away when this process dies, in seconds.
    lease: float = 30.0
    #: A directory of workflows; "": none.
    workflows: str = ""

    @property
    def bounds(self) -> Settings:
        """Its settings. At another address than loopback's nobody comes in without a token, also when the last one is
        revoked.
        """
        always = self.settings.require_tokens or not is_loopback(self.host)
        return replace(self.settings, require_tokens=always)


def background(stay: Backstay, options: dict[str, Any] | None, lease: float = 30.0) -> Worker:
    """What has to happen by itself: every worker schedules, reaps, prunes and decides; this one does no more than that
    unless it is told to.
    """
    return stay.worker(**(options or {"queues": [INTERNAL], "concurrency": 4, "lease": lease}), signals=False)


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """An engine that is not there yet is waited for: it may start after us, or go away again while we do."""
    until = steady() + REACH
    told = False
    while True:
        try:
            return await ask()
        except (EngineUnavailable, OutcomeUnknown) as error:
            if steady() > until:
                raise
            if not told:
                log.warning("waiting for the engine: %s", error)
                told = True
            await asyncio.sleep(AGAIN)


def bind(host: str, port: int) -> socket.socket:
    """Raises ConfigError with a way out."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Told its protocol: asyncio turns off the waiting for more to send (40 ms for each answer) only then.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host.strip("[]"), port))
    except OSError as error:
        sock.close()
        raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror}; try --port 0 for any") from None
    return sock


async def serve(stay: Backstay, plan: Plan, started: Callable[[str], None] = lambda _: None) -> None:
    """Until SIGTERM or Ctrl-C: then streams end, requests have a moment, and what runs is drained. Once more: now."""
    core = stay._core  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - the house's own
    await patiently(stay.open)
    tokens = await patiently(lambda: send(core, store_of(core).tokens()))
    refuse_open_door(plan.host, tokens=len(tokens), required=plan.settings.require_tokens)
    app = Server(stay, plan.bounds)
    folder = Folder(app.core, plan.workflows) if plan.workflows else None
    worker = None if plan.api_only else background(stay, plan.worker, plan.lease)
    sock = bind(plan.host, plan.port)
    serving = Serving(app)
    ears = _Signals(serving, worker)
    loops: list[Loop] = []
    tasks: list[asyncio.Task[None]] = []
    try:
        await patiently(app.open)
        if folder is not None:
            await patiently(folder.look)
            loops.append(folder.loop())
            loops[0].start()
        runs = asyncio.create_task(serving.run([sock]))
        tasks.append(runs)
        while not serving.started and not runs.done():  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.005)
        if worker is not None:
            tasks.append(asyncio.create_task(worker.run()))
        if serving.started:
            shown = f"[{plan.host}]" if ":" in plan.host else plan.host
            started(f"http://{shown}:{sock.getsockname()[1]}")
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        serving.stop()
        await runs
        if worker is not None:
            worker.stop()
            await tasks[1]
    finally:
        ears.close()
        for loop in loops:
            await loop.stop()
        for task in tasks:
            if not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        await app.close()
        sock.close()


class _Signals:
    """The first ends it in order, the second hurries."""

    NUMBERS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self, serving: Serving, worker: Worker | None) -> None:
        self._serving = serving
        self._worker = worker
        self._count = 0
        self._loop = asyncio.get_running_loop()
        with suppress(ValueError, RuntimeError, NotImplementedError):  # not the main thread: somebody else's business
            for number in self.NUMBERS:
                self._loop.add_signal_handler(number, self._heard, number.name)

    def _heard(self, name: str) -> None:
        self._count += 1
        log.warning("%s: %s", name, "stopping; once more to stop now" if self._count == 1 else "stopping now")
        if self._count == 1:
            self._serving.stop()
        else:
            self._serving.hurry()
            if self._worker is not None:
                self._worker.stop(now=True)

    def close(self) -> None:
        with suppress(ValueError, RuntimeError, NotImplementedError):
            for number in self.NUMBERS:
                self._loop.remove_signal_handler(number)
