"""Set-ups that many gate tests start from."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from backstay.testing.conformance.actor import Actor, Grant, refused
from backstay.testing.waiting import soon

NAME = "invoice:42"
#: The `wait` (seconds) of an impatient waiter: long enough to be observed, and for another waiter to queue behind it.
SHORTLY = 2.0


async def queued(observer: Actor, name: str, count: int) -> None:
    """Wait until `count` callers are in the queue."""

    async def there() -> bool:
        return (await observer.inspect(name)).waiter_count == count

    assert await soon(there), f"{count} waiters did not show up"


async def enter(observer: Actor, actor: Actor, name: str, kind: str = "lock", **options: Any) -> asyncio.Task[Grant]:
    """Let `actor` acquire the lock and wait until it is in the queue, behind all present waiters."""
    before = (await observer.inspect(name)).waiter_count
    waiting = asyncio.create_task(actor.acquire(name, kind, **options))
    await queued(observer, name, before + 1)
    return waiting


async def hurry(observer: Actor, actor: Actor, name: str, kind: str = "lock") -> asyncio.Task[Grant]:
    """Let `actor` enter the queue with a short `wait`. On a busy machine it may time out before it is observed; then it
    enters again.
    """
    before = (await observer.inspect(name)).waiter_count
    while True:
        waiting = asyncio.create_task(actor.acquire(name, kind, wait=SHORTLY))
        while not waiting.done():
            if (await observer.inspect(name)).waiter_count > before:
                return waiting
        await refused(waiting, "LockTimeout")


async def line_up(
    observer: Actor, actors: Sequence[Actor], name: str, kind: str = "lock", **options: Any
) -> list[asyncio.Task[Grant]]:
    """Let `actors` enter the queue in this order."""
    return [await enter(observer, actor, name, kind, **options) for actor in actors]


async def lost(actor: Actor, grant: Grant) -> None:
    """Wait until the lease is lost."""

    async def over() -> bool:
        return await actor.is_lost(grant)

    assert await soon(over), "the lease was not lost"


async def free(observer: Actor, name: str) -> None:
    """Wait until the lock is free."""

    async def is_free() -> bool:
        return not (await observer.inspect(name)).held

    assert await soon(is_free), f"{name!r} did not become free"
