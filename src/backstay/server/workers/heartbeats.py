"""Workers that speak HTTP: what they said of themselves, and that they are alive whenever they come."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import suppress

from msgspec.structs import replace

from backstay.engine.base import steady
from backstay.errors import BackstayError
from backstay.job.flows import send
from backstay.job.model import Worker
from backstay.job.store import Store
from backstay.job.worker.heartbeat import BEAT, Status, status_of
from backstay.runtime.core import Core

#: Workers that are remembered; others are looked up again.
MOST = 10_000


class Presences:
    def __init__(self, core: Core, store: Store) -> None:
        self._core = core
        self._store = store
        self._known: OrderedDict[str, Worker] = OrderedDict()
        self._beaten: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def status(self, worker: Worker, busy: bool) -> Status:
        return status_of(worker, self._core.engine.now(), busy=busy)

    async def register(self, worker: Worker) -> None:
        self._remember(worker)
        await send(self._core, self._store.beat(worker))

    async def find(self, worker_id: str) -> Worker | None:
        """As it said; None: nobody of that name has registered within a day."""
        for worker in await send(self._core, self._store.workers()):
            if worker.id == worker_id:
                return (
                    replace(self._known[worker_id], registered=worker.registered, beat=worker.beat)
                    if (worker_id in self._known)
                    else worker
                )
        return None

    async def leave(self, worker_id: str) -> None:
        self._known.pop(worker_id, None)
        self._beaten.pop(worker_id, None)
        await send(self._core, self._store.leave(worker_id))

    def seen(self, worker_id: str, labels: tuple[str, ...], queues: tuple[str, ...]) -> None:
        """It came for a job. Told to the store now and then, behind its back."""
        if steady() - self._beaten.get(worker_id, -BEAT) < BEAT:
            return
        known = self._known.get(worker_id) or Worker(id=worker_id)
        self._remember(replace(known, labels=labels or known.labels, queues=queues))
        task = asyncio.get_running_loop().create_task(self._tell(worker_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell(self, worker_id: str) -> None:
        worker = self._known.get(worker_id)
        if worker is not None:
            with suppress(BackstayError):  # the next time will do
                await send(self._core, self._store.beat(worker))

    def _remember(self, worker: Worker) -> None:
        self._known[worker.id] = worker
        self._known.move_to_end(worker.id)
        self._beaten[worker.id] = steady()
        if len(self._known) > MOST:
            gone, _ = self._known.popitem(last=False)
            self._beaten.pop(gone, None)

    async def close(self) -> None:
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=1.0)
