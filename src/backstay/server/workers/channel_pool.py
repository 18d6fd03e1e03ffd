"""The pool of worker channels through which claims and finishes of HTTP workers reach the shards. A finish reports the
outcome of an attempt, or releases its job.

Exchanges in flight never share a channel. An exchange continues after the HTTP request that started it has ended: the
pool then releases the jobs that the exchange claims. Finishes of all workers are sent in batches: finishes that arrive
while two batches are in flight wait for the next batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from backstay.errors import BackstayError, EngineUnavailable
from backstay.job.api.announcer import ANNOUNCER
from backstay.job.exchange import Claim, ExchangeReply, Verdict
from backstay.job.ids import shard_of
from backstay.job.model import Finish
from backstay.job.store import Store
from backstay.job.worker.channel import WorkerChannel, WorkerIdentity
from backstay.job.worker.outbox_relay import OutboxRelay
from backstay.runtime.core import Core
from backstay.server.http.deadlines import Deadlines

T = TypeVar("T")

log = logging.getLogger("backstay.server")

#: The largest number of workers whose channels are kept for reuse.
MAX_WORKERS = 10_000
NO_CLAIM = Claim(want=0)
#: The largest number of batches of finishes in flight to one shard, and of finishes in one batch.
MAX_IN_FLIGHT, BATCH_SIZE = 2, 200


class WorkerChannels:
    """The worker channels of one HTTP worker.

    free: the channels that no exchange uses now, by shard.
    made: how many channels were created.
    busy: how many exchanges are in flight.
    """

    __slots__ = ("busy", "free", "identity", "made")

    def __init__(self, worker: str) -> None:
        self.identity = WorkerIdentity(worker)
        self.free: dict[int, list[WorkerChannel]] = {}
        self.made = 0
        self.busy = 0


class FinishQueue:
    """The finishes that wait for the next batch to one shard, and the number of batches in flight to it."""

    __slots__ = ("flush_scheduled", "in_flight", "waiting")

    def __init__(self) -> None:
        self.waiting: list[tuple[Finish, asyncio.Future[Verdict]]] = []
        self.in_flight = 0
        self.flush_scheduled = False


class ChannelPool:
    """Runs exchanges for HTTP workers. Use it on the event loop only."""

    def __init__(
        self, core: Core, store: Store, deadlines: Deadlines, timeout: float, on_ready: Callable[[], None]
    ) -> None:
        self._core = core
        self._store = store
        self._deadlines = deadlines
        self._timeout = timeout
        #: Called when an exchange has made jobs pending. It wakes the long-polling claims of this server directly, so
        #: that they do not wait for the announcement over the hub.
        self._on_ready = on_ready
        self._workers: OrderedDict[str, WorkerChannels] = OrderedDict()
        self._finish_queues: dict[int, FinishQueue] = {}
        self._outbox_relay = OutboxRelay(core, store)
        self._tasks: set[asyncio.Task[None]] = set()
        #: The worker id with which all finishes are sent, whatever worker ran the job: the store checks only the lease.
        self.finisher = f"{core.identity.process}-http"

    # ── claims ──

    async def claim(self, worker: str, shard: int, claim: Claim) -> ExchangeReply:
        """Try to claim once. Raises EngineUnavailable when the engine does not reply in time; the exchange continues,
        and jobs that it claims are released.
        """
        answer: asyncio.Future[ExchangeReply] = asyncio.get_running_loop().create_future()
        self._spawn(self._claim(worker, shard, claim, answer))
        return await self._await_reply(answer)

    async def _claim(self, worker: str, shard: int, claim: Claim, answer: asyncio.Future[ExchangeReply]) -> None:
        try:
            reply = await self._exchange(worker, shard, (), claim)
        except Exception as error:  # noqa: BLE001 - raised in the waiting request
            if not answer.done():
                answer.set_exception(error)
            return
        if not answer.done():
            answer.set_result(reply)
            return
        for job in reply.jobs:  # release it: the HTTP request that wanted a job has already ended
            self._spawn(self._release(Finish(job=job.id, fence=job.fence, kind="release")))

    async def _release(self, finish: Finish) -> None:
        try:
            await self.finish(finish)
        except BackstayError as error:
            log.warning("could not release job %s, which stays leased until its lease expires: %s", finish.job, error)

    # ── finishes ──

    async def finish(self, finish: Finish) -> Verdict:
        """Finish an attempt, in one batch with other finishes. Raises EngineUnavailable when the engine does not reply
        in time; the finish may still take effect.
        """
        shard = shard_of(finish.job)
        queue = self._finish_queues.get(shard)
        if queue is None:
            queue = self._finish_queues[shard] = FinishQueue()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Verdict] = loop.create_future()
        queue.waiting.append((finish, answer))
        if not queue.flush_scheduled and queue.in_flight < MAX_IN_FLIGHT:
            queue.flush_scheduled = True
            loop.call_soon(self._flush, shard, queue)
        return await self._await_reply(answer)

    def _flush(self, shard: int, queue: FinishQueue) -> None:
        queue.flush_scheduled = False
        while queue.waiting and queue.in_flight < MAX_IN_FLIGHT:
            batch, queue.waiting = queue.waiting[:BATCH_SIZE], queue.waiting[BATCH_SIZE:]
            queue.in_flight += 1
            self._spawn(self._send_batch(shard, queue, batch))

    async def _send_batch(
        self, shard: int, queue: FinishQueue, batch: list[tuple[Finish, asyncio.Future[Verdict]]]
    ) -> None:
        try:
            reply = await self._exchange(self.finisher, shard, [finish for finish, _ in batch], NO_CLAIM)
        except Exception as error:  # noqa: BLE001 - a finish that the store refuses must not fail the rest of its batch
            if len(batch) > 1:
                for one in batch:
                    queue.in_flight += 1
                    await self._send_batch(shard, queue, [one])
            elif not batch[0][1].done():
                batch[0][1].set_exception(error)
        else:
            for (_, answer), verdict in zip(batch, reply.verdicts, strict=True):
                if not answer.done():
                    answer.set_result(verdict)
        finally:
            queue.in_flight -= 1
            self._flush(shard, queue)

    # ── exchanges ──

    async def _await_reply(self, answer: asyncio.Future[T]) -> T:
        deadline = self._deadlines.add(self._timeout, partial(_time_out, answer))
        try:
            return await answer
        finally:
            self._deadlines.drop(deadline)

    async def _exchange(self, worker: str, shard: int, finishes: Sequence[Finish], claim: Claim) -> ExchangeReply:
        channels = self._worker_channels(worker)
        free = channels.free.setdefault(shard, [])
        if free:
            channel = free.pop()
        else:
            channel = WorkerChannel(self._core, self._store, channels.identity, shard, channels.made)
            channels.made += 1
        channels.busy += 1
        try:
            reply, _ = await channel.exchange(finishes, claim)
        finally:
            channels.busy -= 1
        free.append(channel)  # not reused after an error: the outcome of its last exchange is unknown
        if reply.ready:
            self._core.services.get(ANNOUNCER).announce(reply.ready)
            self._on_ready()
        if reply.outbox:
            self._outbox_relay.deliver_soon(shard, reply.outbox)
        return reply

    def _worker_channels(self, worker: str) -> WorkerChannels:
        channels = self._workers.get(worker)
        if channels is None:
            channels = self._workers[worker] = WorkerChannels(worker)
            if len(self._workers) > MAX_WORKERS:
                idle = next((name for name, old in self._workers.items() if not old.busy and old is not channels), None)
                if idle is not None:
                    del self._workers[idle]
        else:
            self._workers.move_to_end(worker)
        return channels

    def _spawn(self, coro: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coro)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Wait one second for exchanges in flight, then cancel them. Jobs that a cancelled exchange claimed stay leased
        until their leases expire.
        """
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=1.0)
        for task in list(self._tasks):
            task.cancel()
        await self._outbox_relay.close()


def _time_out(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(EngineUnavailable("the engine did not reply in time"))
