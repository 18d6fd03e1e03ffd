"""What an actor does with limits: any verb of a limit or of `stay.limits`, answered as plain data."""

from __future__ import annotations

import dataclasses
from typing import Any

from backstay.errors import Decision
from backstay.limit.view import Use
from backstay.testing.conformance.settling import settled


class LimitHands:
    """The verbs of limits."""

    _backstay: Any

    async def _limit(self, call: str, name: Any, rates: list[Any], options: dict[str, Any], args: list[Any]) -> Any:
        timeout = {"timeout": options.pop("timeout")} if "timeout" in options else {}
        limit = self._backstay.limit(name, *rates, **options)
        return plain(await settled(getattr(limit, call)(*args, **timeout)))

    async def _limits(self, call: str, args: list[Any]) -> Any:
        return plain(await settled(getattr(self._backstay.limits, call)(*args)))


def plain(value: Decision | Use | list[Use] | int | None) -> Any:
    if isinstance(value, list):
        return [plain(item) for item in value]
    return dataclasses.asdict(value) if isinstance(value, (Decision, Use)) else value
