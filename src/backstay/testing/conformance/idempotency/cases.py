"""Helpers that bring an idempotency key into the state that a test needs, such as a running call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from backstay.idempotency.view import KeyInspection
from backstay.testing.conformance.actor import Actor
from backstay.testing.conformance.idempotency.actors import CallResult
from backstay.testing.waiting import soon

KEY = "charge:42"
#: The lock that a test holds to keep the function from returning.
GATE = "the function may end"


async def run_once(
    actor: Actor, value: Any = None, *, key: Any = KEY, fails: str = "", gate: str = "", **options: Any
) -> CallResult:
    """Let `actor` make an idempotent call of a function that returns `value`. `options` are those of the API."""
    outcome: CallResult = await actor.do("run_once", key=key, value=value, fails=fails, gate=gate, options=options)
    return outcome


async def inspect(actor: Actor, key: Any = KEY) -> KeyInspection:
    found: KeyInspection = await actor.do("inspect_key", key=key)
    return found


async def forget(actor: Actor, key: Any = KEY) -> bool:
    return bool(await actor.do("forget_key", key=key))


async def wait_for_state(observer: Actor, *, state: str = "running", waiters: int = 0, key: str = KEY) -> KeyInspection:
    """Wait until the key has this state and number of waiters, and return its inspection."""

    async def there() -> bool:
        found = await inspect(observer, key)
        return found.state == state and found.waiters == waiters

    assert await soon(there), f"{key!r} did not become {state} with {waiters} waiting: {await inspect(observer, key)}"
    return await inspect(observer, key)


@asynccontextmanager
async def running_call(
    conductor: Actor, owner: Actor, value: Any = "first", **options: Any
) -> AsyncGenerator[asyncio.Task[CallResult]]:
    """Let `owner` run a function that does not return before this block ends: the function waits for a lock that the
    actor `conductor` holds during the block.
    """
    held = await conductor.acquire(GATE)
    running = asyncio.create_task(run_once(owner, value, gate=GATE, **options))
    await wait_for_state(conductor)
    try:
        yield running
    finally:
        await conductor.release(held)


async def start_waiting_call(
    observer: Actor, actor: Actor, value: Any = "later", **options: Any
) -> asyncio.Task[CallResult]:
    """Let `actor` call with the same key, and wait until it waits for the running call. Returns its pending call."""
    before = (await inspect(observer)).waiters
    call = asyncio.create_task(run_once(actor, value, **options))
    await wait_for_state(observer, waiters=before + 1)
    return call
