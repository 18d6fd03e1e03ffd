"""The code of a rate limit's handle that the async and the blocking API share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backstay.limit.spec import LimitSpec
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.validation import Duration

#: The default key of a decorated function: all its calls share one count.
ALL = "all"


class BaseLimit:
    """A handle to one named limit; base of the async and the blocking class. Creating one sends no request."""

    __slots__ = ("_core", "spec")

    def __init__(self, core: Core, spec: LimitSpec) -> None:
        self._core = core
        self.spec = spec

    @property
    def name(self) -> str:
        return self.spec.name

    def _default_key(self) -> str:
        """Return the key of a caller that gave none: for a limit with a `wire` the limit's name, otherwise "", which
        validation rejects.
        """
        return self.spec.name if self.spec.wire is not None else ""

    def __repr__(self) -> str:
        rates = ", ".join(map(str, self.spec.rates))
        return f"<{type(self).__name__} {self.name!r} {rates} {self.spec.algorithm}>"


def timeout_seconds(timeout: Duration | None) -> float | None:
    return None if timeout is None else validation.to_seconds(timeout, "timeout", zero=True)


def name_of(function: Callable[..., Any]) -> str:
    """Return the default name of the limit of a decorated function."""
    return f"{function.__module__}.{function.__qualname__}"
