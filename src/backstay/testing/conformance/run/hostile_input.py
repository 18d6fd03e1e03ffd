"""Texts that look like syntax of the store (SQL, globs, separators), and large sizes."""

from __future__ import annotations

from backstay.job.model import Failure
from backstay.testing.conformance.job.bench import Bench, store_test
from backstay.testing.conformance.run.cases import begin, default_finish, run_jobs

TEXTS = [
    "é 日本 \U0001f600",
    "\x00\x01\x1b[31m",
    "a\nb\r\n\u2028\u2029",
    "'; DROP TABLE runs; --",
    "{other}:s0:run",
    "%s %(x)s {} {0} $1 :name ?",
    '"\\"',
    "a" * 5000,
    " ",
    "*[?",
    "\ufeff\u202e",
]


class RunHostileInputTests:
    """Any text is returned unchanged and is never interpreted."""

    @store_test
    async def test_names_of_workflows_and_documents_come_back_whole(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        for text in TEXTS:
            run = await begin(one, ["a"], workflow=text, doc=text.encode())
            seen = await other.call("get_run", run.id)
            assert (seen.workflow, seen.doc) == (text, text.encode())
            assert [each.id for each in await other.call("list_runs", workflow=text)] == [run.id]
            await run_jobs(one)
            assert [each.id for each in await other.call("list_runs", workflow=text, status="success")] == [run.id]
            await run.audit()

    @store_test
    async def test_reasons_come_back_whole(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        for text in ["", *TEXTS]:
            run = await begin(one, ["a", "b"])
            job = await one.take()
            await other.call("cancel_run", run.id, text)
            await one.exchange([default_finish(job, "cancel")])
            seen = await run.audit()
            assert (seen.status, seen.reason, seen.cancel_requested) == ("cancelled", text, True)
            whys = {event.why for event in await run.events() if event.kind in ("run_cancelling", "cancelled")}
            assert whys == {text}

    @store_test
    async def test_failures_come_back_whole(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        for text in TEXTS:
            run = await begin(one, ["a"])
            await one.exchange([default_finish(await one.take(), "fail", error=Failure("E", text, trace=text))])
            (job,) = await run.jobs()
            assert job.error is not None
            assert (job.error.message, job.error.trace) == (text, text)
            assert [event.why for event in await run.events() if event.kind == "failed"] == [text]

    @store_test
    async def test_types_of_jobs_and_outputs_come_back_whole(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, TEXTS)
        jobs = await one.claim(100)
        assert [job.type for job in jobs] == TEXTS
        await one.exchange([default_finish(job, outputs={job.type: job.type}) for job in jobs])
        for job in jobs:
            assert await other.call("get_outputs", job.id) == {job.type: job.type}
        assert (await run.audit()).status == "success"

    @store_test
    async def test_invalid_ids_find_nothing(self, bench: Bench) -> None:
        one, _ = await bench.clients(2)
        await begin(one, ["a"])
        shard = bench.new_id().partition("-")[0]
        for text in TEXTS[:6]:
            id_ = f"{shard}-{text}"
            for verb, *more in (("get_run",), ("cancel_run", "why"), ("rerun_failed",)):
                assert await one.call(verb, id_, *more) is None
            assert await one.call("run_events", id_) == []
            assert await one.call("list_artifacts", id_) == []

    @store_test
    async def test_a_large_document_is_returned_unchanged(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        large = bytes(range(256)) * 4096
        run = await begin(one, ["a"], doc=large)
        await run_jobs(one)
        assert (await other.call("get_run", run.id)).doc == large
        await run.audit()

    @store_test
    async def test_numbers_are_exact(self, bench: Bench) -> None:
        """Times in µs have sixteen digits; Lua's `tostring`, for example, keeps fourteen."""
        one, other = await bench.clients(2)
        run = await begin(one, ["a"], version=2**31 - 1, timeout=7, keep=2**53 - 1 - bench.now)
        assert (await run.run()).version == 2**31 - 1
        begun = bench.now
        for _ in range(3):
            bench.advance(1)
            await one.exchange([default_finish(await one.take(), "release")])
        bench.advance(1)
        await run_jobs(other)
        assert [event.at - begun for event in await run.events()] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 4]
        seen = await run.audit()
        assert (seen.created, seen.started, seen.finished, seen.deadline) == (begun, begun + 1, begun + 4, begun + 7)
