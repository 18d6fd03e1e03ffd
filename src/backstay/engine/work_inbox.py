"""What waits for a thread, and a bell that calls it.

Not `queue.SimpleQueue`: before Python 3.13 its `get(timeout)` works out what is left of the time-out, and where a busy
machine has let the thread stand still for longer than that, what is left is negative, which means for ever there.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """Those who put and ring take turns, by a lock of their own; one thread waits and takes."""

    def __init__(self) -> None:
        self._things: deque[T] = deque()
        #: Free: it has been rung since the thread last waited for it.
        self._bell = threading.Lock()
        self._bell.acquire()

    def put(self, thing: T) -> None:
        self._things.append(thing)
        self.ring()

    def take(self) -> T | None:
        """What came first. None: there is nothing."""
        try:
            return self._things.popleft()
        except IndexError:
            return None

    def ring(self) -> None:
        # Where it rings already, whoever it wakes will look after this: nothing that was put before is overlooked.
        if self._bell.locked():
            self._bell.release()

    def wait(self, timeout: float) -> None:
        """Until it is rung, or the time is over. Returns early where it was rung for something that is taken."""
        if not self._things:
            self._bell.acquire(timeout=timeout)
