"""Calls of the caller's own things: a blocking client has answered already, an async one is awaited."""

from __future__ import annotations

import inspect
from typing import Any


async def settled(value: Any) -> Any:
    """The answer, in either world. Suspends for an awaitable only, so that a blocking caller can `run` it."""
    return await value if inspect.isawaitable(value) else value
