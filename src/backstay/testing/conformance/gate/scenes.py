"""Scenes that many claims begin with."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from backstay.testing.conformance.actor import Actor, Grant, refused
from backstay.testing.waiting import soon

NAME = "invoice:42"
#: How long one in a hurry waits: long enough to be seen, and for another to queue behind him.
SHORTLY = 2.0


async def queued(observer: Actor, name: str, count: int) -> None:
    """Go on once `count` callers wait."""

    async def there() -> bool:
        return (await observer.inspect(name)).waiter_count == count

    assert await soon(there), f"{count} waiters did not show up"


async def enter(observer: Actor, actor: Actor, name: str, kind: str = "lock", **options: Any) -> asyncio.Task[Grant]:
    """`actor` queues behind everybody who waits already."""
    before = (await observer.inspect(name)).waiter_count
    waiting = asyncio.create_task(actor.acquire(name, kind, **options))
    await queued(observer, name, before + 1)
    return waiting


async def hurry(observer: Actor, actor: Actor, name: str, kind: str = "lock") -> asyncio.Task[Grant]:
    """The same for one who waits shortly: who gave up before he was seen, on a busy machine, queues again."""
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
    """`actors` queue in this order."""
    return [await enter(observer, actor, name, kind, **options) for actor in actors]


async def lost(actor: Actor, grant: Grant) -> None:
    """Go on once the lease is lost."""

    async def over() -> bool:
        return await actor.is_lost(grant)

    assert await soon(over), "the lease was not lost"


async def free(observer: Actor, name: str) -> None:
    """Go on once nobody holds it."""

    async def nobody() -> bool:
        return not (await observer.inspect(name)).held

    assert await soon(nobody), f"{name!r} did not become free"
