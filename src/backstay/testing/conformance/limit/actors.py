"""The calls of an actor to a limit or to `stay.limits`. Results are plain data, because the actor may be in another
process.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from backstay.errors import Decision
from backstay.limit.view import Use
from backstay.runtime.flows import maybe_await


class LimitActions:
    """The part of an actor that calls rate limits."""

    _backstay: Any

    async def _limit(self, call: str, name: Any, rates: list[Any], options: dict[str, Any], args: list[Any]) -> Any:
        timeout = {"timeout": options.pop("timeout")} if "timeout" in options else {}
        limit = self._backstay.limit(name, *rates, **options)
        return plain(await maybe_await(getattr(limit, call)(*args, **timeout)))

    async def _limits(self, call: str, args: list[Any]) -> Any:
        return plain(await maybe_await(getattr(self._backstay.limits, call)(*args)))


def plain(value: Decision | Use | list[Use] | int | None) -> Any:
    if isinstance(value, list):
        return [plain(item) for item in value]
    return dataclasses.asdict(value) if isinstance(value, (Decision, Use)) else value
