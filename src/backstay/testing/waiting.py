"""Waiting for something to become true, instead of sleeping and hoping."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

#: How often a claim is looked at.
LOOK = 0.01
#: What must happen at some time has happened by then. This guards against hanging and says nothing about speed: a
#: machine with ten times the work it can do is slow, a broken claim stays broken.
WITHIN = 60.0


def eventually(claim: Callable[[], object], within: float = WITHIN) -> bool:
    """Whether `claim()` becomes true in time."""
    deadline = time.monotonic() + within
    while not claim():
        if time.monotonic() > deadline:
            return bool(claim())
        time.sleep(LOOK)
    return True


async def soon(claim: Callable[[], Awaitable[object]], within: float = WITHIN) -> bool:
    """The same for a claim that has to be awaited."""
    deadline = time.monotonic() + within
    while not await claim():
        if time.monotonic() > deadline:
            return bool(await claim())
        await asyncio.sleep(LOOK)
    return True
