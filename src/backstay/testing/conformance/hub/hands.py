"""What an actor does with `stay.hub`: listeners by handle, notices as plain dicts, since they may cross a pipe."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from backstay.testing.conformance.settling import settled


class HubHands:
    """The verbs of the hub."""

    def __init__(self, backstay: Any) -> None:
        self._backstay = backstay
        self._ears: dict[int, Any] = {}
        self._ear_handles = itertools.count(1)

    async def _publish(self, channel: Any, payload: Any) -> None:
        await settled(self._backstay.hub.publish(channel, payload))

    async def _announce(self, what: str, args: list[Any]) -> Any:
        """`what` is scheduled, chain_completed or ownership_lost."""
        return await settled(getattr(self._backstay.hub, f"publish_{what}")(*args))

    async def _listen(self, what: str, args: list[Any]) -> int:
        """Enter a listener; `what` as above, or empty for channels by name."""
        verb = f"listen_{what}" if what else "listen"
        ear = getattr(self._backstay.hub, verb)(*args)
        await settled(ear.__aenter__() if hasattr(ear, "__aenter__") else ear.__enter__())
        handle = next(self._ear_handles)
        self._ears[handle] = ear
        return handle

    async def _hear(self, handle: int, timeout: float) -> dict[str, Any] | None:
        notice = await settled(self._ears[handle].next(timeout))
        return None if notice is None else dataclasses.asdict(notice)

    async def _leave(self, handle: int) -> None:
        ear = self._ears.pop(handle)
        nothing = (None, None, None)
        await settled(ear.__aexit__(*nothing) if hasattr(ear, "__aexit__") else ear.__exit__(*nothing))

    async def _take_hint(self, hint_id: Any, n: Any) -> int:
        return int(await settled(self._backstay.hub.take_hint(hint_id, n)))

    async def _hub_states(self) -> dict[str, str]:
        return dict(self._backstay.hub.states())

    async def _hub_counts(self) -> dict[str, int]:
        return {kind: count for kind, count in self._backstay.telemetry.counts.items() if kind.startswith("hub.")}
