"""What stands around every job: on its way in, and around each attempt."""

from __future__ import annotations

import pytest
from on_a_loop import on_a_loop

import backstay
from backstay import JobCancelled, Middleware, Tracing, current_job
from backstay.job.api.retry import Cancel
from backstay.testing.jobs import drain
from backstay.testing.waiting import WITHIN


class Noting(Middleware):
    def __init__(self, name, notes):
        self.name, self.notes = name, notes

    def enqueueing(self, type, trace):  # noqa: A002 - what it is called everywhere
        trace[self.name] = type

    async def attempt(self, ctx, call_next):
        self.notes.append(f"{self.name} before {ctx.type}")
        answer = await call_next()
        self.notes.append(f"{self.name} after {answer}")
        return answer


@on_a_loop
async def test_the_first_one_used_is_the_outermost():
    async with backstay.Backstay("memory://") as stay:
        notes = []
        stay.use(Noting("outer", notes))
        stay.use(Noting("inner", notes))

        @stay.job()
        def add(a: int, b: int) -> int:
            notes.append("handler")
            return a + b

        handle = await add.enqueue(1, 2)
        await drain(stay)
        assert await handle.result(WITHIN) == 3
        assert notes == ["outer before add", "inner before add", "handler", "inner after 3", "outer after 3"]


@on_a_loop
async def test_what_middleware_puts_in_arrives_with_the_job():
    async with backstay.Backstay("memory://") as stay:
        stay.use(Noting("tenant", []))

        @stay.job()
        async def look() -> dict[str, str]:
            return current_job().trace

        handle = await look.enqueue()
        await drain(stay)
        assert await handle.result(WITHIN) == {"tenant": "look"}


@on_a_loop
async def test_middleware_may_decide_otherwise():
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
async def test_an_attempt_belongs_to_the_trace_of_who_enqueued_it():
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


class Careless(Middleware):
    def enqueueing(self, type, trace):  # noqa: A002 - what it is called everywhere
        trace["tenant"] = 5


@on_a_loop
async def test_what_no_worker_could_read_is_refused_when_it_is_enqueued():
    async with backstay.Backstay("memory://") as stay:
        stay.use(Careless())

        @stay.job()
        async def work() -> None: ...

        with pytest.raises(backstay.ConfigError, match=r"Careless.enqueueing: .* trace\['tenant'\] is 5"):
            await work.enqueue()
        assert await stay.jobs.list() == []
