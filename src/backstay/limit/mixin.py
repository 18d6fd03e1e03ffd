"""The rate limit methods of a Backstay, async and blocking: `stay.limit`, `stay.limits`, `@stay.limited`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

from backstay.errors import ConfigError, RateLimited
from backstay.limit.api import Limit, Limits
from backstay.limit.blocking import Limit as BlockingLimit
from backstay.limit.blocking import Limits as BlockingLimits
from backstay.limit.options import ALL, BaseLimit, name_of
from backstay.limit.spec import ALGORITHM, LimitSpec, WiredSpec, spec
from backstay.policy import OnUnavailable
from backstay.runtime.core import Core
from backstay.runtime.validation import Duration, KeyTemplate, Wire

F = TypeVar("F", bound=Callable[..., Any])
LimitT = TypeVar("LimitT", bound=BaseLimit)


class BaseLimitsMixin(Generic[LimitT]):
    """`stay.limit` of both APIs."""

    _core: Core
    _limit_type: Callable[[Core, LimitSpec], LimitT]
    #: Builds the options of a limit over a wire. The assembly supplies it.
    _wired_spec: WiredSpec

    def limit(
        self,
        name: str,
        *rates: str,
        algorithm: str = ALGORITHM,
        burst: int | None = None,
        on_unavailable: OnUnavailable | None = None,
        wire: Wire = "backstay",
    ) -> LimitT:
        """Return a rate limit: `stay.limit("api", "10/second", "1000/hour")`. A hit is charged to all rates or to none.

        algorithm: "sliding" (exact, the default), "fixed", "sliding-counter", "token-bucket" or "gcra".
        burst: For "token-bucket" and "gcra": the most hits at once. Default: the limit.
        on_unavailable: What happens to hits while the engine is unavailable: "deny", "allow", or "local" (this process
            counts them alone). Default: `limit_on_unavailable` of the policy.
        wire: "n8n" shares the count with n8n's rate_limit_check (Redis only). Then the limit has one rate and fixed
            windows, without `wait` and `refund`. Denied hits count, too. The key of a hit is n8n's scope; its default
            is the limit's name.
        """
        core = self._core
        if wire != "backstay":
            shared = self._wired_spec(core, wire, name, rates, algorithm, burst, on_unavailable)
            return self._limit_type(core, shared)
        mode = core.policy.limit_on_unavailable if on_unavailable is None else on_unavailable
        return self._limit_type(core, spec(name, rates, algorithm, burst, mode))

    def _limit_of(
        self,
        function: Callable[..., Any],
        name: str | None,
        rates: tuple[str, ...],
        cost: int,
        algorithm: str,
        burst: int | None,
        on_unavailable: OnUnavailable | None,
        wire: Wire,
    ) -> LimitT:
        """Build the limit of a function that is decorated with `limited`. Raises ConfigError if a single call, which
        charges `cost`, exceeds the limit.
        """
        limit = self.limit(
            name or name_of(function),
            *rates,
            algorithm=algorithm,
            burst=burst,
            on_unavailable=on_unavailable,
            wire=wire,
        )
        limit.spec.cost(cost)
        return limit


class LimitsMixin(BaseLimitsMixin[Limit]):
    """`stay.limit`, `stay.limits` and `@stay.limited` of an async Backstay."""

    _limit_type = Limit

    @property
    def limits(self) -> Limits:
        """Inspect rate limits and reset keys."""
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
        """Limit the calls of a function, async or not: `@stay.limited("100/minute", key="{user_id}")`.

        A call over the limit raises RateLimited.

        key: A format string over the function's arguments. Without it, all calls share one count.
        name: The name of the limit. Default: the function's name.
        cost: How much each call charges. Default 1.
        wait: Seconds that a call over the limit may sleep until it is admitted. A call that would have to sleep longer
            raises at once. Default: every call over the limit raises.
        algorithm, burst, on_unavailable, wire: As in `limit`.
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
            template = KeyTemplate(key, function)
            limit = self._limit_of(function, name, rates, cost, algorithm, burst, on_unavailable, wire)

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
        """Return the blocking API over the same engine, for functions that are not async."""
        raise NotImplementedError


class BlockingLimitsMixin(BaseLimitsMixin[BlockingLimit]):
    """`stay.limit`, `stay.limits` and `@stay.limited` of a blocking Backstay."""

    _limit_type = BlockingLimit

    @property
    def limits(self) -> BlockingLimits:
        """Inspect rate limits and reset keys."""
        return BlockingLimits(self._core)

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
        """Limit the calls of a function: `@stay.limited("100/minute", key="{user_id}")`.

        A call over the limit raises RateLimited.

        key: A format string over the function's arguments. Without it, all calls share one count.
        name: The name of the limit. Default: the function's name.
        cost: How much each call charges. Default 1.
        wait: Seconds that a call over the limit may sleep until it is admitted. A call that would have to sleep longer
            raises at once. Default: every call over the limit raises.
        algorithm, burst, on_unavailable, wire: As in `limit`.
        """

        def decorate(function: F) -> F:
            if inspect.iscoroutinefunction(function):
                raise ConfigError(f"{function.__qualname__} is async: use the async Backstay's `limited`")
            template = KeyTemplate(key, function)
            limit = self._limit_of(function, name, rates, cost, algorithm, burst, on_unavailable, wire)

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
