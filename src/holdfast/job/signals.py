"""SIGTERM and Ctrl-C while a worker runs: the first drains, the second stops now."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from typing import Any

HEARD = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """Heard between `listen` and `close`, where nobody else has taken them. Both are safe twice."""

    def __init__(self, heard: Callable[[str], None]) -> None:
        self._heard = heard
        self._before: dict[signal.Signals, Any] = {}
        self._loop = asyncio.get_running_loop()

    def listen(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in HEARD:
            before = signal.getsignal(number)
            if number not in self._before and _is_free(before):
                self._before[number] = before
                self._loop.add_signal_handler(number, self._heard, number.name)

    def close(self) -> None:
        before, self._before = self._before, {}
        for number, handler in before.items():
            self._loop.remove_signal_handler(number)
            signal.signal(number, handler)


def _is_free(handler: Any) -> bool:
    """Whether nobody of the program's own hears it: asyncio.run() does, and would cancel us without draining."""
    runner = getattr(getattr(handler, "func", None), "__self__", None)
    return handler in (signal.SIG_DFL, signal.default_int_handler) or isinstance(runner, asyncio.Runner)
