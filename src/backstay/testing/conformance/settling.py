"""One way to call both APIs: what the async one hands out is awaited, what the blocking one does is there."""

from __future__ import annotations

import inspect
from typing import Any


async def settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
