"""Poll until a condition holds, instead of sleeping for a fixed time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

#: Seconds between two checks of the condition.
POLL_SECONDS = 0.01
#: Seconds to wait for a condition that must eventually hold. It guards against hanging and is no performance bound: it
#: is long, so that an overloaded machine does not fail the test.
WITHIN = 60.0


def eventually(condition: Callable[[], object], within: float = WITHIN) -> bool:
    """Wait until `condition()` returns true. Return whether it did so within `within` seconds."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            return bool(condition())
        time.sleep(POLL_SECONDS)
    return True


async def soon(condition: Callable[[], Awaitable[object]], within: float = WITHIN) -> bool:
    """Wait until `await condition()` returns true. Return whether it did so within `within` seconds."""
    deadline = time.monotonic() + within
    while not await condition():
        if time.monotonic() > deadline:
            return bool(await condition())
        await asyncio.sleep(POLL_SECONDS)
    return True
