"""The doors that the SQL engines share: what a loop turn or a thread asks for goes to a group."""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

from backstay.engine.base import Apply, Op, Ping, Wake, only
from backstay.engine.commit_thread import Answer, Group
from backstay.engine.loop_batcher import Asked, Turn, settle
from backstay.errors import Closed, OutcomeUnknown

log = logging.getLogger("backstay.engine")

T = TypeVar("T")


class GroupedEngine(ABC):
    """One group of operations after another, each in one transaction. Hints go out after the commit."""

    namespace: str
    #: Rows stay until they are swept: only the record tells whether they count.
    recalls = False

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._closed = False
        self._turn = Turn(self._flush)
        self._hubs: dict[str, Callable[[Sequence[Wake]], None]] = {}
        #: Hubs that carry the hints between processes; the engine itself then does not.
        self._carriers: dict[str, Callable[[Sequence[Wake]], None]] = {}
        self._group = self._new_group()

    @abstractmethod
    def _new_group(self) -> Group: ...

    @abstractmethod
    def __str__(self) -> str:
        """Where it is, for messages: never a secret."""

    def attach(
        self,
        inbox: str,
        deliver: Callable[[Sequence[Wake]], None],
        carry: Callable[[Sequence[Wake]], None] | None = None,
    ) -> None:
        """Wakes go to `deliver` after each commit. Those for `inbox` concern nobody outside this process."""
        self._hubs = {**self._hubs, inbox: deliver}
        if carry is not None:
            self._carriers = {**self._carriers, inbox: carry}

    def detach(self, inbox: str) -> None:
        self._hubs = {other: deliver for other, deliver in self._hubs.items() if other != inbox}
        self._carriers = {other: carry for other, carry in self._carriers.items() if other != inbox}

    def _deliver(self, wakes: Sequence[Wake]) -> None:
        hubs, carriers = self._hubs, self._carriers
        try:
            for deliver in hubs.values():
                deliver(wakes)
            if carriers and (abroad := [wake for wake in wakes if wake.inbox not in hubs]):
                next(iter(carriers.values()))(abroad)  # one is enough: all of them reach everybody
        except Exception:  # everything is committed, and must not be answered with a hint's trouble
            log.exception("hints were lost; whoever waits for one looks by itself")

    def submit(self, op: Op[T]) -> asyncio.Future[T]:
        if self._closed:
            raise Closed("this engine is closed")
        return self._turn.submit(op)

    def _flush(self, loop: asyncio.AbstractEventLoop, asked: Asked) -> None:
        futures = [future for _, future in asked]
        here = threading.get_ident()

        def answer(results: Sequence[tuple[int, Any]]) -> None:
            if threading.get_ident() == here:
                settle(futures, results)
                return
            with suppress(RuntimeError):  # the loop has gone; nobody waits
                loop.call_soon_threadsafe(settle, futures, results)

        self._put([op for op, _ in asked], answer, self._group, loop)

    def prepare(self, op: Apply) -> Apply:
        return op

    def apply(self, op: Op[T]) -> T:
        return cast("T", only(self.apply_many([op])))

    def apply_many(self, ops: Sequence[Op[Any]], timeout: float | None = None) -> list[Any]:
        if self._closed:
            return [Closed("this engine is closed")] * len(ops)
        if not ops:
            return []
        answered = threading.Event()
        box: dict[int, Any] = {}

        def answer(results: Sequence[tuple[int, Any]]) -> None:
            box.update(results)
            if len(box) == len(ops):
                answered.set()

        self._put(ops, answer, self._way(timeout))
        # The group answers within its own timeout; only a machine that stands still can keep it longer.
        if not answered.wait(timeout):
            late = f"{self} did not answer within {timeout:g} s"
            return [box[i] if i in box else OutcomeUnknown(late) for i in range(len(ops))]
        return [box[i] for i in range(len(ops))]

    def _put(
        self, ops: Sequence[Op[Any]], answer: Answer, way: Group, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        """Hand operations to those who carry them out: `way`, unless an engine knows of others. `loop`: the one that
        asks, and is running.
        """
        way.put(ops, answer)

    def _way(self, timeout: float | None) -> Group:
        """The group for a thread's operations. Who brings a time-out of its own keeps leases alive."""
        return self._group

    def thread_ears(self) -> None:
        """Hints come through the hub."""
        return

    def witness(self) -> None:
        """What is committed is on disk; there are no replicas to ask."""
        return

    def key(self, room: str, name: str) -> str:
        return f"{self.namespace}/{room}/{name}"

    async def open(self) -> None:
        await self.submit(Ping())

    async def close(self) -> None:
        await asyncio.to_thread(self.close_blocking)

    def close_blocking(self) -> None:
        self._closed = True
        self._group.stop()

    def after_fork(self) -> None:
        """The group's thread stayed with the parent."""
        self._turn = Turn(self._flush)
        self._hubs = {}
        self._carriers = {}
        self._group = self._new_group()
