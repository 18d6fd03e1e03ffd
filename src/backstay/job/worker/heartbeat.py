"""A worker tells of itself: that it is there, what it takes, how much it runs."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Literal

from backstay.engine.base import Micros
from backstay.job.flows import send
from backstay.job.model import Worker

if TYPE_CHECKING:
    from backstay.job.store import Store
    from backstay.job.worker.slots import Slots
    from backstay.runtime.core import Core

#: How often it tells, and how many that are missed mean that it is offline.
BEAT, MISSED = 10.0, 3

Status = Literal["idle", "busy", "offline"]


def status_of(worker: Worker, now: Micros, *, busy: bool = False) -> Status:
    """By its heartbeat. `busy`: it is known to have a job, whatever it said itself."""
    if now - worker.beat > MISSED * BEAT * 1_000_000:
        return "offline"
    return "busy" if busy or worker.running else "idle"


class Presence:
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
        """The tick of a `Loop`."""
        running = self._slots.running()
        told = Worker(
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
        await send(self._core, self._store.beat(told))

    async def leave(self) -> None:
        await send(self._core, self._store.leave(self._worker))
