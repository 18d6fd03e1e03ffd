"""Limits for blocking code: the same names, the same flows, any number of threads."""

from __future__ import annotations

import builtins
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from backstay.errors import ConfigError, Decision, RateLimited
from backstay.interop.n8n_wire.option import Wire
from backstay.limit import admin, flows
from backstay.limit.options import ALL, BaseLimit, BaseLimitDoor, name_of, patience
from backstay.limit.spec import ALGORITHM
from backstay.limit.view import Use
from backstay.policy import OnUnavailable
from backstay.runtime.core import Core
from backstay.runtime.flows import run
from backstay.runtime.validation import Duration, Template

F = TypeVar("F", bound=Callable[..., Any])


class Limit(BaseLimit):
    """Hit, peek, wait, refund, reset: each key has its own count."""

    __slots__ = ()

    def hit(self, key: str | None = None, cost: int = 1) -> Decision:
        """Take `cost` if there is room. A denied hit takes nothing (with wire="n8n" it counts, too)."""
        return run(flows.hit(self._core, self.spec, self._key(key), cost))

    def peek(self, key: str | None = None, cost: int = 1) -> Decision:
        """What a hit would hear now, without taking anything."""
        return run(flows.peek(self._core, self.spec, self._key(key), cost))

    def wait(self, key: str, cost: int = 1, *, timeout: Duration | None = None) -> Decision:
        """Take the next free place, in order of arrival, and sleep until it comes. RateLimited, at once, when that is
        more than `timeout` seconds away. Interrupted meanwhile, the place is given back.
        """
        return run(flows.wait(self._core, self.spec, key, cost, patience(timeout)))

    def refund(self, key: str, cost: int = 1) -> None:
        """Give back what was taken and not used."""
        run(flows.refund(self._core, self.spec, key, cost))

    def reset(self, key: str | None = None) -> None:
        """Forget what this key has taken."""
        run(flows.reset_limit(self._core, self.spec, self._key(key)))


class Limits:
    """Look at limits, and set right what went wrong."""

    __slots__ = ("_core",)

    def __init__(self, core: Core) -> None:
        self._core = core

    def list(self, name: str = "") -> builtins.list[Use]:
        """Who has taken how much, of one limit or of all. On Redis this is a SCAN of the whole key space."""
        return run(admin.list_uses(self._core, name))

    def reset(self, name: str, key: str) -> int:
        """Forget what a key has taken of a limit, whatever its rates; answers how many records that were."""
        return run(admin.reset_key(self._core, name, key))


class LimitDoor(BaseLimitDoor[Limit]):
    """The doors of a blocking Backstay to its limits."""

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
        """Call a function so often at most: `@stay.limited("100/minute", key="{user_id}")`.

        RateLimited when it is too often, at once or (wait: seconds) when its turn is further away than that. key: from
        the arguments; without one all calls count together. name: the limit's (the function's).
        """

        def decorate(function: F) -> F:
            if inspect.iscoroutinefunction(function):
                raise ConfigError(f"{function.__qualname__} is async: use the async Backstay's `limited`")
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
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                scope = template.key(args, kwargs)
                if wait is not None:
                    limit.wait(scope, cost, timeout=wait)
                else:
                    decision = limit.hit(scope, cost)
                    if not decision.allowed:
                        raise RateLimited(decision, name=limit.name)
                return function(*args, **kwargs)

            return cast("F", wrapper)

        return decorate
