"""Helpers of the hub suite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from backstay.testing.conformance.actor import Actor
from backstay.testing.waiting import WITHIN

#: Seconds to wait for a message that must not arrive. Every hub delivers faster.
SILENCE = 0.3


@dataclass(frozen=True)
class Listener:
    """An actor's subscription."""

    actor: Actor
    handle: int

    async def hear(self, timeout: float = WITHIN) -> dict[str, Any]:
        """Return the next notice. Fails if none arrives."""
        notice = await self.actor.do("hear", handle=self.handle, timeout=timeout)
        assert notice is not None, "nothing was heard"
        return dict(notice)

    async def hears_nothing(self) -> bool:
        return await self.actor.do("hear", handle=self.handle, timeout=SILENCE) is None

    async def leave(self) -> None:
        await self.actor.do("leave", handle=self.handle)


async def listen(actor: Actor, what: str, *args: Any) -> Listener:
    """Subscribe an actor. `what`: scheduled, chain_completed, ownership_lost, or empty for channels by name."""
    return Listener(actor, await actor.do("listen", what=what, args=list(args)))


async def publish(actor: Actor, channel: Any, payload: Any) -> None:
    await actor.do("publish", channel=channel, payload=payload)


async def announce(actor: Actor, what: str, *args: Any) -> Any:
    return await actor.do("announce", what=what, args=list(args))


async def take(actor: Actor, hint_id: Any, n: Any = 1) -> int:
    return int(await actor.do("take_hint", hint_id=hint_id, n=n))
