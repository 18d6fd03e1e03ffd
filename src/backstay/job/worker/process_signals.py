"""Signal handling of a worker: the first SIGTERM or SIGINT drains it, the second stops it at once.

Usually the event loop handles a signal. It cannot while a job's handler blocks the loop. But even then Python runs its
own signal handler in the main thread, between two bytecodes of the job's handler or when the signal interrupts a system
call. An exception that is raised there ends the job's handler.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from backstay.engine.base import steady

if TYPE_CHECKING:
    from backstay.job.worker.execution.attempt import Attempt

HANDLED = (signal.SIGTERM, signal.SIGINT)


class ProcessSignals:
    """Handles SIGTERM and SIGINT between `install` and `close`, unless the program has handlers of its own for them.
    Both methods are safe to call twice.
    """

    def __init__(self, on_signal: Callable[[str], None]) -> None:
        self._on_signal = on_signal
        self._before: dict[signal.Signals, Any] = {}
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        #: When (monotonic clock) each signal came, even if the event loop has not handled it yet.
        self.received: list[float] = []
        #: The name of the first signal.
        self.name = ""
        self._target: Attempt | None = None
        #: How many signals that `interrupt_blocking` sent have not reached the event loop yet. When the loop gets them,
        #: it must not take them for requests to stop the worker.
        self._own_signals = 0

    def install(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in HANDLED:
            before = signal.getsignal(number)
            if number not in self._before and _is_free(before):
                self._before[number] = before
                self._loop.add_signal_handler(number, self._on_loop, number.name)
                # Wraps the loop's own handler, and interrupts a job's handler that blocks in a system call.
                signal.signal(number, partial(self._in_main_thread, signal.getsignal(number)))

    def close(self) -> None:
        before, self._before = self._before, {}
        for number, handler in before.items():
            self._loop.remove_signal_handler(number)
            signal.signal(number, handler)

    def interrupt_blocking(self, target: Attempt) -> None:
        """Raise CancelledError inside a job's handler that blocks the event loop, to end the handler. Call it from
        another thread.
        """
        if self._before:
            self._target = target
            self._own_signals += 1
            signal.pthread_kill(self._thread, next(iter(self._before)))

    def _in_main_thread(self, loop_handler: Any, number: int, frame: Any) -> None:
        """Python's signal handler: runs in the main thread, between two bytecodes."""
        if callable(loop_handler):
            loop_handler(number, frame)
        target, self._target = self._target, None
        if target is None:
            self.received.append(steady())
            self.name = self.name or signal.Signals(number).name
        elif target.task is not None and asyncio.current_task(self._loop) is target.task:
            target.why, target.reason = "stopping", "the worker is stopping"
            raise asyncio.CancelledError

    def _on_loop(self, name: str) -> None:
        if self._own_signals:
            self._own_signals -= 1
        else:
            self._on_signal(name)


def _is_free(handler: Any) -> bool:
    """Whether the program has installed no signal handler of its own. The handler of asyncio.run() does not count: it
    would cancel the worker without draining it.
    """
    runner = getattr(getattr(handler, "func", None), "__self__", None)
    return handler in (signal.SIG_DFL, signal.default_int_handler) or isinstance(runner, asyncio.Runner)
