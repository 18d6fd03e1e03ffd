"""Ends of chains, carried to jobs of other shards that wait for them.

The finishing step has written each into its shard's outbox, so none is lost: whoever finished it delivers at once, and
every worker looks now and then for what a dead one left. Delivering twice is harmless: a blocker leaves a set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from backstay.errors import BackstayError
from backstay.job.api.announcer import announcer_of
from backstay.job.flows import send
from backstay.job.ids import shard_of
from backstay.job.model import Delivery

if TYPE_CHECKING:
    from backstay.job.store import Store
    from backstay.runtime.core import Core

#: How often what others left is looked for.
SWEEP = 10.0
BATCH = 1000


class Courier:
    def __init__(self, core: Core, store: Store) -> None:
        self._core = core
        self._store = store
        self._tasks: set[asyncio.Task[None]] = set()

    def carry(self, shard: int, deliveries: Sequence[Delivery]) -> asyncio.Task[None]:
        """At once, behind the caller's back."""
        task = asyncio.get_running_loop().create_task(self._try(shard, deliveries))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def sweep(self) -> None:
        """What others left: the tick of a `Loop`."""
        for shard in range(self._store.shards):
            while left := await send(self._core, self._store.undelivered(shard, BATCH)):
                await self.deliver(shard, left)
                if len(left) < BATCH:
                    break

    async def deliver(self, shard: int, deliveries: Sequence[Delivery]) -> None:
        by_shard: dict[int, list[Delivery]] = {}
        for delivery in deliveries:
            by_shard.setdefault(shard_of(delivery.job), []).append(delivery)
        for there, mine in by_shard.items():
            ready = await send(self._core, self._store.deliver(there, mine))
            announcer_of(self._core).announce(ready)
        await send(self._core, self._store.delivered(shard, deliveries))

    async def _try(self, shard: int, deliveries: Sequence[Delivery]) -> None:
        try:
            await self.deliver(shard, deliveries)
        except BackstayError as error:
            self._core.telemetry.emit("job.undelivered", shard=shard, why=type(error).__name__)

    async def close(self) -> None:
        """What is on its way arrives, or is found by the next sweep."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=2.0)
