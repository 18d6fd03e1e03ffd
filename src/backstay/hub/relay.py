"""Takes an engine's wakes to a hub that the engine knows nothing of, after each commit.

State in SQLite with hints over Redis is such a set-up. Waiters of this process are told directly; those of others over
the hub, from a thread of its own: the engine's writer must not wait for a hub that is away.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from backstay.engine.base import Carrier, Publish, Wake, WakesAfterCommit
from backstay.hub.base import Hub

#: Wakes that wait to be sent; more than this and the oldest are lost, as any hint may be.
QUEUE = 10_000
#: One trip takes at most this many.
BATCH = 1000
#: A hub that does not answer is given this long; then what waits is dropped and it has a pause.
PATIENCE, PAUSE = 1.0, 0.1


class Relay:
    """Between one engine and one hub. Closing twice is safe."""

    def __init__(
        self,
        engine: WakesAfterCommit,
        hub: Hub,
        carrier: Carrier,
        inbox: str,
        observe: Callable[..., None] = lambda *_, **__: None,
    ) -> None:
        self._engine = engine
        self._hub = hub
        self._carrier = carrier
        self._inbox = inbox
        self._observe = observe
        self._queue: deque[Wake] = deque(maxlen=QUEUE)
        self._bell = threading.Event()
        self._closed = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        engine.attach(inbox, self._deliver, self._send)

    def _deliver(self, wakes: Sequence[Wake]) -> None:
        for wake in wakes:
            self._hub.deliver(wake.inbox, wake.payload)

    def _send(self, wakes: Sequence[Wake]) -> None:
        with self._starting:
            if self._closed.is_set():
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="backstay-relay", daemon=True)
                self._thread.start()
        self._queue.extend(wakes)
        self._bell.set()

    def _run(self) -> None:
        while True:
            self._bell.wait()
            self._bell.clear()
            while batch := self._take():
                answers = self._carrier.apply_many([Publish(w.inbox, w.payload) for w in batch], PATIENCE)
                if lost := sum(isinstance(answer, BaseException) for answer in answers):
                    self._observe("lost", count=lost + len(self._queue))
                    self._queue.clear()  # too old to be of use by the time the hub is back
                    self._closed.wait(PAUSE)
            if self._closed.is_set():
                return

    def _take(self) -> list[Wake]:
        return [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]

    def close(self) -> None:
        """Send what waits, then end."""
        self._engine.detach(self._inbox)
        with self._starting:
            self._closed.set()
            thread, self._thread = self._thread, None
        self._bell.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
