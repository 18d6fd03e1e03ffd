"""What may stand around every job: when it is enqueued, and around each attempt on a worker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

from backstay.errors import ConfigError
from backstay.runtime.serialization import storable

if TYPE_CHECKING:
    from backstay.job.api.context import JobContext


class Middleware:
    """Override what you need, then `stay.use(Yours())`. The first one used is the outermost."""

    def enqueueing(self, type: str, trace: dict[str, str]) -> None:  # noqa: A002 - what it is called everywhere
        """A job of this type is about to be enqueued. What is put into `trace` travels with it: short text by name."""

    async def attempt(self, ctx: JobContext, call_next: Callable[[], Awaitable[Any]]) -> Any:
        """Around one attempt, on the worker's event loop. Await `call_next()` once and return what it answers; raise,
        or return an Outcome, to decide otherwise. Must not block.
        """
        return await call_next()


def check_trace(trace: dict[str, str], layer: Middleware) -> None:
    """Raises ConfigError, which names the middleware that put in what no worker could read."""
    for name, value in cast("dict[object, object]", trace).items():
        for text in (name, value):
            if not isinstance(text, str) or storable(text) != text:
                raise ConfigError(
                    f"{type(layer).__name__}.enqueueing: what travels with a job is text by name; trace[{name!r}] is"
                    f" {value!r}"
                )
