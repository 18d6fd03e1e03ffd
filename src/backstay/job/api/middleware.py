"""Middleware: hooks that run when a job is enqueued and around each attempt on a worker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

from backstay.errors import ConfigError
from backstay.runtime.serialization import escape_surrogates
from backstay.runtime.services import Service

if TYPE_CHECKING:
    from backstay.job.api.context import JobContext


class Middleware:
    """Base class of middleware: override what you need, then `stay.use(Yours())`. The first one added is outermost."""

    def enqueueing(self, type: str, trace: dict[str, str]) -> None:  # noqa: A002 - the name used everywhere
        """Called before a job of this type is enqueued. Short strings added to `trace` travel with the job."""

    async def attempt(self, ctx: JobContext, call_next: Callable[[], Awaitable[Any]]) -> Any:
        """Wraps one attempt, on the worker's event loop. Await `call_next()` once and return its value; raise, or
        return an Outcome, to change the outcome. It must not block the event loop.
        """
        return await call_next()


#: The middleware added by `stay.use`, outermost first.
MIDDLEWARE: Service[list[Middleware]] = Service("list of middleware", lambda _: [], survives_fork=True)


def check_trace(trace: dict[str, str], layer: Middleware) -> None:
    """Check the entries that a middleware added. Raises ConfigError, which names the middleware."""
    for name, value in cast("dict[object, object]", trace).items():
        for text in (name, value):
            if not isinstance(text, str) or escape_surrogates(text) != text:
                raise ConfigError(
                    f"{type(layer).__name__}.enqueueing: trace must hold strings by name; trace[{name!r}] is {value!r}"
                )
