"""Helpers of the limit suite: `limit_for(actor, rate)` is a limit that an actor uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from backstay.errors import Decision
from backstay.testing.conformance.actor import Actor

ALGORITHMS = ("fixed", "sliding", "sliding-counter", "token-bucket", "gcra")
#: A window so long that it is unlikely to end during a test.
LONG = "hour"


@dataclass(frozen=True, slots=True)
class ActorLimit:
    """A limit as one actor uses it."""

    actor: Actor
    name: Any
    rates: tuple[Any, ...]
    options: dict[str, Any]

    async def do(self, verb: str, *args: Any, **more: Any) -> Any:
        options = {**self.options, **more}
        return await self.actor.do(
            "limit", call=verb, name=self.name, rates=list(self.rates), options=options, args=list(args)
        )

    async def hit(self, key: Any, *cost: Any) -> Decision:
        return Decision(**await self.do("hit", key, *cost))

    async def peek(self, key: Any, *cost: Any) -> Decision:
        return Decision(**await self.do("peek", key, *cost))

    async def wait(self, key: Any, timeout: Any = None) -> Decision:
        return Decision(**await self.do("wait", key, timeout=timeout))


def limit_for(actor: Actor, *rates: Any, name: Any = "api", **options: Any) -> ActorLimit:
    return ActorLimit(actor, name, rates, options)
