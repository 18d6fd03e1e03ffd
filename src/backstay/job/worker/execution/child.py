"""The main program of a worker's child process: runs handlers of jobs with `pool="process"`, one after another.

Started as `python -m backstay.job.worker.execution.child FD`. It exits when the worker's end of the socket closes.
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
from backstay.job.exchange import Claimed
from backstay.job.ids import lease_id
from backstay.job.model import NewJob
from backstay.job.worker.execution import child_protocol
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
    ToWorker,
    frame,
    read_to_child,
)
from backstay.job.worker.execution.outcome import NOT_RETRYABLE, describe_failure
from backstay.runtime.lease import BaseLease

FOREVER = float("inf")


class ChildAttempt:
    """An attempt as the child process knows it. The worker process renews its lease."""

    def __init__(self, job: Claimed, ttl: float) -> None:
        self.job = job
        self.ttl = ttl
        self.started = steady()
        #: The child process never ends the attempt because of its lease: the worker process watches the lease, and
        #: sends a message if it is lost.
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


class ChildMain:
    """Reads the worker's messages on a thread of its own and runs handlers on the main thread."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._runs: SimpleQueue[RunHandler] = SimpleQueue()
        self._sending = threading.Lock()
        self._attempt: ChildAttempt | None = None
        self._boot = Boot([], [], "")
        self._has_main = False

    def serve(self) -> None:
        threading.Thread(target=self._read, name="backstay-child", daemon=True).start()
        while True:
            self._send(self._run(self._runs.get()))

    def _read(self) -> None:
        try:
            while True:
                raw = self._read_exactly(int.from_bytes(self._read_exactly(HEAD)))
                match message := read_to_child(raw):
                    case Boot():
                        self._boot = message
                        spawn.prepare({"sys_path": message.path, "sys_argv": message.argv, "dir": message.directory})
                    case RunHandler():
                        self._runs.put(message)
                    case Interrupt():
                        if (attempt := self._attempt) is not None:
                            attempt.reason = message.reason
                            attempt.why = message.why
                            if attempt.lease is not None and message.why == "lost":
                                attempt.lease.lose(message.reason)
        finally:  # the worker has ended, so no outcome can be reported
            os._exit(0)

    def _read_exactly(self, length: int) -> bytes:
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

    def _run(self, run: RunHandler) -> ToWorker:
        attempt = self._attempt = ChildAttempt(run.job, run.ttl)
        try:
            if run.module == MAIN and not self._has_main:
                _import_main(self._boot)
                self._has_main = True
            definition = _find(run.module, run.name)
            args, kwargs = definition.decode_args(run.job.args)
            token = context.enter((attempt, self))
            try:
                value = definition.function(*args, **kwargs)
                if asyncio.iscoroutine(value):
                    value = asyncio.run(value)
            finally:
                context.leave(token)
            if isinstance(value, Outcome):
                raise value
            return HandlerReturned(definition.encode_result(value), attempt.outputs, attempt.next)
        except Outcome as outcome:
            return _outcome_message(outcome)
        except BaseException as error:  # noqa: BLE001 - sys.exit() ends the handler, not the child process
            failure = describe_failure(error, run.job.attempt)
            return HandlerFailed(failure.kind, failure.message, failure.trace, isinstance(error, NOT_RETRYABLE))
        finally:
            self._attempt = None

    # The methods of `AttemptSink`: they forward a handler's log lines and progress to the worker.

    def log(self, attempt: Any, data: str, stream: str) -> None:
        self._send(LogWritten(data, stream))

    def report_progress(self, attempt: Any) -> None:
        self._send(ProgressReported(attempt.progress))


def _outcome_message(outcome: Outcome) -> OutcomeRequested:
    match outcome:
        case Snooze():
            return OutcomeRequested("snooze", outcome.seconds, outcome.reason)
        case Cancel():
            return OutcomeRequested("cancel", 0.0, outcome.reason)
        case Retry():
            return OutcomeRequested("retry", -1.0 if outcome.after is None else outcome.after, outcome.reason)
        case _:
            return OutcomeRequested("retry", -1.0, str(outcome))


def _import_main(boot: Boot) -> None:
    """Import the program's main module as multiprocessing does. This runs its top-level code again, so it is done only
    for jobs that are defined in that module.
    """
    if boot.main_name:
        spawn.prepare({"init_main_from_name": boot.main_name})
    elif boot.main_path:
        spawn.prepare({"init_main_from_path": boot.main_path})


def _find(module: str, name: str) -> BaseJobType[Any, Any]:
    """Return the job type with the qualified name `name` in `module`. Raises ConfigError if there is none."""
    found: Any = sys.modules["__main__"] if module == "__main__" else importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, BaseJobType):
        raise ConfigError(
            f"{module}.{name} is not a job in a child process; pool='process' needs a function at the top level of its"
            " module"
        )
    return found  # pyright: ignore[reportUnknownVariableType] - of any type parameters


def main() -> None:
    # Ctrl-C and SIGTERM reach the whole process group, but the worker decides when this process ends: ignore them.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    child_protocol.in_child = True
    ChildMain(socket.socket(fileno=int(sys.argv[1]))).serve()


if __name__ == "__main__":
    main()
