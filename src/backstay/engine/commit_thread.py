"""The thread of an SQL engine that commits all queued operations in one transaction (group commit)."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from backstay.engine.base import Apply, Op
from backstay.errors import Closed, EngineError, EngineUnavailable

log = logging.getLogger("backstay.engine")

T = TypeVar("T")

#: One transaction takes at most this many operations, which bounds the latency behind a large backlog.
MAX_BATCH = 1000
#: Seconds that a transaction may run operations; it then commits, and the next one takes the rest. While a transaction
#: runs, other processes cannot write (SQLite) or cannot use its names (PostgreSQL), and no lease is renewed.
MAX_SECONDS = 0.05
#: Seconds after which an idle thread runs its `tick`.
IDLE_TICK = 60.0
#: Seconds until a deferred operation is retried, if no new operation arrives before.
RETRY_DELAY = 0.001
#: `commit` returns this instead of an operation's result: the operation did not run, and the next batch includes it.
DEFERRED = object()

#: `commit` returns this instead of an operation's result: another thread runs the operation and delivers its result.
DELEGATED = object()

#: `commit` returns this instead of an operation's result: the transaction's `MAX_SECONDS` ended before the operation
#: began. The next batch begins with it.
UNSTARTED = object()

#: Receives results with their index in the caller's batch. Called several times if some results come later.
OnResults = Callable[[Sequence[tuple[int, Any]]], None]


class WorkInbox(Generic[T]):
    """A queue for one consumer thread. Producers must serialise `put` and `notify` with a lock of their own.

    Not `queue.SimpleQueue`: before Python 3.13 its `get(timeout)` recomputes the remaining time. If a busy host paused
    the thread for longer than the time-out, the remainder is negative, and `get` then waits forever.
    """

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        #: A lock that is used as an event: `notify` releases it, and `wait` acquires it. So it is free while a
        #: notification has not been waited for yet.
        self._flag = threading.Lock()
        self._flag.acquire()

    def put(self, item: T) -> None:
        self._items.append(item)
        self.notify()

    def take(self) -> T | None:
        """Remove and return the oldest item; return None if the queue is empty."""
        try:
            return self._items.popleft()
        except IndexError:
            return None

    def notify(self) -> None:
        # If the lock is already free, an earlier notification is pending: the consumer has not woken yet, and when it
        # does, it reads all items.
        if self._flag.locked():
            self._flag.release()

    def wait(self, timeout: float) -> None:
        """Wait for a notification or the time-out. May return although the queue is empty: the notification can belong
        to an item that was already taken.
        """
        if not self._items:
            self._flag.acquire(timeout=timeout)


class QueuedOp:
    """A queued operation, its index in the caller's batch, and the callback for its result."""

    __slots__ = ("index", "is_urgent", "on_results", "op", "skips", "waiting_since")

    def __init__(self, op: Op[Any], index: int, on_results: OnResults, *, urgent: bool = False) -> None:
        self.op = op
        self.index = index
        self.on_results = on_results
        #: Whether the operation runs before the others that are queued. Lease renewals do: a renewal that waits behind
        #: thousands of acquires is late, and its lease is lost.
        self.is_urgent = urgent or (type(op) is Apply and op.command.renews_lease)
        #: How often the operation was deferred, because another transaction had locked the row of its name.
        self.skips = 0
        #: When (steady clock) the operation was moved to the thread that waits for locked rows; 0 if it was not.
        self.waiting_since = 0.0


class CommitThread:
    """A thread that runs the operations that other threads queue. It calls `commit` with the queued operations, urgent
    ones first, and at most `MAX_BATCH` of the others at a time. It calls `tick` after each commit, and when the time
    that `tick` returned (in seconds) has passed without one; and `end` when it stops. An exception in `commit` or
    `tick` does not end the thread, because all callers depend on it.
    """

    def __init__(
        self,
        name: str,
        *,
        commit: Callable[[list[QueuedOp]], list[Any]],
        tick: Callable[[], float] = lambda: IDLE_TICK,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        self._name = name
        self._commit = commit
        self._tick = tick
        self._end = end
        self._inbox: WorkInbox[list[QueuedOp]] = WorkInbox()
        #: Operations that were taken from the inbox, but are not in a batch yet.
        self._urgent: list[QueuedOp] = []
        self._backlog: deque[QueuedOp] = deque()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._stopped = False

    def put(self, ops: Sequence[Op[Any]], on_results: OnResults, *, urgent: bool = False) -> None:
        """Queue operations; the thread calls `on_results` with results or exceptions."""
        self.put_items([QueuedOp(op, index, on_results, urgent=urgent) for index, op in enumerate(ops)])

    def put_items(self, items: list[QueuedOp]) -> None:
        why: EngineError | Closed
        with self._starting:
            if self._stopped:
                why = Closed("this engine is closed")
            else:
                try:
                    if self._thread is None:
                        self._start()
                except RuntimeError as error:
                    why = EngineUnavailable(f"no thread could be started for {self._name}: {error}")
                else:
                    self._inbox.put(items)
                    return
        deliver_results(items, [type(why)(str(why)) for _ in items])

    def _start(self) -> None:
        """Start the thread. If that fails or is interrupted (Ctrl-C), the next caller tries again. A thread that did
        start although its `start` was interrupted ends by itself, since it is not `_thread`.
        """
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self._thread = None
            raise

    def stop(self) -> None:
        """Finish the queued operations, then end the thread. Safe to call twice."""
        with self._starting:
            self._stopped = True
            thread = self._thread
            self._inbox.notify()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        with self._starting:
            if self._thread is not threading.current_thread():
                return
        again: list[QueuedOp] = []
        pause = IDLE_TICK
        try:
            while (items := self._collect(again, pause)) is not None:
                results = self._results(items) if items else []
                again = deliver_results(items, results)
                pause = IDLE_TICK
                try:
                    pause = self._tick()
                except Exception:
                    log.exception("housekeeping of %s failed", self._name)
                if again:
                    pause = 0.0 if any(result is UNSTARTED for result in results) else RETRY_DELAY
        finally:
            self._end()

    def _results(self, items: list[QueuedOp]) -> list[Any]:
        try:
            return self._commit(items)
        except Exception as error:  # noqa: BLE001 - a bug: every caller gets the error, and the thread survives
            return [error for _ in items]

    def _collect(self, again: list[QueuedOp], pause: float) -> list[QueuedOp] | None:
        """Return the operations of the next batch: the urgent ones, those of the last batch that must run `again`, and
        then others, in the order of their arrival, up to `MAX_BATCH`. If nothing is queued, waits up to `pause`
        seconds. Returns None if the thread must end.
        """
        if not self._backlog and pause and (again or not self._stopped):
            self._inbox.wait(pause)
        stopped = self._stopped  # read before the inbox: once it is True, no operation is queued any more
        while (items := self._inbox.take()) is not None:
            for item in items:
                (self._urgent if item.is_urgent else self._backlog).append(item)
        batch, self._urgent = self._urgent, []
        batch += again
        while self._backlog and len(batch) < MAX_BATCH:
            batch.append(self._backlog.popleft())
        return None if stopped and not batch else batch


def deliver_results(items: list[QueuedOp], results: list[Any]) -> list[QueuedOp]:
    """Pass each result to its operation's callback, and return the operations that must run again: their result is
    DEFERRED or UNSTARTED. The results of one caller's batch have the same callback and are passed in one call.
    """
    again: list[QueuedOp] = []
    by_callback: dict[OnResults, list[tuple[int, Any]]] = {}
    for item, result in zip(items, results, strict=True):
        if result is DEFERRED:
            item.skips += 1
            again.append(item)
        elif result is UNSTARTED:
            again.append(item)
        elif result is DELEGATED:
            continue
        elif item.on_results in by_callback:
            by_callback[item.on_results].append((item.index, result))
        else:
            by_callback[item.on_results] = [(item.index, result)]
    for on_results, indexed in by_callback.items():
        on_results(indexed)
    return again
