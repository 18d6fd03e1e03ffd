"""The outbox relay: delivers the outcomes of ended chains to jobs in other shards that wait for them.

The exchange that ends a chain also writes an entry into the outbox of its shard, so no delivery is lost. The worker
that ended the chain delivers the entry at once; every worker also sweeps the outboxes for entries of workers that died.
Delivering twice is safe: a delivery removes the chain from the set of the job's blockers, so the second one changes
nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from backstay.errors import BackstayError
from backstay.job.api.announcer import ANNOUNCER
from backstay.job.exchange import Delivery
from backstay.job.flows import send
from backstay.job.ids import shard_of

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
        """Start a task that delivers these entries of a shard's outbox, and return it."""
        task = asyncio.get_running_loop().create_task(self._try_deliver(shard, deliveries))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def sweep(self) -> None:
        """Deliver all entries in the outboxes of all shards. A `Loop` calls this every SWEEP seconds."""
        for shard in range(self._store.shards):
            while left := await send(self._core, self._store.read_outbox(shard, BATCH)):
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
        await send(self._core, self._store.ack_deliveries(shard, deliveries))

    async def _try_deliver(self, shard: int, deliveries: Sequence[Delivery]) -> None:
        try:
            await self.deliver(shard, deliveries)
        except BackstayError as error:
            self._core.telemetry.emit("job.undelivered", shard=shard, why=type(error).__name__)

    async def close(self) -> None:
        """Wait up to two seconds for deliveries under way; a sweep of any worker repeats those that did not finish."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=2.0)
