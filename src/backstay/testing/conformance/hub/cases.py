"""Helpers of the hub suite: publish, listen, and take hints through an actor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from backstay.testing.conformance.actor import Actor
from backstay.testing.waiting import WITHIN

#: Seconds to wait for a message that must not arrive. Every hub delivers faster.
SILENCE = 0.3


@dataclass(frozen=True)
class ActorSubscription:
    """A listener of an actor, by its handle."""

    actor: Actor
    handle: int

    async def receive(self, timeout: float = WITHIN) -> dict[str, Any]:
        """Return the next message or notice. Fail if none arrives in time."""
        notice = await self.actor.do("receive", handle=self.handle, timeout=timeout)
        assert notice is not None, "no message arrived"
        return dict(notice)

    async def receives_nothing(self) -> bool:
        return await self.actor.do("receive", handle=self.handle, timeout=SILENCE) is None

    async def unsubscribe(self) -> None:
        await self.actor.do("unsubscribe", handle=self.handle)


async def listen(actor: Actor, what: str, *args: Any) -> ActorSubscription:
    """Let an actor listen. `what`: "scheduled", "chain_completed" or "ownership_lost" calls `hub.listen_scheduled` and
    so on; "" calls `hub.listen` with the names of channels in `args`.
    """
    return ActorSubscription(actor, await actor.do("listen", what=what, args=list(args)))


async def publish(actor: Actor, channel: Any, payload: Any) -> None:
    await actor.do("publish", channel=channel, payload=payload)


async def announce(actor: Actor, what: str, *args: Any) -> Any:
    return await actor.do("announce", what=what, args=list(args))


async def take(actor: Actor, hint_id: Any, n: Any = 1) -> int:
    return int(await actor.do("take_hint", hint_id=hint_id, n=n))
