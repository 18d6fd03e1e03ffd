"""Limits for async code: `await stay.limit("api", "100/minute").hit("user:7")`."""

from __future__ import annotations

import builtins
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from backstay.errors import Decision, RateLimited
from backstay.interop.n8n_wire.option import Wire
from backstay.limit import admin, flows
from backstay.limit.options import ALL, BaseLimit, BaseLimitDoor, name_of, patience
from backstay.limit.spec import ALGORITHM
from backstay.limit.view import Use
from backstay.policy import OnUnavailable
from backstay.runtime.core import Core
from backstay.runtime.validation import Duration, Template

F = TypeVar("F", bound=Callable[..., Any])


class Limit(BaseLimit):
    """Hit, peek, wait, refund, reset: each key has its own count."""

    __slots__ = ()

    def hit(self, key: str | None = None, cost: int = 1) -> Coroutine[Any, Any, Decision]:
        """Take `cost` if there is room. A denied hit takes nothing (with wire="n8n" it counts, too)."""
        return flows.hit(self._core, self.spec, self._key(key), cost)

    async def peek(self, key: str | None = None, cost: int = 1) -> Decision:
        """What a hit would hear now, without taking anything."""
        return await flows.peek(self._core, self.spec, self._key(key), cost)

    async def wait(self, key: str, cost: int = 1, *, timeout: Duration | None = None) -> Decision:
        """Take the next free place, in order of arrival, and sleep until it comes. RateLimited, at once, when that is
        more than `timeout` seconds away. Cancelled meanwhile, the place is given back.
        """
        return await flows.wait(self._core, self.spec, key, cost, patience(timeout))

    async def refund(self, key: str, cost: int = 1) -> None:
        """Give back what was taken and not used."""
        await flows.refund(self._core, self.spec, key, cost)

    async def reset(self, key: str | None = None) -> None:
        """Forget what this key has taken."""
        await flows.reset_limit(self._core, self.spec, self._key(key))


class Limits:
    """Look at limits, and set right what went wrong."""

    __slots__ = ("_core",)

    def __init__(self, core: Core) -> None:
        self._core = core

    async def list(self, name: str = "") -> builtins.list[Use]:
        """Who has taken how much, of one limit or of all. On Redis this is a SCAN of the whole key space."""
        return await admin.list_uses(self._core, name)

    async def reset(self, name: str, key: str) -> int:
        """Forget what a key has taken of a limit, whatever its rates; answers how many records that were."""
        return await admin.reset_key(self._core, name, key)


class LimitDoor(BaseLimitDoor[Limit]):
    """The doors of an async Backstay to its limits."""

    _limit_type = Limit

    @property
    def limits(self) -> Limits:
        """Look at limits, reset keys."""
        return Limits(self._core)

    def limited(
        self,
        *rates: str,
        key: str = ALL,
        name: str | None = None,
        cost: int = 1,
        wait: Duration | None = None,
        algorithm: str = ALGORITHM,
        burst: int | None = None,
        on_unavailable: OnUnavailable | None = None,
        wire: Wire = "backstay",
    ) -> Callable[[F], F]:
        """Call a function so often at most: `@stay.limited("100/minute", key="{user_id}")`. Async or not.

        RateLimited when it is too often, at once or (wait: seconds) when its turn is further away than that. key: from
        the arguments; without one all calls count together. name: the limit's (the function's).
        """

        def decorate(function: F) -> F:
            if not inspect.iscoroutinefunction(function):
                return cast(
                    "F",
                    self._blocking().limited(
                        *rates,
                        key=key,
                        name=name,
                        cost=cost,
                        wait=wait,
                        algorithm=algorithm,
                        burst=burst,
                        on_unavailable=on_unavailable,
                        wire=wire,
                    )(function),
                )
            template = Template(key, function)
            limit = self.limit(
                name or name_of(function),
                *rates,
                algorithm=algorithm,
                burst=burst,
                on_unavailable=on_unavailable,
                wire=wire,
            )
            limit.spec.cost(cost)

            @functools.wraps(function)
            async def wrapper(*args: Any, **kwargs: Any) -> Any:
                scope = template.key(args, kwargs)
                if wait is not None:
                    await limit.wait(scope, cost, timeout=wait)
                else:
                    decision = await limit.hit(scope, cost)
                    if not decision.allowed:
                        raise RateLimited(decision, name=limit.name)
                return await function(*args, **kwargs)

            return cast("F", wrapper)

        return decorate

    def _blocking(self) -> Any:
        """The blocking API over this one's engine, for functions that are not async."""
        raise NotImplementedError
