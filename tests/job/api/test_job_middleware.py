"""Job middleware: at enqueue and around each attempt."""

from __future__ import annotations

import pytest

import backstay
from backstay import JobCancelled, Middleware, Tracing, current_job
from backstay.job.api.retry import Cancel
from backstay.testing.jobs import drain
from backstay.testing.waiting import WITHIN
from support.event_loop import on_a_loop


class Recording(Middleware):
    def __init__(self, name, recorded):
        self.name, self.notes = name, recorded

    def enqueueing(self, type, trace):  # noqa: A002 - the name in Middleware
        trace[self.name] = type

    async def attempt(self, ctx, call_next):
        self.notes.append(f"{self.name} before {ctx.type}")
        answer = await call_next()
        self.notes.append(f"{self.name} after {answer}")
        return answer


@on_a_loop
async def test_the_first_middleware_used_is_the_outermost():
    async with backstay.Backstay("memory://") as stay:
        recorded = []
        stay.use(Recording("outer", recorded))
        stay.use(Recording("inner", recorded))

        @stay.job()
        def add(a: int, b: int) -> int:
            recorded.append("handler")
            return a + b

        handle = await add.enqueue(1, 2)
        await drain(stay)
        assert await handle.result(WITHIN) == 3
        assert recorded == ["outer before add", "inner before add", "handler", "inner after 3", "outer after 3"]


@on_a_loop
async def test_values_added_by_middleware_reach_the_job():
    async with backstay.Backstay("memory://") as stay:
        stay.use(Recording("tenant", []))

        @stay.job()
        async def look() -> dict[str, str]:
            return current_job().trace

        handle = await look.enqueue()
        await drain(stay)
        assert await handle.result(WITHIN) == {"tenant": "look"}


@on_a_loop
async def test_middleware_can_replace_the_outcome():
    class Closed(Middleware):
        async def attempt(self, ctx, call_next):
            return Cancel("not today")

    async with backstay.Backstay("memory://") as stay:
        stay.use(Closed())

        @stay.job()
        async def never() -> None:
            raise AssertionError

        handle = await never.enqueue()
        await drain(stay)
        with pytest.raises(JobCancelled, match="not today"):
            await handle.result(WITHIN)


@on_a_loop
async def test_an_attempt_runs_in_the_trace_of_its_enqueuer():
    trace = pytest.importorskip("opentelemetry.trace")
    async with backstay.Backstay("memory://") as stay:
        stay.use(Tracing())

        @stay.job()
        def whose() -> str:
            return f"{trace.get_current_span().get_span_context().trace_id:x}"

        context = trace.SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=trace.TraceFlags(1))
        with trace.use_span(trace.NonRecordingSpan(context)):
            handle = await whose.enqueue()
        await drain(stay)
        assert await handle.result(WITHIN) == "abc"


class InvalidTrace(Middleware):
    def enqueueing(self, type, trace):  # noqa: A002 - the name in Middleware
        trace["tenant"] = 5


@on_a_loop
async def test_an_invalid_trace_value_is_refused_at_enqueue():
    async with backstay.Backstay("memory://") as stay:
        stay.use(InvalidTrace())

        @stay.job()
        async def work() -> None: ...

        with pytest.raises(backstay.ConfigError, match=r"InvalidTrace.enqueueing: .* trace\['tenant'\] is 5"):
            await work.enqueue()
        assert await stay.jobs.list() == []
