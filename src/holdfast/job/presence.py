"""A worker tells of itself: that it is there, what it takes, how much it runs."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from holdfast.job.flows import send
from holdfast.job.model import Worker

if TYPE_CHECKING:
    from holdfast.core import Core
    from holdfast.job.slots import Slots
    from holdfast.job.store import Store

#: How often; three that are missed mean offline.
BEAT = 10.0


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
