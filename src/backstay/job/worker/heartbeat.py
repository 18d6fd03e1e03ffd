"""The worker's heartbeat: registers the worker in the store and reports its queues, labels and running jobs."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Literal

from backstay.engine.base import Micros
from backstay.job.flows import send
from backstay.job.model import WorkerRecord

if TYPE_CHECKING:
    from backstay.job.store import Store
    from backstay.job.worker.slots import Slots
    from backstay.runtime.core import Core

#: Seconds between heartbeats, and the number of missed ones after which a worker counts as offline.
BEAT, MISSED = 10.0, 3

Status = Literal["idle", "busy", "offline"]


def status_of(worker: WorkerRecord, now: Micros, *, busy: bool = False) -> Status:
    """Derive a worker's status from its last heartbeat. `busy`: the caller knows that the worker runs a job."""
    if now - worker.beat > MISSED * BEAT * 1_000_000:
        return "offline"
    return "busy" if busy or worker.running else "idle"


class Heartbeat:
    """Sends a worker's heartbeats."""

    def __init__(
        self, core: Core, store: Store, slots: Slots, worker: str, queues: tuple[str, ...], labels: tuple[str, ...]
    ) -> None:
        self._core = core
        self._store = store
        self._slots = slots
        self._worker = worker
        self._queues = queues
        self._labels = labels
        self._host = socket.gethostname()
        self.draining = False

    async def beat(self) -> None:
        """Send one heartbeat. A `Loop` (runtime/loop.py) calls this method every BEAT seconds."""
        running = self._slots.running_attempts()
        worker = WorkerRecord(
            id=self._worker,
            queues=self._queues,
            labels=self._labels,
            concurrency=self._slots.size,
            host=self._host,
            pid=os.getpid(),
            running=len(running),
            current=running[0].job.id if running else "",
            draining=self.draining,
        )
        await send(self._core, self._store.heartbeat(worker))

    async def unregister(self) -> None:
        await send(self._core, self._store.unregister_worker(self._worker))
