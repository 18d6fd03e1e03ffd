"""Set-ups that many idempotency tests start from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from backstay.idempotency.view import KeyInspection
from backstay.testing.conformance.actor import Actor
from backstay.testing.conformance.idempotency.actors import Outcome
from backstay.testing.waiting import soon

KEY = "charge:42"
#: The lock that a test holds to keep the function from returning.
GATE = "the function may end"


async def run_once(
    actor: Actor, value: Any = None, *, key: Any = KEY, fails: str = "", gate: str = "", **options: Any
) -> Outcome:
    """Let `actor` run a function that returns `value`. `options` are those of the API."""
    outcome: Outcome = await actor.do("run_once", key=key, value=value, fails=fails, gate=gate, options=options)
    return outcome


async def inspect(actor: Actor, key: Any = KEY) -> KeyInspection:
    seen: KeyInspection = await actor.do("inspect_key", key=key)
    return seen


async def forget(actor: Actor, key: Any = KEY) -> bool:
    return bool(await actor.do("forget_key", key=key))


async def seen(observer: Actor, *, state: str = "running", waiters: int = 0, key: str = KEY) -> KeyInspection:
    """Wait until the key has this state and number of waiters. Returns its inspection."""

    async def there() -> bool:
        found = await inspect(observer, key)
        return found.state == state and found.waiters == waiters

    assert await soon(there), f"{key!r} did not become {state} with {waiters} waiting: {await inspect(observer, key)}"
    return await inspect(observer, key)


@asynccontextmanager
async def under_way(
    conductor: Actor, owner: Actor, value: Any = "first", **options: Any
) -> AsyncGenerator[asyncio.Task[Outcome]]:
    """Let `owner` run a function that does not return before the end of this block."""
    held = await conductor.acquire(GATE)
    running = asyncio.create_task(run_once(owner, value, gate=GATE, **options))
    await seen(conductor)
    try:
        yield running
    finally:
        await conductor.release(held)


async def waiting(observer: Actor, actor: Actor, value: Any = "later", **options: Any) -> asyncio.Task[Outcome]:
    """Start a call of `actor` and wait until it waits for the running call."""
    before = (await inspect(observer)).waiters
    call = asyncio.create_task(run_once(actor, value, **options))
    await seen(observer, waiters=before + 1)
    return call
