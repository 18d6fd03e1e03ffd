"""Call each subscriber on its own thread, so that a slow callback delays no other subscriber."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from backstay.hub.multiplexer import MISSED, log, reraise_interrupt

#: The largest number of messages that wait for a slow subscriber. When one more arrives, all of them are dropped, and
#: the subscriber gets MISSED (None) instead: messages may have been lost.
MAX_QUEUED = 1000
#: Seconds after which an idle thread ends; the next message starts another.
IDLE = 1.0


class Mailbox:
    """Calls one subscriber in order, one message at a time. Its thread exists only while there are messages. All
    methods except `_run` are thread-safe.
    """

    def __init__(self, callback: Callable[[str | None], None], ready: Callable[[], None]) -> None:
        self._callback = callback
        self._ready = ready
        self._calls: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._running = False
        self._closed = False

    def put_message(self, payload: str | None) -> None:
        self._put(lambda: self._callback(payload))

    def put_ready(self) -> None:
        self._put(self._ready)

    def _put(self, call: Callable[[], None]) -> None:
        with self._changed:
            if self._closed:
                return
            if len(self._calls) >= MAX_QUEUED:
                self._calls.clear()
                call = lambda: self._callback(MISSED)  # noqa: E731 - `call` is a lambda in the other cases, too
            self._calls.append(call)
            if not self._running:
                threading.Thread(target=self._run, name="backstay-mailbox", daemon=True).start()
                self._running = True  # set after a successful start, so the next message retries a failed one
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._calls:
                    if self._closed or not self._changed.wait(IDLE):
                        if self._calls:  # a message arrived at the moment of the time-out
                            continue
                        self._running = False
                        return
                call = self._calls.popleft()
            try:
                call()
            except BaseException as error:  # noqa: BLE001 - a subscriber's exception must not end its thread
                reraise_interrupt(error)
                log.exception("a subscriber failed")

    def close(self) -> None:
        """Drop queued messages; no callback starts afterwards. Safe to call twice."""
        with self._changed:
            self._closed = True
            self._calls.clear()
            self._changed.notify()
