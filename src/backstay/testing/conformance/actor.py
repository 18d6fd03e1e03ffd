"""An actor: one caller of the gate, wherever it lives. A task, a thread, or either in another process."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any

from backstay.gate.view import Cleanup, ForceReleased, Inspection, Released

#: What errors tell besides their message.
FACTS = ("name", "holder", "count", "waited", "waiters", "lock_id", "fence", "reason", "by", "retry_after", "kind")


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease as its actor got it. `handle` names it to that actor alone."""

    handle: int
    name: str
    lock_id: str
    fence: int
    expires_at: str
    fields: dict[str, Any]


class Failure(Exception):
    """What an actor's call raised, by class names and facts, since it may come from another process."""

    def __init__(self, kinds: Sequence[str], message: str, facts: dict[str, Any]) -> None:
        super().__init__(f"{kinds[0]}: {message}")
        self.kinds = tuple(kinds)
        self.message = message
        self.facts = facts

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        facts = {fact: getattr(error, fact) for fact in FACTS if hasattr(error, fact)}
        for fact, value in facts.items():
            if dataclasses.is_dataclass(value) and not isinstance(value, type):
                facts[fact] = dataclasses.asdict(value)
        return cls([kind.__name__ for kind in type(error).__mro__], str(error), facts)


async def refused(call: Awaitable[object], kind: str) -> Failure:
    """The failure that `call` must end in."""
    try:
        outcome = await call
    except Failure as failure:
        if kind not in failure.kinds:
            raise
        return failure
    raise AssertionError(f"{kind} was expected, but the call answered {outcome!r}")


#: The arguments of `acquire` itself; the others make the gate.
CALL = ("wait", "lock_id", "execution_id", "workflow_id", "workflow_name")


def wish(name: Any, kind: str, options: dict[str, Any]) -> dict[str, Any]:
    call = {key: options.pop(key) for key in CALL if key in options}
    return {"name": name, "kind": kind, "options": options, "call": call}


class Actor(ABC):
    """Does one thing at a time, in the order asked. While it waits for a lock it does nothing else."""

    @abstractmethod
    async def do(self, verb: str, **args: Any) -> Any:
        """Carry out one verb of `Hands`. Raises Failure."""

    async def acquire(self, name: Any, kind: str = "lock", **options: Any) -> Grant:
        """`kind`: lock, semaphore (with permits=), read or write. Options are the API's own."""
        grant: Grant = await self.do("acquire", **wish(name, kind, options))
        return grant

    async def try_acquire(self, name: Any, kind: str = "lock", **options: Any) -> Grant | None:
        grant: Grant | None = await self.do("try_acquire", **wish(name, kind, options))
        return grant

    async def release(self, grant: Grant) -> Released:
        released: Released = await self.do("release", handle=grant.handle)
        return released

    async def renew(self, grant: Grant, ttl: Any = None) -> Grant:
        renewed: Grant = await self.do("renew", handle=grant.handle, ttl=ttl)
        return renewed

    async def check(self, grant: Grant) -> None:
        await self.do("check", handle=grant.handle)

    async def is_lost(self, grant: Grant) -> bool:
        return bool(await self.do("is_lost", handle=grant.handle))

    async def inspect(self, name: Any) -> Inspection:
        seen: Inspection = await self.do("inspect", name=name)
        return seen

    async def list_all(self, prefix: Any = "") -> list[Inspection]:
        found: list[Inspection] = await self.do("list", prefix=prefix)
        return found

    async def release_by_id(self, name: Any, lock_id: Any) -> Released:
        released: Released = await self.do("release_by_id", name=name, lock_id=lock_id)
        return released

    async def force_release(self, name: Any) -> ForceReleased:
        forced: ForceReleased = await self.do("force_release", name=name)
        return forced

    async def cleanup(self, execution_id: Any, scopes: Any = None) -> Cleanup:
        cleaned: Cleanup = await self.do("cleanup", execution_id=execution_id, scopes=scopes)
        return cleaned

    # Only an actor in a process of its own can do these.

    def kill(self) -> None:
        """Die at once, without a word to anybody."""
        raise NotImplementedError("this driver's actors cannot die; use a ProcessDriver")

    def pause(self) -> None:
        """Stand still, as a process does that the machine has stopped."""
        raise NotImplementedError("this driver's actors cannot stand still; use a ProcessDriver")

    def resume(self) -> None:
        """Go on."""
        raise NotImplementedError("this driver's actors cannot stand still; use a ProcessDriver")
