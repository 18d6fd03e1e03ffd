"""Forward an engine's wakes (hints for waiters) to a hub on another server, for example from SQLite to Redis.

This happens after each commit. Waiters of this process are notified directly. Waiters of other processes are notified
through the hub, by a separate thread, because the engine's commit thread must not wait for an unreachable hub.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from backstay.engine.base import OperationRunner, Publish, Wake, WakesAfterCommit
from backstay.hub.base import Hub

#: The largest number of queued wakes. If there are more, the oldest are dropped: any hint may be lost.
QUEUE = 10_000
#: The largest number of wakes in one round trip.
BATCH = 1000
#: PATIENCE: seconds to wait for the reply of the hub's server. PAUSE: seconds to pause after a failure; all queued
#: wakes are then dropped, because any hint may be lost.
PATIENCE, PAUSE = 1.0, 0.1


class Relay:
    """Forwards wakes from one engine to one hub. Closing twice is safe."""

    def __init__(
        self,
        engine: WakesAfterCommit,
        hub: Hub,
        runner: OperationRunner,
        inbox: str,
        observe: Callable[..., None] = lambda *_, **__: None,
    ) -> None:
        self._engine = engine
        self._hub = hub
        self._runner = runner
        self._inbox = inbox
        self._observe = observe
        self._queue: deque[Wake] = deque(maxlen=QUEUE)
        self._wake_up = threading.Event()
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
        self._wake_up.set()

    def _run(self) -> None:
        while True:
            self._wake_up.wait()
            self._wake_up.clear()
            while batch := self._take():
                results = self._runner.apply_many([Publish(w.inbox, w.payload) for w in batch], PATIENCE)
                if lost := sum(isinstance(result, BaseException) for result in results):
                    self._observe("lost", count=lost + len(self._queue))
                    self._queue.clear()  # the waiters will have rechecked before the hub is back
                    self._closed.wait(PAUSE)
            if self._closed.is_set():
                return

    def _take(self) -> list[Wake]:
        return [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]

    def close(self) -> None:
        """Stop forwarding: send the queued wakes, then end the thread."""
        self._engine.detach(self._inbox)
        with self._starting:
            self._closed.set()
            thread, self._thread = self._thread, None
        self._wake_up.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
