"""The part that the SQL engines share: operations of event loops and threads go to a commit thread in batches."""

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
    #: Expired rows stay until they are swept, so a body is valid only together with its record.
    expires_bodies = False
    exposes_redis_keys = False
    is_clustered = False

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._closed = False
        self._batcher = LoopBatcher(self._flush)
        self._hubs: dict[str, Callable[[Sequence[Wake]], None]] = {}
        #: Callbacks of hubs that forward hints to other processes; if there is one, the engine does not send them
        #: itself.
        self._forwarders: dict[str, Callable[[Sequence[Wake]], None]] = {}
        self._commit_thread = self._new_commit_thread()

    @abstractmethod
    def _new_commit_thread(self) -> CommitThread: ...

    @abstractmethod
    def __str__(self) -> str:
        """The address, for messages. It never contains a secret."""

    def attach(
        self,
        inbox: str,
        deliver: Callable[[Sequence[Wake]], None],
        forward: Callable[[Sequence[Wake]], None] | None = None,
    ) -> None:
        """Pass wakes to `deliver` after each commit. Wakes for `inbox` are not sent to other processes."""
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
        all_done = threading.Event()
        found: dict[int, Any] = {}

        def on_results(results: Sequence[tuple[int, Any]]) -> None:
            found.update(results)
            if len(found) == len(ops):
                all_done.set()

        self._put(ops, on_results, self._thread_for(timeout))
        # The commit thread replies within the engine's own time-out; only a suspended host can delay it further.
        if not all_done.wait(timeout):
            late = f"{self} did not answer within {timeout:g} s"
            return [found[i] if i in found else OutcomeUnknown(late) for i in range(len(ops))]
        return [found[i] for i in range(len(ops))]

    def _put(
        self,
        ops: Sequence[Op[Any]],
        on_results: OnResults,
        thread: CommitThread,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Queue operations on `thread`; an engine may route some elsewhere. `loop`: the submitting, running loop."""
        thread.put(ops, on_results)

    def _thread_for(self, timeout: float | None) -> CommitThread:
        """Return the commit thread for a thread's operations. Only the keeper, which renews leases, passes
        `timeout`.
        """
        return self._commit_thread

    def thread_subscribers(self) -> None:
        """None: hints arrive through the hub."""
        return

    def replica_acks(self) -> None:
        """None: a commit is on disk, and there are no replicas to ask."""
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
        """Start with a new commit thread: the old one exists only in the parent."""
        self._batcher = LoopBatcher(self._flush)
        self._hubs = {}
        self._forwarders = {}
        self._commit_thread = self._new_commit_thread()
