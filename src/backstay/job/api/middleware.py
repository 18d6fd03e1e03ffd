"""Middleware: hooks that run when a job is enqueued and around each attempt on a worker; OpenTelemetry tracing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

from backstay.errors import ConfigError
from backstay.runtime.serialization import escape_surrogates
from backstay.runtime.services import Service

if TYPE_CHECKING:
    from backstay.job.api.context import JobContext


class Middleware:
    """Base class of middleware: override what you need, then `stay.use(Yours())`. The first one added is outermost."""

    def enqueueing(self, type: str, trace: dict[str, str]) -> None:  # noqa: A002 - the name used everywhere
        """Called before a job is enqueued. `type`: the name of its type. Short strings added to `trace` are stored with
        the job.
        """

    async def attempt(self, ctx: JobContext, call_next: Callable[[], Awaitable[Any]]) -> Any:
        """Called for each attempt, on the worker's event loop. Await `call_next()` once, which runs the handler, and
        return its value. To change the outcome, raise an exception or return Retry, Snooze or Cancel. It must not block
        the event loop.
        """
        return await call_next()


#: The middleware added by `stay.use`, outermost first.
MIDDLEWARE: Service[list[Middleware]] = Service("list of middleware", lambda _: [], survives_fork=True)


def check_trace(trace: dict[str, str], layer: Middleware) -> None:
    """Check that `trace` contains only strings (without lone surrogates) after the middleware `layer` may have added
    some. Raises ConfigError, which names the middleware.
    """
    for name, value in cast("dict[object, object]", trace).items():
        for text in (name, value):
            if not isinstance(text, str) or escape_surrogates(text) != text:
                raise ConfigError(
                    f"{type(layer).__name__}.enqueueing: trace must hold strings by name; trace[{name!r}] is {value!r}"
                )


class Tracing(Middleware):
    """Middleware for workers that traces with OpenTelemetry. It opens a span around each attempt, as a child of the
    span in which the job was enqueued. A program that only enqueues jobs does not need this middleware: if it uses
    OpenTelemetry, the trace context is stored with each job.
    """

    def __init__(self) -> None:
        if find_spec("opentelemetry") is None:
            raise ConfigError("Tracing needs OpenTelemetry: pip install 'backstay[otel]'")
        self._propagate: Any = import_module("opentelemetry.propagate")
        self._trace: Any = import_module("opentelemetry.trace")

    async def attempt(self, ctx: JobContext, call_next: Callable[[], Awaitable[Any]]) -> Any:
        facts = {
            "messaging.system": "backstay",
            "backstay.job.id": ctx.id,
            "backstay.job.attempt": ctx.attempt,
        }
        tracer = self._trace.get_tracer("backstay")
        parent = self._propagate.extract(ctx.trace)
        kind = self._trace.SpanKind.CONSUMER
        with tracer.start_as_current_span(f"job {ctx.type}", context=parent, kind=kind, attributes=facts):
            return await call_next()
