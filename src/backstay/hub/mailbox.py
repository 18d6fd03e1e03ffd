"""A subscriber's own thread: whatever it does with a message holds up nobody but itself."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from backstay.hub.contain import contain
from backstay.hub.multiplexer import MISSED, log

#: Messages that wait for a subscriber which is busy; then they go, and it is told that it missed some.
MOST = 1000
#: A thread that has had nothing to do for this long ends; the next message starts another.
IDLE = 1.0


class Mailbox:
    """Calls one subscriber, in order, never twice at a time. Its thread lives only while there is something to do."""

    def __init__(self, callback: Callable[[str | None], None], ready: Callable[[], None]) -> None:
        self._callback = callback
        self._ready = ready
        self._calls: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._running = False
        self._closed = False

    def message(self, payload: str | None) -> None:
        self._put(lambda: self._callback(payload))

    def ready(self) -> None:
        self._put(self._ready)

    def _put(self, call: Callable[[], None]) -> None:
        with self._changed:
            if self._closed:
                return
            if len(self._calls) >= MOST:
                self._calls.clear()
                call = lambda: self._callback(MISSED)  # noqa: E731 - the same shape as the others
            self._calls.append(call)
            if not self._running:
                threading.Thread(target=self._run, name="backstay-mailbox", daemon=True).start()
                self._running = True  # only now: where no thread could be started, the next message tries again
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._calls:
                    if self._closed or not self._changed.wait(IDLE):
                        if self._calls:  # it came in the last moment
                            continue
                        self._running = False
                        return
                call = self._calls.popleft()
            try:
                call()
            except BaseException as error:  # noqa: BLE001 - whatever a subscriber raises is its own trouble
                contain(error)
                log.exception("a subscriber failed")

    def close(self) -> None:
        """No call begins after this. Safe twice."""
        with self._changed:
            self._closed = True
            self._calls.clear()
            self._changed.notify()
