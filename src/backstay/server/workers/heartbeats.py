"""Registration and heartbeats of HTTP workers. A claim counts as a heartbeat, too. Until it is offline, a worker id
belongs to the owner of the token that registered it or claimed with it first.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import suppress
from math import inf

from msgspec.structs import replace

from backstay.engine.base import steady
from backstay.errors import BackstayError
from backstay.job.flows import send
from backstay.job.model import WorkerRecord
from backstay.job.store import Store
from backstay.job.worker.heartbeat import BEAT, MISSED, Status, status_of
from backstay.runtime.core import Core
from backstay.server.http.problem import Refusal

#: The largest number of cached workers. What is not cached is read from the store.
MAX_CACHED = 10_000


class WorkerHeartbeats:
    """Records HTTP workers in the store. Use it on the event loop only."""

    def __init__(self, core: Core, store: Store) -> None:
        self._core = core
        self._store = store
        self._known: OrderedDict[str, WorkerRecord] = OrderedDict()
        self._sent_at: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def status(self, worker: WorkerRecord, busy: bool) -> Status:
        return status_of(worker, self._core.engine.now(), busy=busy)

    async def check_owner(self, worker_id: str, owner: str) -> None:
        """Raise Refusal (409) if a worker with this id is online and belongs to another owner. Without tokens ("") all
        clients are one principal, and any worker id is free to use.
        """
        if not owner or self._was_heard(worker_id, owner):
            return
        began = steady()
        found = next((one for one in await send(self._core, self._store.workers()) if one.id == worker_id), None)
        is_foreign = found is not None and found.owner != owner and self.status(found, busy=False) != "offline"
        # While the store was read, a request of another owner may have used the id at this server.
        here = self._known.get(worker_id)
        is_taken = here is not None and here.owner != owner and self._sent_at.get(worker_id, -inf) >= began
        if is_foreign or is_taken:
            raise Refusal(
                409,
                f"the worker id {worker_id[:200]!r} belongs to another token until that worker is offline:"
                " choose another id",
            )

    def _was_heard(self, worker_id: str, owner: str) -> bool:
        """Whether this owner's worker sent a heartbeat to this server so recently that it cannot be offline."""
        known = self._known.get(worker_id)
        is_online = steady() - self._sent_at.get(worker_id, -inf) < BEAT * MISSED
        return known is not None and known.owner == owner and is_online

    async def register(self, worker: WorkerRecord) -> None:
        self._remember(worker)
        await send(self._core, self._store.heartbeat(worker))

    async def find(self, worker_id: str) -> WorkerRecord | None:
        """Return the record of a worker: what it registered, and the time of its last heartbeat. None if no worker with
        this id sent a heartbeat within the last day.
        """
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

    def record_claim(self, worker_id: str, labels: tuple[str, ...], queues: tuple[str, ...], owner: str) -> None:
        """Count a claim as a heartbeat. It is stored in the background, at most once per heartbeat interval."""
        known = self._known.get(worker_id) or WorkerRecord(id=worker_id)
        if steady() - self._sent_at.get(worker_id, -BEAT) < BEAT and known.owner == owner:
            return
        self._remember(replace(known, labels=labels or known.labels, queues=queues, owner=owner))
        task = asyncio.get_running_loop().create_task(self._send(worker_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, worker_id: str) -> None:
        worker = self._known.get(worker_id)
        if worker is not None:
            with suppress(BackstayError):  # the next heartbeat replaces it
                await send(self._core, self._store.heartbeat(worker))

    def _remember(self, worker: WorkerRecord) -> None:
        self._known[worker.id] = worker
        self._known.move_to_end(worker.id)
        self._sent_at[worker.id] = steady()
        if len(self._known) > MAX_CACHED:
            gone, _ = self._known.popitem(last=False)
            self._sent_at.pop(gone, None)

    async def close(self) -> None:
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=1.0)
