"""Child processes for handlers that are asked to run in one: a handler that crashes takes its own process along.

Each runs one job at a time and is kept for the next. One that does not end in time is killed.
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
    Asked,
    Boot,
    Done,
    Failed,
    Interrupt,
    Progress,
    Run,
    Say,
    ToChild,
    frame,
    read_to_worker,
)
from backstay.job.worker.execution.outcome import Encoded, ProcessDied, Raised

if TYPE_CHECKING:
    from backstay.job.api.context import Desk
    from backstay.job.worker.execution.attempt import Attempt

#: How long closing waits for a child to notice, before it is killed.
GOODBYE = 2.0


class Child:
    """One process and the way to it."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        ours: socket.socket,
    ) -> None:
        self.process = process
        self._reader = reader
        self._writer = writer
        self._watch = asyncio.get_running_loop().create_task(self._until_its_end(ours))

    @property
    def is_there(self) -> bool:
        return self.process.returncode is None and not self._reader.at_eof()

    def send(self, message: ToChild) -> None:
        self._writer.write(frame(message))

    async def run(self, attempt: Attempt, desk: Desk) -> Encoded:
        function = attempt.definition.function
        name = getattr(function, "__qualname__", "")
        if "<" in name:
            raise ConfigError(f"{name} cannot be found by another process; pool='process' needs a top-level function")
        self.send(Run(_module(function.__module__), name, attempt.job, attempt.ttl))
        while True:
            try:
                head = await self._reader.readexactly(HEAD)
                message = read_to_worker(await self._reader.readexactly(int.from_bytes(head)))
            except (asyncio.IncompleteReadError, OSError):
                raise ProcessDied(await self._end()) from None
            match message:
                case Say():
                    desk.log(attempt, message.data, message.stream)
                case Progress():
                    attempt.progress = message.fraction
                    desk.progressed(attempt)
                case Done():
                    attempt.outputs = message.outputs
                    attempt.next = message.next
                    return Encoded(message.result)
                case Asked():
                    raise _outcome(message)
                case Failed():
                    raise Raised(message.kind, message.message, message.trace, pointless=message.pointless)

    async def _until_its_end(self, ours: socket.socket) -> None:
        """Processes that it forked may have the other end, too, and live on: what it said is read, then no more."""
        await self.process.wait()
        with suppress(OSError):
            ours.shutdown(socket.SHUT_RD)

    async def _end(self) -> str:
        code = await self.process.wait()
        if code < 0:
            with suppress(ValueError):
                return f"the process that ran it was ended by {signal.Signals(-code).name}"
        return f"the process that ran it ended with exit code {code}"

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()
        try:
            await asyncio.wait_for(self.process.wait(), GOODBYE)
        except TimeoutError:
            self.kill()
            await self.process.wait()
        self._watch.cancel()


class Children:
    """A pool of them: as many as run jobs at a time."""

    def __init__(self) -> None:
        self._idle: list[Child] = []
        self._all: set[Child] = set()

    async def run(self, attempt: Attempt, desk: Desk) -> Encoded:
        """Run an attempt's handler in a child, to its end."""
        attempt.interrupted = _nothing
        child = self._waiting() or await self._new()
        attempt.kill = child.kill
        attempt.interrupted = lambda: child.send(Interrupt(attempt.why, attempt.reason))
        if attempt.why:  # while the process started
            attempt.interrupted()
        fine = False
        try:
            value = await child.run(attempt, desk)
            fine = True
            return value
        except (Outcome, Raised):
            fine = True
            raise
        finally:
            # The handler has ended and its attempt has not: what is said to that one is not for the child's next job.
            attempt.kill = attempt.interrupted = None
            if fine and not attempt.abandoned:
                self._idle.append(child)
            else:
                child.kill()
                self._all.discard(child)
                await child.close()

    def _waiting(self) -> Child | None:
        """One that has nothing to do. Whatever ended it meanwhile is not the next job's fault."""
        while self._idle:
            child = self._idle.pop()
            if child.is_there:
                return child
        return None

    async def _new(self) -> Child:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "backstay.job.worker.execution.child",
                    str(theirs.fileno()),
                    pass_fds=(theirs.fileno(),),
                    env=os.environ | {"PYTHONPATH": os.pathsep.join(part for part in sys.path if part)},
                )
            reader, writer = await asyncio.open_connection(sock=ours)
        except BaseException:  # cancelled meanwhile: the child sees that nobody is there, and ends
            ours.close()
            raise
        child = Child(process, reader, writer, ours)
        child.send(_boot())
        self._all.add(child)
        return child

    async def close(self) -> None:
        """End them all. Safe twice."""
        children, self._all, self._idle = list(self._all), set(), []
        await asyncio.gather(*(child.close() for child in children))


def _boot() -> Boot:
    """What a new interpreter needs in order to find our modules: as multiprocessing does it."""
    data = spawn.get_preparation_data("backstay")
    return Boot(
        list(data.get("sys_path", [])),
        list(data.get("sys_argv", [])),
        str(data.get("dir", "")),
        str(data.get("init_main_from_name") or ""),
        str(data.get("init_main_from_path") or ""),
    )


def _module(name: str) -> str:
    """Where a child finds it."""
    return MAIN if name == "__main__" else name


def _nothing() -> None:
    pass


def _outcome(asked: Asked) -> Outcome:
    match asked.kind:
        case "snooze":
            return Snooze(asked.seconds, reason=asked.reason)
        case "cancel":
            return Cancel(asked.reason)
        case _:
            return Retry(after=None if asked.seconds < 0 else asked.seconds, reason=asked.reason)
