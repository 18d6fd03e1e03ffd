"""The server's lanes: how claims and ends of HTTP workers reach the shards, each step in a lane of its own while it is
under way. A step outlives the request that asked for it: what nobody waits for any more is given back.

Ends of many workers travel together: whatever comes in while two batches are on their way goes with the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from backstay.errors import BackstayError, EngineUnavailable
from backstay.job.api.announcer import announcer_of
from backstay.job.ids import shard_of
from backstay.job.model import Claim, Finish, StepReply, Verdict
from backstay.job.store import Store
from backstay.job.worker.channel import Identity, Lane
from backstay.job.worker.outbox_relay import Courier
from backstay.runtime.core import Core
from backstay.server.http.deadlines import Deadlines

T = TypeVar("T")

log = logging.getLogger("backstay.server")

#: Workers whose lanes are kept.
MOST = 10_000
NOTHING = Claim(want=0)
#: Batches of ends on their way to one shard, and how many ends go in one.
BATCHES, BATCH = 2, 200


class Book:
    """The lanes of one worker."""

    __slots__ = ("busy", "free", "identity", "made")

    def __init__(self, worker: str) -> None:
        self.identity = Identity(worker)
        self.free: dict[int, list[Lane]] = {}
        self.made = 0
        self.busy = 0


class Out:
    """Ends on their way to one shard."""

    __slots__ = ("flying", "stirred", "waiting")

    def __init__(self) -> None:
        self.waiting: list[tuple[Finish, asyncio.Future[Verdict]]] = []
        self.flying = 0
        self.stirred = False


class Lanes:
    def __init__(
        self, core: Core, store: Store, deadlines: Deadlines, patience: float, ready: Callable[[], None]
    ) -> None:
        self._core = core
        self._store = store
        self._deadlines = deadlines
        self._patience = patience
        #: Called when jobs became pending: whoever waits at this server need not wait for the hub.
        self._ready = ready
        self._books: OrderedDict[str, Book] = OrderedDict()
        self._outs: dict[int, Out] = {}
        self._courier = Courier(core, store)
        self._tasks: set[asyncio.Task[None]] = set()
        #: Who ends jobs: only leases count there.
        self.finisher = f"{core.identity.process}-http"

    # ── claims ──

    async def claim(self, worker: str, shard: int, claim: Claim) -> StepReply:
        """One look. Raises EngineUnavailable when the engine does not answer in time; the look goes on all the same,
        and jobs that it finds are given back.
        """
        answer: asyncio.Future[StepReply] = asyncio.get_running_loop().create_future()
        self._spawn(self._claim(worker, shard, claim, answer))
        return await self._patiently(answer)

    async def _claim(self, worker: str, shard: int, claim: Claim, answer: asyncio.Future[StepReply]) -> None:
        try:
            reply = await self._step(worker, shard, (), claim)
        except Exception as error:  # noqa: BLE001 - whoever asked hears it
            if not answer.done():
                answer.set_exception(error)
            return
        if not answer.done():
            answer.set_result(reply)
            return
        for job in reply.jobs:  # its request has gone
            self._spawn(self._give_back(Finish(job=job.id, fence=job.fence, kind="release")))

    async def _give_back(self, finish: Finish) -> None:
        try:
            await self.finish(finish)
        except BackstayError as error:
            log.warning("%s could not be given back, and waits for its lease to end: %s", finish.job, error)

    # ── ends ──

    async def finish(self, finish: Finish) -> Verdict:
        """End an attempt, together with whatever else ends now. Raises EngineUnavailable as above: it may still
        happen.
        """
        shard = shard_of(finish.job)
        out = self._outs.get(shard)
        if out is None:
            out = self._outs[shard] = Out()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Verdict] = loop.create_future()
        out.waiting.append((finish, answer))
        if not out.stirred and out.flying < BATCHES:
            out.stirred = True
            loop.call_soon(self._send, shard, out)
        return await self._patiently(answer)

    def _send(self, shard: int, out: Out) -> None:
        out.stirred = False
        while out.waiting and out.flying < BATCHES:
            batch, out.waiting = out.waiting[:BATCH], out.waiting[BATCH:]
            out.flying += 1
            self._spawn(self._carry(shard, out, batch))

    async def _carry(self, shard: int, out: Out, batch: list[tuple[Finish, asyncio.Future[Verdict]]]) -> None:
        try:
            reply = await self._step(self.finisher, shard, [finish for finish, _ in batch], NOTHING)
        except Exception as error:  # noqa: BLE001 - one end that the store refuses must not take others along
            if len(batch) > 1:
                for one in batch:
                    out.flying += 1
                    await self._carry(shard, out, [one])
            elif not batch[0][1].done():
                batch[0][1].set_exception(error)
        else:
            for (_, answer), verdict in zip(batch, reply.verdicts, strict=True):
                if not answer.done():
                    answer.set_result(verdict)
        finally:
            out.flying -= 1
            self._send(shard, out)

    # ── both ──

    async def _patiently(self, answer: asyncio.Future[T]) -> T:
        alarm = self._deadlines.add(self._patience, partial(_late, answer))
        try:
            return await answer
        finally:
            self._deadlines.drop(alarm)

    async def _step(self, worker: str, shard: int, finishes: Sequence[Finish], claim: Claim) -> StepReply:
        book = self._book(worker)
        free = book.free.setdefault(shard, [])
        if free:
            lane = free.pop()
        else:
            lane = Lane(self._core, self._store, book.identity, shard, book.made)
            book.made += 1
        book.busy += 1
        try:
            reply, _ = await lane.step(finishes, claim)
        finally:
            book.busy -= 1
        free.append(lane)  # not after an error: its last number is unresolved
        if reply.ready:
            announcer_of(self._core).announce(reply.ready)
            self._ready()
        if reply.outbox:
            self._courier.carry(shard, reply.outbox)
        return reply

    def _book(self, worker: str) -> Book:
        book = self._books.get(worker)
        if book is None:
            book = self._books[worker] = Book(worker)
            if len(self._books) > MOST:
                idle = next((name for name, old in self._books.items() if not old.busy and old is not book), None)
                if idle is not None:
                    del self._books[idle]
        else:
            self._books.move_to_end(worker)
        return book

    def _spawn(self, coro: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coro)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """What is under way has a moment; then its leases run out."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=1.0)
        for task in list(self._tasks):
            task.cancel()
        await self._courier.close()


def _late(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(EngineUnavailable("the engine did not answer in time"))
