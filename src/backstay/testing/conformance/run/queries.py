"""Listing runs: newest first, in pages, filtered by workflow and status."""

from __future__ import annotations

import msgspec

from backstay.job.model import JobResult
from backstay.testing.conformance.job.bench import Bench, long_store_test, store_test
from backstay.testing.conformance.run.cases import begin, default_finish, run_jobs, to_result


class RunQueriesTests:
    """Tests of `get_run`, `list_runs`, `list_jobs(run=…)` and `results`."""

    @store_test
    async def test_runs_are_listed_newest_first_without_their_documents(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        runs = [await begin(one, ["a"], doc=b"document") for _ in range(3)]
        listed = await other.call("list_runs")
        assert [run.id for run in listed] == [run.id for run in reversed(runs)]
        whole = [msgspec.structs.replace(await run.run(), doc=b"") for run in reversed(runs)]
        assert listed == whole
        assert (await runs[0].run()).doc == b"document"

    @store_test
    async def test_a_run_is_read_without_its_document_on_request(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, ["a"], doc=b"document")
        bare = await other.call("get_run", run.id, doc=False)
        assert bare == msgspec.structs.replace(await run.run(), doc=b"")
        assert await other.call("get_run", bench.new_id(), doc=False) is None

    @store_test
    async def test_runs_are_listed_in_pages(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        ids = [(await begin(one, [])).id for _ in range(7)][::-1]
        pages: list[list[str]] = []
        while not pages or pages[-1]:
            before = pages[-1][-1] if pages else ""
            pages.append([run.id for run in await one.call("list_runs", before=before, limit=3)])
        assert pages == [ids[:3], ids[3:6], ids[6:], []]

    @store_test
    async def test_runs_are_found_by_workflow_and_status(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        made: dict[tuple[str, str], str] = {}
        for workflow in ("build", "rele{a}se:é", "other"):
            made[workflow, "success"] = (await begin(one, [], workflow=workflow)).id
            made[workflow, "failure"] = (await begin(one, ["a"], workflow=workflow)).id
            await run_jobs(one, {"a": "fail"})
            run = await begin(one, {"a": {"queue": "elsewhere"}}, workflow=workflow)
            made[workflow, "queued"] = run.id
            run = await begin(one, ["a"], workflow=workflow)
            made[workflow, "cancelled"] = run.id
            await one.call("cancel_run", run.id, "enough")

        async def found(**which: object) -> set[str]:
            return {run.id for run in await other.call("list_runs", **which)}

        for workflow in ("build", "rele{a}se:é", "other"):
            mine = {key[1]: id_ for key, id_ in made.items() if key[0] == workflow}
            assert await found(workflow=workflow) == set(mine.values())
            for status in ("success", "failure", "queued", "cancelled"):
                assert await found(workflow=workflow, status=status) == {mine[status]}
            assert await found(workflow=workflow, status="running") == set()
        assert await found(status="failure") == {id_ for key, id_ in made.items() if key[1] == "failure"}
        assert await found(workflow="nobody's") == set()

    @store_test
    async def test_a_run_is_listed_by_the_status_it_has_now(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, ["a"])

        async def statuses() -> list[str]:
            every = ("queued", "running", "success", "failure", "cancelled")
            for status in every:
                page = await other.call("list_runs", workflow="build", status=status)
                assert page == await other.call("list_runs", status=status)
                assert all(seen.status == status for seen in page)
            return [status for status in every if await other.call("list_runs", status=status)]

        assert await statuses() == ["queued"]
        await one.exchange([default_finish(await one.take(), "release")])
        assert await statuses() == ["running"]
        await run_jobs(one, {"a": "fail"})
        assert await statuses() == ["failure"]
        await one.call("rerun_failed", run.id)
        assert await statuses() == ["running"]
        await one.call("cancel_run", run.id, "enough")
        assert await statuses() == ["cancelled"]
        await one.call("trigger", run.ids["a"])
        await run_jobs(one)
        assert await statuses() == ["success"]

    @store_test
    async def test_the_jobs_of_a_run_are_listed_by_it(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run, another = await begin(one, {"a": {}, "b": {"after": "a"}}), await begin(one, ["c"])
        await one.add()
        assert [job.type for job in await other.call("list_jobs", run=run.id)] == ["b", "a"]
        assert [job.type for job in await other.call("list_jobs", run=another.id)] == ["c"]
        assert [job.type for job in await other.call("list_jobs", run=run.id, state="blocked")] == ["b"]
        assert [job.after for job in await other.call("list_jobs", run=run.id)] == [(run.ids["a"],), ()]

    @store_test
    async def test_the_results_of_a_runs_jobs_are_read_in_pages(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(
            one, {"a": {}, "b": {"after": "a"}, "c": {}, "d": {"after": "c"}, "e": {"queue": "elsewhere"}}
        )
        await run_jobs(one, {"c": "fail"})
        jobs = await run.jobs()
        assert {job.type: job.state for job in jobs} == {
            "a": "completed",
            "b": "completed",
            "c": "failed",
            "d": "skipped",
            "e": "pending",
        }
        pages: list[list[JobResult]] = []
        while not pages or pages[-1]:
            before = pages[-1][-1].id if pages else ""
            pages.append(await other.call("results", run.id, before=before, limit=2))
        assert [len(page) for page in pages] == [2, 2, 1, 0]
        assert [one for page in pages for one in page] == [to_result(job) for job in reversed(jobs)]
        assert await other.call("results", bench.new_id()) == []
        assert await other.call("results", "") == []

    @long_store_test
    async def test_a_page_of_runs_has_at_most_its_limit(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        first = await begin(one, [], workflow="rare")
        for _ in range(300):
            await begin(one, [], workflow="often")
        assert [run.id for run in await one.call("list_runs", workflow="rare", limit=5)] == [first.id]
        assert len(await one.call("list_runs", limit=5)) == 5

    @store_test
    async def test_a_run_of_another_namespace_is_not_visible(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        await begin(one, [])
        for verb, *more in (("get_run",), ("cancel_run", "why"), ("rerun_failed",)):
            assert await one.call(verb, bench.new_id(), *more) is None, verb
