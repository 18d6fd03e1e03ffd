"""What limits have in common in both APIs: checked options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from backstay.interop.n8n_wire.option import Wire, is_n8n
from backstay.limit.spec import ALGORITHM, Spec, n8n_spec, spec
from backstay.policy import OnUnavailable
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.validation import Duration

LimitT = TypeVar("LimitT")

#: The key of a decorated function that counts all its calls together.
ALL = "all"


class BaseLimit:
    """A named limit seen by one caller. Cheap: make one where you need it."""

    __slots__ = ("_core", "spec")

    def __init__(self, core: Core, spec: Spec) -> None:
        self._core = core
        self.spec = spec

    @property
    def name(self) -> str:
        return self.spec.name

    def _key(self, key: str | None) -> str:
        """n8n knows one name where a limit has two: without a key, the limit's own. Elsewhere a key is needed."""
        return key if key is not None else self.spec.name if self.spec.n8n else ""

    def __repr__(self) -> str:
        rates = ", ".join(map(str, self.spec.rates))
        return f"<{type(self).__name__} {self.name!r} {rates} {self.spec.algorithm}>"


class BaseLimitDoor(Generic[LimitT]):
    """The door to limits."""

    _core: Core
    _limit_type: Callable[[Core, Spec], LimitT]

    def limit(
        self,
        name: str,
        *rates: str,
        algorithm: str = ALGORITHM,
        burst: int | None = None,
        on_unavailable: OnUnavailable | None = None,
        wire: Wire = "backstay",
    ) -> LimitT:
        """At most so much in a time, for each key: `stay.limit("api", "10/second", "1000/hour")`. All rates or none.

        algorithm: "sliding" (exact), "fixed", "sliding-counter", "token-bucket" or "gcra". burst: with the last two,
        the most at once (the limit). on_unavailable: "deny", "allow" or "local" while the engine is away (policy).
        wire: "n8n" counts with n8n's rate_limit_check (Redis only): one rate, fixed windows, every hit counts, denied
        or not; the key of a hit is n8n's scope (without one: the limit's name). No wait, no refund.
        """
        core = self._core
        if is_n8n(core.engine, wire):
            shared = n8n_spec(name, rates, algorithm, burst, on_unavailable, core.policy.limit_on_unavailable)
            return self._limit_type(core, shared)
        mode = core.policy.limit_on_unavailable if on_unavailable is None else on_unavailable
        return self._limit_type(core, spec(name, rates, algorithm, burst, mode))


def patience(timeout: Duration | None) -> float | None:
    return None if timeout is None else validation.seconds(timeout, "timeout", zero=True)


def name_of(function: Callable[..., Any]) -> str:
    """The name of the limit around a function."""
    return f"{function.__module__}.{function.__qualname__}"
