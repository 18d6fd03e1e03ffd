"""OpenTelemetry tracing: each attempt joins the trace of the code that enqueued its job. `stay.use(Tracing())`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from backstay.errors import ConfigError
from backstay.job.api.middleware import Middleware

if TYPE_CHECKING:
    from backstay.job.api.context import JobContext


class Tracing(Middleware):
    """Middleware for workers: a span around each attempt, a child of the caller's span. Callers need no set-up: the
    trace context travels with the job.
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
