"""An actor is one caller of the API under test: a task or a thread, in this or another process."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any

from backstay.gate.view import Cleanup, ForceReleased, Inspection, Released

#: The attributes of an error that an `ActorFailure` copies.
FACTS = ("name", "holder", "count", "waited", "waiters", "lock_id", "fence", "reason", "by", "retry_after", "kind")


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease that an actor acquired. `handle` identifies it within that actor."""

    handle: int
    name: str
    lock_id: str
    fence: int
    expires_at: str
    fields: dict[str, Any]


class ActorFailure(Exception):
    """An exception that an actor's call raised, as plain data (class names, message, attributes), because the actor may
    be in another process.
    """

    def __init__(self, kinds: Sequence[str], message: str, facts: dict[str, Any]) -> None:
        super().__init__(f"{kinds[0]}: {message}")
        self.kinds = tuple(kinds)
        self.message = message
        self.facts = facts

    @classmethod
    def of(cls, error: BaseException) -> ActorFailure:
        facts = {fact: getattr(error, fact) for fact in FACTS if hasattr(error, fact)}
        for fact, value in facts.items():
            if dataclasses.is_dataclass(value) and not isinstance(value, type):
                facts[fact] = dataclasses.asdict(value)
        return cls([kind.__name__ for kind in type(error).__mro__], str(error), facts)


async def assert_refused(call: Awaitable[object], kind: str) -> ActorFailure:
    """Assert that an actor's call raises an error of class `kind` or a subclass, and return it."""
    try:
        outcome = await call
    except ActorFailure as failure:
        if kind not in failure.kinds:
            raise
        return failure
    raise AssertionError(f"{kind} was expected, but the call returned {outcome!r}")


#: Options that are passed to the API's `acquire`. All other options of `Actor.acquire` are passed to `stay.lock`,
#: `stay.semaphore` or `stay.rwlock`.
CALL = ("wait", "lock_id", "execution_id", "workflow_id", "workflow_name")


def split_options(name: Any, kind: str, options: dict[str, Any]) -> dict[str, Any]:
    call = {key: options.pop(key) for key in CALL if key in options}
    return {"name": name, "kind": kind, "options": options, "call": call}


class Actor(ABC):
    """Executes its calls one at a time, in order. While it waits for a lock, later calls wait too."""

    @abstractmethod
    async def do(self, verb: str, **args: Any) -> Any:
        """Call one method of `Actions` by its name. Raises ActorFailure."""

    async def acquire(self, name: Any, kind: str = "lock", **options: Any) -> Grant:
        """Acquire a lock. `kind`: lock, semaphore (with permits=), read or write. `options` are those of the API."""
        grant: Grant = await self.do("acquire", **split_options(name, kind, options))
        return grant

    async def try_acquire(self, name: Any, kind: str = "lock", **options: Any) -> Grant | None:
        grant: Grant | None = await self.do("try_acquire", **split_options(name, kind, options))
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

    # Only actors in other processes (ProcessDriver) support these methods.

    def kill(self) -> None:
        """Kill the actor's process (SIGKILL)."""
        raise NotImplementedError("this driver's actors cannot be killed; use a ProcessDriver")

    def pause(self) -> None:
        """Suspend the actor's process (SIGSTOP)."""
        raise NotImplementedError("this driver's actors cannot stand still; use a ProcessDriver")

    def resume(self) -> None:
        """Resume the actor's process (SIGCONT)."""
        raise NotImplementedError("this driver's actors cannot stand still; use a ProcessDriver")
