"""A pool of child processes for jobs with `pool="process"`: a handler that crashes takes down only its own process.

Each child runs one job at a time and is reused. A child whose handler does not end in time is killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from contextlib import suppress
from multiprocessing import spawn
from typing import TYPE_CHECKING

from backstay.errors import ConfigError
from backstay.job.api.retry import Cancel, Outcome, Retry, Snooze
from backstay.job.worker.execution.child_protocol import (
    HEAD,
    MAIN,
    Boot,
    HandlerFailed,
    HandlerReturned,
    Interrupt,
    LogWritten,
    OutcomeRequested,
    ProgressReported,
    RunHandler,
    ToChild,
    frame,
    read_to_worker,
)
from backstay.job.worker.execution.outcome import EncodedResult, HandlerError, ProcessDied

if TYPE_CHECKING:
    from backstay.job.api.context import AttemptSink
    from backstay.job.worker.execution.attempt import Attempt

#: Seconds that `close` waits for a child to exit before it kills the child.
EXIT_WAIT = 2.0


class ChildProcess:
    """A child process and the worker's end of its socket."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        worker_end: socket.socket,
    ) -> None:
        self.process = process
        self._reader = reader
        self._writer = writer
        self._watch = asyncio.get_running_loop().create_task(self._watch_exit(worker_end))

    @property
    def is_alive(self) -> bool:
        return self.process.returncode is None and not self._reader.at_eof()

    def send(self, message: ToChild) -> None:
        self._writer.write(frame(message))

    async def run(self, attempt: Attempt, sink: AttemptSink) -> EncodedResult:
        """Run the attempt's handler in this child and return its encoded result. Raises the Outcome that the handler
        requested (Snooze, Cancel or Retry), HandlerError for an exception of the handler, ProcessDied if the child
        exits.
        """
        function = attempt.definition.function
        name = getattr(function, "__qualname__", "")
        if "<" in name:
            raise ConfigError(f"another process cannot import {name}; pool='process' needs a top-level function")
        self.send(RunHandler(_module(function.__module__), name, attempt.job, attempt.ttl))
        while True:
            try:
                head = await self._reader.readexactly(HEAD)
                message = read_to_worker(await self._reader.readexactly(int.from_bytes(head)))
            except (asyncio.IncompleteReadError, OSError):
                raise ProcessDied(await self._describe_exit()) from None
            match message:
                case LogWritten():
                    sink.log(attempt, message.data, message.stream)
                case ProgressReported():
                    attempt.progress = message.fraction
                    sink.report_progress(attempt)
                case HandlerReturned():
                    attempt.outputs = message.outputs
                    attempt.next = message.next
                    return EncodedResult(message.result)
                case OutcomeRequested():
                    raise _outcome(message)
                case HandlerFailed():
                    raise HandlerError(message.kind, message.message, message.trace, pointless=message.pointless)

    async def _watch_exit(self, worker_end: socket.socket) -> None:
        """Stop reading once the child has exited. Without this, a process forked by the handler could keep the child's
        end of the socket open, and the worker would wait forever. What the child sent before its exit is still read.
        """
        await self.process.wait()
        with suppress(OSError):
            worker_end.shutdown(socket.SHUT_RD)

    async def _describe_exit(self) -> str:
        code = await self.process.wait()
        if code < 0:
            with suppress(ValueError):
                return f"its process was killed by {signal.Signals(-code).name}"
        return f"its process exited with code {code}"

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()
        try:
            await asyncio.wait_for(self.process.wait(), EXIT_WAIT)
        except TimeoutError:
            self.kill()
            await self.process.wait()
        self._watch.cancel()


class Children:
    """A pool with one child process per concurrent job, started on demand and reused."""

    def __init__(self) -> None:
        self._idle: list[ChildProcess] = []
        self._all: set[ChildProcess] = set()

    async def run(self, attempt: Attempt, sink: AttemptSink) -> EncodedResult:
        """Run an attempt's handler in an idle or new child, as `ChildProcess.run` does."""
        attempt.on_interrupt = _ignore
        child = self._pop_idle() or await self._spawn()
        attempt.kill = child.kill
        attempt.on_interrupt = lambda: child.send(Interrupt(attempt.why, attempt.reason))
        if attempt.why:  # the attempt was interrupted while the child process started
            attempt.on_interrupt()
        reusable = False
        try:
            value = await child.run(attempt, sink)
            reusable = True
            return value
        except (Outcome, HandlerError):
            reusable = True
            raise
        finally:
            # This attempt object may outlive its job, while the child process already runs the next one. Interrupting
            # the attempt must not end that next job.
            attempt.kill = attempt.on_interrupt = None
            if reusable and not attempt.abandoned:
                self._idle.append(child)
            else:
                child.kill()
                self._all.discard(child)
                await child.close()

    def _pop_idle(self) -> ChildProcess | None:
        """Return an idle child that is alive; None if there is none. In a dead child the next job would fail."""
        while self._idle:
            child = self._idle.pop()
            if child.is_alive:
                return child
        return None

    async def _spawn(self) -> ChildProcess:
        worker_end, child_end = socket.socketpair()
        try:
            with child_end:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "backstay.job.worker.execution.child",
                    str(child_end.fileno()),
                    pass_fds=(child_end.fileno(),),
                    env=os.environ | {"PYTHONPATH": os.pathsep.join(part for part in sys.path if part)},
                )
            reader, writer = await asyncio.open_connection(sock=worker_end)
        except BaseException:  # also if cancelled: the child then reads end-of-file and exits
            worker_end.close()
            raise
        child = ChildProcess(process, reader, writer, worker_end)
        child.send(_boot())
        self._all.add(child)
        return child

    async def close(self) -> None:
        """End all children. Safe to call twice."""
        children, self._all, self._idle = list(self._all), set(), []
        await asyncio.gather(*(child.close() for child in children))


def _boot() -> Boot:
    """Return what a new interpreter needs to import this program's modules, as multiprocessing does."""
    data = spawn.get_preparation_data("backstay")
    return Boot(
        list(data.get("sys_path", [])),
        list(data.get("sys_argv", [])),
        str(data.get("dir", "")),
        str(data.get("init_main_from_name") or ""),
        str(data.get("init_main_from_path") or ""),
    )


def _module(name: str) -> str:
    """Return the name under which a child imports the module `name` of the worker's program. Only the main module has
    another name there.
    """
    return MAIN if name == "__main__" else name


def _ignore() -> None:
    pass


def _outcome(request: OutcomeRequested) -> Outcome:
    match request.kind:
        case "snooze":
            return Snooze(request.seconds, reason=request.reason)
        case "cancel":
            return Cancel(request.reason)
        case _:
            return Retry(after=None if request.seconds < 0 else request.seconds, reason=request.reason)
