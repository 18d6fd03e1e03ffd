"""The calls of an actor to `stay.hub`. A listener is returned as a number, its handle, and a notice as a dict, because
the actor may be in another process.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from backstay.runtime.flows import maybe_await


class HubActions:
    """The hub calls of an actor."""

    def __init__(self, backstay: Any) -> None:
        self._backstay = backstay
        self._listeners: dict[int, Any] = {}
        self._listener_handles = itertools.count(1)

    async def _publish(self, channel: Any, payload: Any) -> None:
        await maybe_await(self._backstay.hub.publish(channel, payload))

    async def _announce(self, what: str, args: list[Any]) -> Any:
        """Publish a notice. `what`: scheduled, chain_completed or ownership_lost."""
        return await maybe_await(getattr(self._backstay.hub, f"publish_{what}")(*args))

    async def _listen(self, what: str, args: list[Any]) -> int:
        """Start a listener and return its handle. `what`: as for `_announce`, or empty to listen on channels by
        name.
        """
        verb = f"listen_{what}" if what else "listen"
        subscription = getattr(self._backstay.hub, verb)(*args)
        await maybe_await(
            subscription.__aenter__() if hasattr(subscription, "__aenter__") else subscription.__enter__()
        )
        handle = next(self._listener_handles)
        self._listeners[handle] = subscription
        return handle

    async def _receive(self, handle: int, timeout: float) -> dict[str, Any] | None:
        notice = await maybe_await(self._listeners[handle].next(timeout))
        return None if notice is None else dataclasses.asdict(notice)

    async def _unsubscribe(self, handle: int) -> None:
        subscription = self._listeners.pop(handle)
        nothing = (None, None, None)
        await maybe_await(
            subscription.__aexit__(*nothing) if hasattr(subscription, "__aexit__") else subscription.__exit__(*nothing)
        )

    async def _take_hint(self, hint_id: Any, n: Any) -> int:
        return int(await maybe_await(self._backstay.hub.take_hint(hint_id, n)))

    async def _hub_states(self) -> dict[str, str]:
        return dict(self._backstay.hub.states())

    async def _hub_counts(self) -> dict[str, int]:
        return {kind: count for kind, count in self._backstay.telemetry.counts.items() if kind.startswith("hub.")}
