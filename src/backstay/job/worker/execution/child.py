"""A child process of a worker: runs one handler after another, for definitions with `pool="process"`.

Started as `python -m backstay.job.worker.execution.child FD`. It ends when the worker's end of the socket closes.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import socket
import sys
import threading
from multiprocessing import spawn
from queue import SimpleQueue
from typing import Any

from backstay.engine.base import steady
from backstay.errors import ConfigError, JobCancelled, JobTimeout, LeaseLost
from backstay.job.api import context
from backstay.job.api.context import JobContext
from backstay.job.api.definition import BaseJobType
from backstay.job.api.retry import Cancel, Outcome, Retry, Snooze
from backstay.job.ids import lease_id
from backstay.job.model import Claimed, NewJob
from backstay.job.worker.execution import child_protocol
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
    ToWorker,
    frame,
    read_to_child,
)
from backstay.job.worker.execution.outcome import POINTLESS, failure
from backstay.runtime.lease import BaseLease

FOREVER = float("inf")


class Hands:
    """The handler's side of an attempt whose lease the worker keeps."""

    def __init__(self, job: Claimed, ttl: float) -> None:
        self.job = job
        self.ttl = ttl
        self.started = steady()
        #: The worker says when it is over.
        self.deadline = FOREVER
        self.why = ""
        self.reason = ""
        self.progress = -1.0
        self.next: NewJob | None = None
        self.outputs: dict[str, str] | None = None
        self.context: JobContext | None = None
        self.lease: BaseLease | None = None

    def check(self) -> None:
        if self.why == "timeout":
            raise JobTimeout(job_id=self.job.id, type=self.job.type, timeout=steady() - self.started)
        if self.why in {"cancelled", "stopping"}:
            raise JobCancelled(job_id=self.job.id, type=self.job.type, reason=self.reason)
        if self.why:
            fence = self.job.fence
            raise LeaseLost(name=self.job.id, lock_id=lease_id(self.job.id, fence), fence=fence, reason=self.reason)


class Child:
    """Reads on a thread, runs handlers on the main one."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._runs: SimpleQueue[Run] = SimpleQueue()
        self._sending = threading.Lock()
        self._hands: Hands | None = None
        self._boot = Boot([], [], "")
        self._has_main = False

    def serve(self) -> None:
        threading.Thread(target=self._read, name="backstay-child", daemon=True).start()
        while True:
            self._send(self._run(self._runs.get()))

    def _read(self) -> None:
        try:
            while True:
                raw = self._exactly(int.from_bytes(self._exactly(HEAD)))
                match message := read_to_child(raw):
                    case Boot():
                        self._boot = message
                        spawn.prepare({"sys_path": message.path, "sys_argv": message.argv, "dir": message.directory})
                    case Run():
                        self._runs.put(message)
                    case Interrupt():
                        if (hands := self._hands) is not None:
                            hands.reason = message.reason
                            hands.why = message.why
                            if hands.lease is not None and message.why == "lost":
                                hands.lease.lose(message.reason)
        finally:  # the worker is gone: whatever runs here counts no more
            os._exit(0)

    def _exactly(self, length: int) -> bytes:
        parts: list[bytes] = []
        while length:
            part = self._connection.recv(min(length, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            length -= len(part)
        return b"".join(parts)

    def _send(self, message: ToWorker) -> None:
        with self._sending:
            self._connection.sendall(frame(message))

    def _run(self, run: Run) -> ToWorker:
        hands = self._hands = Hands(run.job, run.ttl)
        try:
            if run.module == MAIN and not self._has_main:
                _import_main(self._boot)
                self._has_main = True
            definition = _find(run.module, run.name)
            args, kwargs = definition.decode_args(run.job.args)
            token = context.enter((hands, self))
            try:
                value = definition.function(*args, **kwargs)
                if asyncio.iscoroutine(value):
                    value = asyncio.run(value)
            finally:
                context.leave(token)
            if isinstance(value, Outcome):
                raise value
            return Done(definition.encode_result(value), hands.outputs, hands.next)
        except Outcome as outcome:
            return _asked(outcome)
        except BaseException as error:  # noqa: BLE001 - sys.exit() ends the handler, not the process
            said = failure(error, run.job.attempt)
            return Failed(said.kind, said.message, said.trace, isinstance(error, POINTLESS))
        finally:
            self._hands = None

    # What `current_job()` says goes to the worker.

    def log(self, hands: Any, data: str, stream: str) -> None:
        self._send(Say(data, stream))

    def progressed(self, hands: Any) -> None:
        self._send(Progress(hands.progress))


def _asked(outcome: Outcome) -> Asked:
    match outcome:
        case Snooze():
            return Asked("snooze", outcome.seconds, outcome.reason)
        case Cancel():
            return Asked("cancel", 0.0, outcome.reason)
        case Retry():
            return Asked("retry", -1.0 if outcome.after is None else outcome.after, outcome.reason)
        case _:
            return Asked("retry", -1.0, str(outcome))


def _import_main(boot: Boot) -> None:
    """The program itself, as multiprocessing does it. Only for jobs that lie in it: all that stands at its top runs
    once more.
    """
    if boot.main_name:
        spawn.prepare({"init_main_from_name": boot.main_name})
    elif boot.main_path:
        spawn.prepare({"init_main_from_path": boot.main_path})


def _find(module: str, name: str) -> BaseJobType[Any, Any]:
    """The definition that lies at `name` in `module`."""
    found: Any = sys.modules["__main__"] if module == "__main__" else importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, BaseJobType):
        raise ConfigError(
            f"{module}.{name} is not a job in a child process; pool='process' needs a function at the top of its module"
        )
    return found  # pyright: ignore[reportUnknownVariableType] - whatever its types


def main() -> None:
    # The worker decides when this process ends: Ctrl-C and SIGTERM reach its whole group.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    child_protocol.in_child = True
    Child(socket.socket(fileno=int(sys.argv[1]))).serve()


if __name__ == "__main__":
    main()
