"""What an actor does with limits: any verb of a limit or of `hf.limits`, answered as plain data."""

from __future__ import annotations

import dataclasses
from typing import Any

from holdfast.errors import Decision
from holdfast.limit.view import Use
from holdfast.testing.conformance.settling import settled


class LimitHands:
    """The verbs of limits."""

    _holdfast: Any

    async def _limit(self, call: str, name: Any, rates: list[Any], options: dict[str, Any], args: list[Any]) -> Any:
        timeout = {"timeout": options.pop("timeout")} if "timeout" in options else {}
        limit = self._holdfast.limit(name, *rates, **options)
        return plain(await settled(getattr(limit, call)(*args, **timeout)))

    async def _limits(self, call: str, args: list[Any]) -> Any:
        return plain(await settled(getattr(self._holdfast.limits, call)(*args)))


def plain(value: Decision | Use | list[Use] | int | None) -> Any:
    if isinstance(value, list):
        return [plain(item) for item in value]
    return dataclasses.asdict(value) if isinstance(value, (Decision, Use)) else value
