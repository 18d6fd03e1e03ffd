"""SIGTERM and Ctrl-C while a worker runs: the first drains, the second stops now.

The loop hears of them, unless a handler blocks it. Python itself does as soon as the next line of that handler runs, or
whatever it waits for is interrupted: so that is where such a handler can be ended.
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

HEARD = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """Heard between `listen` and `close`, where nobody else has taken them. Both are safe twice."""

    def __init__(self, heard: Callable[[str], None]) -> None:
        self._heard = heard
        self._before: dict[signal.Signals, Any] = {}
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        #: When (steady) each came, whether the loop has heard of it or not, and the first one's name.
        self.came: list[float] = []
        self.name = ""
        self._guilty: Attempt | None = None
        #: How many of those that the loop will hear of were sent by ourselves.
        self._own = 0

    def listen(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in HEARD:
            before = signal.getsignal(number)
            if number not in self._before and _is_free(before):
                self._before[number] = before
                self._loop.add_signal_handler(number, self._on_loop, number.name)
                # Below what the loop has set; a handler that waits in a system call is interrupted, too.
                signal.signal(number, partial(self._at_once, signal.getsignal(number)))

    def close(self) -> None:
        before, self._before = self._before, {}
        for number, handler in before.items():
            self._loop.remove_signal_handler(number)
            signal.signal(number, handler)

    def end(self, guilty: Attempt) -> None:
        """End a handler that blocks the loop, from another thread: as if it were cancelled where it stands."""
        if self._before:
            self._guilty = guilty
            self._own += 1
            signal.pthread_kill(self._thread, next(iter(self._before)))

    def _at_once(self, loops_own: Any, number: int, frame: Any) -> None:
        """In the main thread, wherever it is."""
        if callable(loops_own):
            loops_own(number, frame)
        guilty, self._guilty = self._guilty, None
        if guilty is None:
            self.came.append(steady())
            self.name = self.name or signal.Signals(number).name
        elif guilty.task is not None and asyncio.current_task(self._loop) is guilty.task:
            guilty.why, guilty.reason = "stopping", "its worker stops"
            raise asyncio.CancelledError

    def _on_loop(self, name: str) -> None:
        if self._own:
            self._own -= 1
        else:
            self._heard(name)


def _is_free(handler: Any) -> bool:
    """Whether nobody of the program's own hears it: asyncio.run() does, and would cancel us without draining."""
    runner = getattr(getattr(handler, "func", None), "__self__", None)
    return handler in (signal.SIG_DFL, signal.default_int_handler) or isinstance(runner, asyncio.Runner)
