"""A queue with a wake-up flag for one consumer thread.

Not `queue.SimpleQueue`: before Python 3.13 its `get(timeout)` computes the remaining time-out, and if a busy host has
suspended the thread for longer than that, the remainder is negative, which means "wait forever" there.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class WorkInbox(Generic[T]):
    """A queue for one consumer thread. Producers must serialise `put` and `notify` with a lock of their own."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        #: An event flag: the lock is free if `notify` was called since the consumer last waited.
        self._flag = threading.Lock()
        self._flag.acquire()

    def put(self, item: T) -> None:
        self._items.append(item)
        self.notify()

    def take(self) -> T | None:
        """Return the oldest item; None: the queue is empty."""
        try:
            return self._items.popleft()
        except IndexError:
            return None

    def notify(self) -> None:
        # If the flag is already set, the consumer reads the queue after this point, so it misses nothing.
        if self._flag.locked():
            self._flag.release()

    def wait(self, timeout: float) -> None:
        """Wait for a notification or the time-out. May return early for an item that was already taken."""
        if not self._items:
            self._flag.acquire(timeout=timeout)
