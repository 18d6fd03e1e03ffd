"""Registration and heartbeats of HTTP workers. A claim counts as a heartbeat, too."""

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

#: Workers that are cached; others are read from the store.
MAX_CACHED = 10_000


class WorkerHeartbeats:
    """Records HTTP workers in the store. Use it on the event loop only."""

    def __init__(self, core: Core, store: Store) -> None:
        self._core = core
        self._store = store
        self._known: OrderedDict[str, Worker] = OrderedDict()
        self._sent_at: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def status(self, worker: Worker, busy: bool) -> Status:
        return status_of(worker, self._core.engine.now(), busy=busy)

    async def register(self, worker: Worker) -> None:
        self._remember(worker)
        await send(self._core, self._store.heartbeat(worker))

    async def find(self, worker_id: str) -> Worker | None:
        """Return a worker as it registered; None when none with this id had a heartbeat within a day."""
        for worker in await send(self._core, self._store.workers()):
            if worker.id == worker_id:
                return (
                    replace(self._known[worker_id], registered=worker.registered, beat=worker.beat)
                    if (worker_id in self._known)
                    else worker
                )
        return None

    async def unregister(self, worker_id: str) -> None:
        self._known.pop(worker_id, None)
        self._sent_at.pop(worker_id, None)
        await send(self._core, self._store.unregister_worker(worker_id))

    def record_claim(self, worker_id: str, labels: tuple[str, ...], queues: tuple[str, ...]) -> None:
        """Count a claim as a heartbeat. Sent to the store asynchronously, at most once per heartbeat interval."""
        if steady() - self._sent_at.get(worker_id, -BEAT) < BEAT:
            return
        known = self._known.get(worker_id) or Worker(id=worker_id)
        self._remember(replace(known, labels=labels or known.labels, queues=queues))
        task = asyncio.get_running_loop().create_task(self._send(worker_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, worker_id: str) -> None:
        worker = self._known.get(worker_id)
        if worker is not None:
            with suppress(BackstayError):  # the next heartbeat makes up for it
                await send(self._core, self._store.heartbeat(worker))

    def _remember(self, worker: Worker) -> None:
        self._known[worker.id] = worker
        self._known.move_to_end(worker.id)
        self._sent_at[worker.id] = steady()
        if len(self._known) > MAX_CACHED:
            gone, _ = self._known.popitem(last=False)
            self._sent_at.pop(gone, None)

    async def close(self) -> None:
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=1.0)
