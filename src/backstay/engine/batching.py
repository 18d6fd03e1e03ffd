"""The base class of the SQL engines. Event loops and threads queue operations; one commit thread takes all that have
collected and runs them as a batch.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

from backstay.engine.base import Apply, Op, Ping, Wake, single_result
from backstay.engine.commit_thread import CommitThread, OnResults
from backstay.engine.loop_batcher import LoopBatcher, Submitted, resolve_futures
from backstay.errors import Closed, OutcomeUnknown

log = logging.getLogger("backstay.engine")

T = TypeVar("T")


class BatchingEngine(ABC):
    """Runs one batch of operations after another, each in one transaction. Hints are sent after the commit."""

    namespace: str
    #: A SQL database does not delete rows when they expire: they stay until a sweep. So a body (a large value stored
    #: beside a record) that is read without its record may be expired.
    expires_bodies = False
    exposes_redis_keys = False
    is_clustered = False

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._closed = False
        self._batcher = LoopBatcher(self._flush)
        self._hubs: dict[str, Callable[[Sequence[Wake]], None]] = {}
        #: The callbacks `forward` of the attached hubs, by the hub's inbox. They send hints to other processes; while
        #: there is one, the engine itself sends none.
        self._forwarders: dict[str, Callable[[Sequence[Wake]], None]] = {}
        self._commit_thread = self._new_commit_thread()

    @abstractmethod
    def _new_commit_thread(self) -> CommitThread: ...

    @abstractmethod
    def __str__(self) -> str:
        """Return the address, for messages. It never contains a secret."""

    def attach(
        self,
        inbox: str,
        deliver: Callable[[Sequence[Wake]], None],
        forward: Callable[[Sequence[Wake]], None] | None = None,
    ) -> None:
        """After each commit, call `deliver` with all hints, and `forward`, if given, with those for other processes.
        `inbox` is the channel of this process (see `WakesAfterCommit`).
        """
        self._hubs = {**self._hubs, inbox: deliver}
        if forward is not None:
            self._forwarders = {**self._forwarders, inbox: forward}

    def detach(self, inbox: str) -> None:
        self._hubs = {other: deliver for other, deliver in self._hubs.items() if other != inbox}
        self._forwarders = {other: forward for other, forward in self._forwarders.items() if other != inbox}

    def _deliver(self, wakes: Sequence[Wake]) -> None:
        hubs, forwarders = self._hubs, self._forwarders
        try:
            for deliver in hubs.values():
                deliver(wakes)
            if forwarders and (remote := [wake for wake in wakes if wake.inbox not in hubs]):
                next(iter(forwarders.values()))(remote)  # any forwarder will do: each one reaches all processes
        except Exception:  # the operations are committed: a failed hint must not turn their results into errors
            log.exception("hints were lost; their waiters find the change at their next recheck")

    def submit(self, op: Op[T]) -> asyncio.Future[T]:
        if self._closed:
            raise Closed("this engine is closed")
        return self._batcher.submit(op)

    def _flush(self, loop: asyncio.AbstractEventLoop, submitted: Submitted) -> None:
        futures = [future for _, future in submitted]
        loop_thread = threading.get_ident()

        def on_results(results: Sequence[tuple[int, Any]]) -> None:
            if threading.get_ident() == loop_thread:
                resolve_futures(futures, results)
                return
            with suppress(RuntimeError):  # the loop is closed, so no task awaits the futures
                loop.call_soon_threadsafe(resolve_futures, futures, results)

        self._put([op for op, _ in submitted], on_results, self._commit_thread, loop)

    def prepare(self, op: Apply) -> Apply:
        return op

    def apply(self, op: Op[T]) -> T:
        return cast("T", single_result(self.apply_many([op])))

    def apply_many(self, ops: Sequence[Op[Any]], timeout: float | None = None) -> list[Any]:
        if self._closed:
            return [Closed("this engine is closed")] * len(ops)
        if not ops:
            return []
        # A lock that is released when all results are there. Not `threading.Event`: a signal handler that raises in
        # that class's Python code can leave its inner lock locked, and the commit thread would then wait for ever.
        pending = threading.Lock()
        pending.acquire()
        found: dict[int, Any] = {}

        def on_results(results: Sequence[tuple[int, Any]]) -> None:
            found.update(results)
            if len(found) == len(ops):
                try:  # noqa: SIM105 - on the hot path, where `suppress` costs too much
                    pending.release()
                except RuntimeError:
                    pass  # another thread delivered results at the same time and released it

        self._put(ops, on_results, self._thread_for(timeout), urgent=timeout is not None)
        # Without `timeout` this wait still ends: the commit thread replies within the engine's own time-out.
        if not pending.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            late = f"{self} did not answer within {timeout:g} s"
            return [found[i] if i in found else OutcomeUnknown(late) for i in range(len(ops))]
        return [found[i] for i in range(len(ops))]

    def _put(
        self,
        ops: Sequence[Op[Any]],
        on_results: OnResults,
        thread: CommitThread,
        loop: asyncio.AbstractEventLoop | None = None,
        *,
        urgent: bool = False,
    ) -> None:
        """Queue operations on the commit thread `thread`. PostgreSQL overrides this and runs store operations on other
        connections. `loop` is the event loop that submitted the operations; None if a thread did. `urgent` ones run
        before all that are queued.
        """
        thread.put(ops, on_results, urgent=urgent)

    def _thread_for(self, timeout: float | None) -> CommitThread:
        """Return the commit thread for operations that a thread submits. Calls with a `timeout` are urgent, such as the
        keeper's lease renewals, so a subclass may run them on a commit thread of their own.
        """
        return self._commit_thread

    def thread_subscribers(self) -> None:
        """Return None: threads get their hints through the hub."""
        return

    def replica_acks(self) -> None:
        """Return None: a commit is durable on disk, and this engine knows no replicas."""
        return

    def key(self, room: str, name: str) -> str:
        return f"{self.namespace}/{room}/{name}"

    async def open(self) -> None:
        await self.submit(Ping())

    async def close(self) -> None:
        await asyncio.to_thread(self.close_blocking)

    def close_blocking(self) -> None:
        self._closed = True
        self._commit_thread.stop()

    def after_fork(self) -> None:
        """In a forked child: create a new commit thread, because the old one exists only in the parent."""
        self._batcher = LoopBatcher(self._flush)
        self._hubs = {}
        self._forwarders = {}
        self._commit_thread = self._new_commit_thread()
