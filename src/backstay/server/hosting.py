"""Hosts a server process: the HTTP server, a worker (with scheduler and reaper) and a watched folder of workflow files.

They start together. On stop, the HTTP server drains first, then the worker.
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
from backstay.job.reserved import INTERNAL
from backstay.job.worker.worker import Worker
from backstay.runtime.loop import Loop
from backstay.server.app import Server
from backstay.server.http.uvicorn_server import UvicornRunner
from backstay.server.settings import ServerSettings, is_loopback, require_tokens_beyond_loopback
from backstay.server.workflow_folder import WorkflowFolder

T = TypeVar("T")

log = logging.getLogger("backstay.server")

#: Seconds that a starting server waits for its engine, and seconds between attempts.
ENGINE_WAIT, ENGINE_RETRY = 60.0, 0.5


@dataclass(frozen=True, kw_only=True)
class HostOptions:
    """Options of a server process: its address, its settings, its worker and its workflow folder."""

    host: str = "127.0.0.1"
    port: int = 3000
    settings: ServerSettings = field(default_factory=ServerSettings)
    #: Run neither scheduler nor worker.
    api_only: bool = False
    #: Options of this process's worker. None: the worker claims only internal jobs, such as those that evaluate the
    #: conditions (`if`) of workflow jobs.
    worker: dict[str, Any] | None = None
    #: The lease of internal jobs in seconds. If this process crashes, other workers run them after that time.
    lease: float = 30.0
    #: A directory of workflow files to load and watch; "": none.
    workflows: str = ""

    @property
    def effective_settings(self) -> ServerSettings:
        """The settings, with `require_tokens` on if the server does not listen on a loopback address. Otherwise the
        server would be open to everyone after its last token is revoked.
        """
        always = self.settings.require_tokens or not is_loopback(self.host)
        return replace(self.settings, require_tokens=always)


def make_worker(stay: Backstay, worker: dict[str, Any] | None, lease: float = 30.0) -> Worker:
    """Make the worker of this process. Like every worker, it also schedules, reaps and prunes jobs. Without `worker`
    options it claims only internal jobs, such as those that evaluate the conditions (`if`) of workflow jobs.
    """
    return stay.worker(**(worker or {"queues": [INTERNAL], "concurrency": 4, "lease": lease}), signals=False)


async def wait_for_engine(operation: Callable[[], Awaitable[T]]) -> T:
    """Run an operation, and repeat it for up to ENGINE_WAIT seconds while the engine is unavailable: the engine may
    start later than the server.
    """
    until = steady() + ENGINE_WAIT
    logged = False
    while True:
        try:
            return await operation()
        except (EngineUnavailable, OutcomeUnknown) as error:
            if steady() > until:
                raise
            if not logged:
                log.warning("waiting for the engine: %s", error)
                logged = True
            await asyncio.sleep(ENGINE_RETRY)


def bind(host: str, port: int) -> socket.socket:
    """Bind a listening socket. Raises ConfigError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only on sockets with an explicit protocol. Without TCP_NODELAY, a response may take 40 ms
    # longer (Nagle's algorithm and delayed ACKs).
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host.strip("[]"), port))
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror}; --port 0 takes any free port"
        ) from None
    return sock


async def serve(stay: Backstay, options: HostOptions, started: Callable[[str], None] = lambda _: None) -> None:
    """Serve until SIGTERM or Ctrl-C. Then streams end, open requests finish and the worker drains; a second signal
    stops everything at once. `started` is called with the server's URL.
    """
    internals = stay.internals
    await wait_for_engine(stay.open)
    tokens = await wait_for_engine(lambda: internals.send(internals.job_store.tokens()))
    require_tokens_beyond_loopback(options.host, tokens=len(tokens), required=options.settings.require_tokens)
    app = Server(stay, options.effective_settings)
    folder = WorkflowFolder(app.core, options.workflows) if options.workflows else None
    worker = None if options.api_only else make_worker(stay, options.worker, options.lease)
    sock = bind(options.host, options.port)
    runner = UvicornRunner(app)
    signals = _SignalHandlers(runner, worker)
    loops: list[Loop] = []
    tasks: list[asyncio.Task[None]] = []
    try:
        await wait_for_engine(app.open)
        if folder is not None:
            await wait_for_engine(folder.scan)
            loops.append(folder.loop())
            loops[0].start()
        runs = asyncio.create_task(runner.run([sock]))
        tasks.append(runs)
        while not runner.started and not runs.done():  # noqa: ASYNC110 - uvicorn sets no event when it has started
            await asyncio.sleep(0.005)
        if worker is not None:
            tasks.append(asyncio.create_task(worker.run()))
        if runner.started:
            shown = f"[{options.host}]" if ":" in options.host else options.host
            started(f"http://{shown}:{sock.getsockname()[1]}")
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        runner.stop()
        await runs
        if worker is not None:
            worker.stop()
            await tasks[1]
    finally:
        signals.close()
        for loop in loops:
            await loop.stop()
        for task in tasks:
            if not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        await app.close()
        sock.close()


class _SignalHandlers:
    """The signal handlers of `serve`: the first signal stops gracefully, the second one at once."""

    NUMBERS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self, runner: UvicornRunner, worker: Worker | None) -> None:
        self._runner = runner
        self._worker = worker
        self._count = 0
        self._loop = asyncio.get_running_loop()
        # asyncio refuses signal handlers outside the main thread; there, the program handles signals itself.
        with suppress(ValueError, RuntimeError, NotImplementedError):
            for number in self.NUMBERS:
                self._loop.add_signal_handler(number, self._on_signal, number.name)

    def _on_signal(self, name: str) -> None:
        self._count += 1
        first = self._count == 1
        log.warning("%s: %s", name, "stopping; send the signal again to stop at once" if first else "stopping at once")
        if first:
            self._runner.stop()
        else:
            self._runner.force_stop()
            if self._worker is not None:
                self._worker.stop(now=True)

    def close(self) -> None:
        with suppress(ValueError, RuntimeError, NotImplementedError):
            for number in self.NUMBERS:
                self._loop.remove_signal_handler(number)
