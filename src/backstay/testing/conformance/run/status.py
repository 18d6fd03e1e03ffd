"""The status of a finished run: every row of the table in `job/run_status.py`."""

from __future__ import annotations

from itertools import combinations_with_replacement

from backstay.testing.conformance.job.bench import Bench, StoreClient, store_test
from backstay.testing.conformance.run.cases import StartedRun, begin, default_finish, run_jobs

#: The ways in which a job may end, with the status of a run whose only job ends so.
ENDINGS = {
    "complete": "success",
    "skip": "success",
    "fail, tolerated": "success",
    "cancel": "cancelled",
    "cancelled by a caller": "cancelled",
    "fail": "failure",
}
#: The run has the first of these statuses that one of its jobs has.
PRECEDENCE = ("failure", "cancelled", "success")


def options_of(ending: str) -> dict[str, bool]:
    return {"soft": True} if ending == "fail, tolerated" else {}


async def end_job(client: StoreClient, run: StartedRun, name: str, ending: str) -> None:
    """End the pending job `name`, the next that can be claimed, in one of the ENDINGS."""
    if ending == "cancelled by a caller":
        assert await client.call("cancel", run.ids[name], "not this one") == "cancelled"
        return
    job = await client.take()
    assert job.id == run.ids[name]
    await client.exchange([default_finish(job, ending.partition(",")[0])])


class RunStatusTests:
    """A failure counts before a cancellation, a cancellation before success."""

    @store_test
    async def test_a_finished_run_has_the_status_of_the_table(self, bench: Bench) -> None:
        """Every combination of up to two endings, in both orders, and of three equal ones."""
        (one,) = await bench.clients(1)
        several = [*combinations_with_replacement(ENDINGS, 1), *combinations_with_replacement(ENDINGS, 2)]
        several += [ends[::-1] for ends in several if len(set(ends)) > 1] + [(ending,) * 3 for ending in ENDINGS]
        for endings in several:
            run = await begin(one, {str(nth): options_of(ending) for nth, ending in enumerate(endings)})
            for nth, ending in enumerate(endings):
                assert await run.status() in ("queued", "running")
                await end_job(one, run, str(nth), ending)
            found = {ENDINGS[ending] for ending in endings}
            expected = next(status for status in PRECEDENCE if status in found)
            assert (await run.audit()).status == expected, endings

    @store_test
    async def test_a_run_without_jobs_is_a_success(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        assert (await (await begin(one, [])).audit()).status == "success"

    @store_test
    async def test_a_cancelled_run_is_cancelled_unless_a_job_had_failed(self, bench: Bench) -> None:
        """One job ends before the run is cancelled; another runs, and completes or fails afterwards."""
        one, other = await bench.clients(2)
        for ending, alone in ENDINGS.items():
            for late in ("complete", "fail", "cancel", "skip"):
                run = await begin(one, {"early": options_of(ending), "late": {}, "blocked": {"after": "late"}})
                await end_job(one, run, "early", ending)
                job = await one.take()
                await other.call("cancel_run", run.id, "enough")
                await one.exchange([default_finish(job, late)])
                expected = "failure" if alone == "failure" else "cancelled"
                assert (await run.audit()).status == expected, (ending, late)

    @store_test
    async def test_a_cancelled_run_whose_jobs_all_completed_is_cancelled(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, ["a"])
        job = await one.take()
        await other.call("cancel_run", run.id, "enough")
        await one.exchange([default_finish(job)])
        seen = await run.audit()
        assert (seen.status, seen.counts) == ("cancelled", {"completed": 1})

    @store_test
    async def test_a_retry_does_not_make_a_success_of_a_run_with_cancelled_jobs(self, bench: Bench) -> None:
        """All jobs of a cancelled run are retried one by one. Until the last has completed, the run ends cancelled."""
        (one,) = await bench.clients(1)
        names = ["a", "b", "c"]
        run = await begin(one, names)
        await one.call("cancel_run", run.id, "enough")
        for nth, name in enumerate(names, 1):
            assert await one.call("trigger", run.ids[name]) == "pending"
            assert (await run.audit()).status == "running"
            assert await run_jobs(one) == [name]
            seen = await run.audit()
            assert seen.status == ("success" if nth == len(names) else "cancelled"), name
            assert not seen.cancel_requested

    @store_test
    async def test_a_retried_job_counts_with_its_last_outcome(self, bench: Bench) -> None:
        """Two jobs end in each pair of endings. Then the first is retried, in each ending."""
        (one,) = await bench.clients(1)
        retryable = [ending for ending in ENDINGS if ending != "complete"]
        for first in retryable:
            for second, alone in ENDINGS.items():
                run = await begin(one, {"first": options_of(first), "second": options_of(second)})
                await end_job(one, run, "first", first)
                await end_job(one, run, "second", second)
                for again in ("fail", "cancel", "complete"):
                    if (await run.states())["first"] == "completed":
                        break
                    assert await one.call("trigger", run.ids["first"]) == "pending"
                    await end_job(one, run, "first", again)
                    tolerated = again == "fail" and first == "fail, tolerated"
                    found = {ENDINGS["fail, tolerated" if tolerated else again], alone}
                    expected = next(status for status in PRECEDENCE if status in found)
                    assert (await run.audit()).status == expected, (first, second, again)

    @store_test
    async def test_a_rerun_of_a_failed_and_cancelled_run_may_succeed(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, {"bad": {}, "stopped": {}, "then": {"after": "stopped"}})
        await end_job(one, run, "bad", "fail")
        await one.call("cancel_run", run.id, "enough")
        assert (await run.audit()).status == "failure"
        await one.call("rerun_failed", run.id)
        await run_jobs(one)
        assert (await run.audit()).status == "success"
