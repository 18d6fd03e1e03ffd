"""Helpers that bring a lock into the state that a test needs, such as a queue of waiters."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from backstay.testing.conformance.actor import Actor, Grant, assert_refused
from backstay.testing.waiting import soon

NAME = "invoice:42"
#: The `wait` in seconds of a waiter that is to time out. It is long enough for the test to see it in the queue, and for
#: another waiter to enter after it.
BRIEF_WAIT = 2.0


async def wait_queued(observer: Actor, name: str, count: int) -> None:
    """Wait until `count` callers are in the queue."""

    async def there() -> bool:
        return (await observer.inspect(name)).waiter_count == count

    assert await soon(there), f"{count} waiters did not show up"


async def enter(observer: Actor, actor: Actor, name: str, kind: str = "lock", **options: Any) -> asyncio.Task[Grant]:
    """Let `actor` acquire a held lock, and wait until it is the last waiter in the queue. Returns its pending
    acquire.
    """
    before = (await observer.inspect(name)).waiter_count
    waiting = asyncio.create_task(actor.acquire(name, kind, **options))
    await wait_queued(observer, name, before + 1)
    return waiting


async def enter_briefly(observer: Actor, actor: Actor, name: str, kind: str = "lock") -> asyncio.Task[Grant]:
    """Let `actor` enter the queue with a short `wait`. Returns its pending acquire once another actor, `observer`, sees
    it in the queue. If the acquire times out before that (on a busy machine), `actor` enters again.
    """
    before = (await observer.inspect(name)).waiter_count
    while True:
        waiting = asyncio.create_task(actor.acquire(name, kind, wait=BRIEF_WAIT))
        while not waiting.done():
            if (await observer.inspect(name)).waiter_count > before:
                return waiting
        await assert_refused(waiting, "LockTimeout")


async def enter_in_order(
    observer: Actor, actors: Sequence[Actor], name: str, kind: str = "lock", **options: Any
) -> list[asyncio.Task[Grant]]:
    """Let `actors` enter the queue in this order."""
    return [await enter(observer, actor, name, kind, **options) for actor in actors]


async def wait_lost(actor: Actor, grant: Grant) -> None:
    """Wait until the lease is lost."""

    async def over() -> bool:
        return await actor.is_lost(grant)

    assert await soon(over), "the lease was not lost"


async def wait_free(observer: Actor, name: str) -> None:
    """Wait until the lock is free."""

    async def is_free() -> bool:
        return not (await observer.inspect(name)).held

    assert await soon(is_free), f"{name!r} did not become free"
