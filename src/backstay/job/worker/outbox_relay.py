"""The outbox relay: delivers ended chains to jobs in other shards that wait for them.

The exchange that ends a chain also writes the delivery into its shard's outbox, so none is lost. The worker that ended
the chain delivers it at once; every worker also sweeps the outboxes for deliveries that a dead worker left. Delivering
twice is safe: it removes a blocker from a set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from backstay.errors import BackstayError
from backstay.job.api.announcer import ANNOUNCER
from backstay.job.flows import send
from backstay.job.ids import shard_of
from backstay.job.model import Delivery

if TYPE_CHECKING:
    from backstay.job.store import Store
    from backstay.runtime.core import Core

#: Seconds between sweeps of all outboxes.
SWEEP = 10.0
BATCH = 1000


class OutboxRelay:
    """Delivers outbox entries. Any number of workers may deliver the same entry."""

    def __init__(self, core: Core, store: Store) -> None:
        self._core = core
        self._store = store
        self._tasks: set[asyncio.Task[None]] = set()

    def deliver_soon(self, shard: int, deliveries: Sequence[Delivery]) -> asyncio.Task[None]:
        """Start delivering at once, asynchronously. Returns the task."""
        task = asyncio.get_running_loop().create_task(self._try_deliver(shard, deliveries))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def sweep(self) -> None:
        """Deliver everything in the outboxes of all shards: the tick of a `Loop`."""
        for shard in range(self._store.shards):
            while left := await send(self._core, self._store.undelivered(shard, BATCH)):
                await self.deliver(shard, left)
                if len(left) < BATCH:
                    break

    async def deliver(self, shard: int, deliveries: Sequence[Delivery]) -> None:
        """Deliver entries of one shard's outbox, announce the jobs that become pending, then delete the entries."""
        by_shard: dict[int, list[Delivery]] = {}
        for delivery in deliveries:
            by_shard.setdefault(shard_of(delivery.job), []).append(delivery)
        for there, mine in by_shard.items():
            ready = await send(self._core, self._store.deliver(there, mine))
            self._core.services.get(ANNOUNCER).announce(ready)
        await send(self._core, self._store.delivered(shard, deliveries))

    async def _try_deliver(self, shard: int, deliveries: Sequence[Delivery]) -> None:
        try:
            await self.deliver(shard, deliveries)
        except BackstayError as error:
            self._core.telemetry.emit("job.undelivered", shard=shard, why=type(error).__name__)

    async def close(self) -> None:
        """Wait up to two seconds for deliveries under way; a later sweep of any worker finishes the others."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=2.0)
