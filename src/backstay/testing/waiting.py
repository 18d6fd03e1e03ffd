"""Poll until a condition holds, instead of sleeping for a fixed time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

#: Seconds between two checks of the condition.
LOOK = 0.01
#: Seconds to wait for a condition that must eventually hold. It guards against hanging and is no performance bound: it
#: is long, so that an overloaded machine does not fail the test.
WITHIN = 60.0


def eventually(claim: Callable[[], object], within: float = WITHIN) -> bool:
    """Wait until `claim()` returns true. Returns False after `within` seconds."""
    deadline = time.monotonic() + within
    while not claim():
        if time.monotonic() > deadline:
            return bool(claim())
        time.sleep(LOOK)
    return True


async def soon(claim: Callable[[], Awaitable[object]], within: float = WITHIN) -> bool:
    """Wait until `await claim()` returns true. Returns False after `within` seconds."""
    deadline = time.monotonic() + within
    while not await claim():
        if time.monotonic() > deadline:
            return bool(await claim())
        await asyncio.sleep(LOOK)
    return True
