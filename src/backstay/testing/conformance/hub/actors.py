"""Calls of `stay.hub` by actors. Listeners have handles, and notices are plain dicts: they may be sent over a pipe."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from backstay.runtime.flows import maybe_await


class HubActions:
    """The hub calls of an actor."""

    def __init__(self, backstay: Any) -> None:
        self._backstay = backstay
        self._ears: dict[int, Any] = {}
        self._ear_handles = itertools.count(1)

    async def _publish(self, channel: Any, payload: Any) -> None:
        await maybe_await(self._backstay.hub.publish(channel, payload))

    async def _announce(self, what: str, args: list[Any]) -> Any:
        """Publish a notice. `what`: scheduled, chain_completed or ownership_lost."""
        return await maybe_await(getattr(self._backstay.hub, f"publish_{what}")(*args))

    async def _listen(self, what: str, args: list[Any]) -> int:
        """Enter a listener and return its handle. `what` as in `_announce`, or empty for channels by name."""
        verb = f"listen_{what}" if what else "listen"
        ear = getattr(self._backstay.hub, verb)(*args)
        await maybe_await(ear.__aenter__() if hasattr(ear, "__aenter__") else ear.__enter__())
        handle = next(self._ear_handles)
        self._ears[handle] = ear
        return handle

    async def _hear(self, handle: int, timeout: float) -> dict[str, Any] | None:
        notice = await maybe_await(self._ears[handle].next(timeout))
        return None if notice is None else dataclasses.asdict(notice)

    async def _leave(self, handle: int) -> None:
        ear = self._ears.pop(handle)
        nothing = (None, None, None)
        await maybe_await(ear.__aexit__(*nothing) if hasattr(ear, "__aexit__") else ear.__exit__(*nothing))

    async def _take_hint(self, hint_id: Any, n: Any) -> int:
        return int(await maybe_await(self._backstay.hub.take_hint(hint_id, n)))

    async def _hub_states(self) -> dict[str, str]:
        return dict(self._backstay.hub.states())

    async def _hub_counts(self) -> dict[str, int]:
        return {kind: count for kind, count in self._backstay.telemetry.counts.items() if kind.startswith("hub.")}
