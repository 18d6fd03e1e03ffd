"""The thread of an SQL engine that commits all queued operations in one transaction (group commit)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from backstay.engine.base import Op
from backstay.engine.work_inbox import WorkInbox
from backstay.errors import Closed, EngineError, EngineUnavailable

log = logging.getLogger("backstay.engine")

#: One transaction takes at most this many operations, which bounds the latency behind a large backlog.
MAX_BATCH = 1000
#: Seconds after which an idle thread runs its `tick`, which deletes expired rows.
IDLE_TICK = 60.0
#: Seconds until a deferred operation is retried, if no new operation arrives before.
RETRY_DELAY = 0.001
#: Instead of a result: retry the operation with the next batch.
DEFERRED = object()

#: Instead of a result: another thread delivers the result.
DELEGATED = object()

#: Receives results with their index in the caller's batch. Called several times if some results come later.
OnResults = Callable[[Sequence[tuple[int, Any]]], None]


class QueuedOp:
    """An operation with its index in the caller's batch and the callback for its result. `skips` counts how often it
    was deferred; `waiting_since` (steady clock) is when a blocking wait for its name began.
    """

    __slots__ = ("index", "on_results", "op", "skips", "waiting_since")

    def __init__(self, op: Op[Any], index: int, on_results: OnResults) -> None:
        self.op = op
        self.index = index
        self.on_results = on_results
        self.skips = 0
        self.waiting_since = 0.0


class CommitThread:
    """Accepts batches from any thread and commits them on its own. `commit` runs the queued operations; `tick` follows
    every commit and runs once per idle minute; `end` runs last. An exception in `commit` or `tick` does not end the
    thread: all callers depend on it.
    """

    def __init__(
        self,
        name: str,
        *,
        commit: Callable[[list[QueuedOp]], list[Any]],
        tick: Callable[[], None] = lambda: None,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        self._name = name
        self._commit = commit
        self._tick = tick
        self._end = end
        self._inbox: WorkInbox[list[QueuedOp]] = WorkInbox()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._stopped = False

    def put(self, ops: Sequence[Op[Any]], on_results: OnResults) -> None:
        """Queue a batch; the thread calls `on_results` with results or exceptions."""
        self.put_items([QueuedOp(op, index, on_results) for index, op in enumerate(ops)])

    def put_items(self, items: list[QueuedOp]) -> None:
        why: EngineError | Closed
        with self._starting:
            if self._stopped:
                why = Closed("this engine is closed")
            else:
                try:
                    if self._thread is None:
                        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                        thread.start()
                        self._thread = thread  # set after a successful start, so the next caller retries a failed one
                except RuntimeError as error:
                    why = EngineUnavailable(f"no thread could be started for {self._name}: {error}")
                else:
                    self._inbox.put(items)
                    return
        deliver_results(items, [type(why)(str(why)) for _ in items])

    def stop(self) -> None:
        """Finish the queued operations, then end the thread. Safe to call twice."""
        with self._starting:
            self._stopped = True
            thread, self._thread = self._thread, None
            self._inbox.notify()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        deferred: list[QueuedOp] = []
        try:
            while (items := self._collect(deferred)) is not None:
                deferred = deliver_results(items, self._results(items) if items else [])
                try:
                    self._tick()
                except Exception:
                    log.exception("housekeeping of %s failed", self._name)
        finally:
            self._end()

    def _results(self, items: list[QueuedOp]) -> list[Any]:
        try:
            return self._commit(items)
        except Exception as error:  # noqa: BLE001 - a bug: every caller gets it, and the thread must survive it
            return [error for _ in items]

    def _collect(self, items: list[QueuedOp]) -> list[QueuedOp] | None:
        """Return the deferred operations and all queued ones, up to `MAX_BATCH`. None: the thread is to end."""
        if items or not self._stopped:
            self._inbox.wait(RETRY_DELAY if items else IDLE_TICK)
        stopped = self._stopped  # read before the inbox: nothing is queued once it is set
        while len(items) < MAX_BATCH and (more := self._inbox.take()) is not None:
            items += more
        return None if stopped and not items else items


def deliver_results(items: list[QueuedOp], results: list[Any]) -> list[QueuedOp]:
    """Deliver the results, with one call per batch, and return the deferred operations."""
    deferred: list[QueuedOp] = []
    by_callback: dict[OnResults, list[tuple[int, Any]]] = {}
    for item, result in zip(items, results, strict=True):
        if result is DEFERRED:
            item.skips += 1
            deferred.append(item)
        elif result is DELEGATED:
            continue
        elif item.on_results in by_callback:
            by_callback[item.on_results].append((item.index, result))
        else:
            by_callback[item.on_results] = [(item.index, result)]
    for on_results, indexed in by_callback.items():
        on_results(indexed)
    return deferred
