"""Invalid arguments raise an error and change nothing; unusual but valid ones work."""

from __future__ import annotations

from backstay.testing.conformance.actor import assert_refused
from backstay.testing.conformance.job.bench import LEASE, MINUTE, Bench, store_test


class JobBadInputTests:
    """Tests of invalid arguments, and of the largest sizes that must work."""

    @store_test
    async def test_only_final_jobs_can_be_purged(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        ids = [await one.add(), await one.add(delay=MINUTE)]
        for state in ("pending", "scheduled", "running", "blocked"):
            failure = await assert_refused(one.call("purge", state), "ConfigError")
            assert state in failure.message
        assert [await one.state(id_) for id_ in ids] == ["pending", "scheduled"]

    @store_test
    async def test_large_arguments_results_and_logs_come_back_whole(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        large = bytes(range(256)) * 2048
        id_ = await one.add(args=large, meta=large[:70_000])
        job = await other.take()
        assert (job.args, job.meta) == (large, large[:70_000])
        text = "é" * 100_000
        assert await other.call("append_log", id_, job.fence, [(bench.now, "stdout", text)], 1) is True
        assert await other.call("put_outputs", id_, job.fence, {"text": text}) is True
        assert await other.finish(job, result=large) == "ok"
        assert (await one.get(id_)).result == large
        assert (await one.call("read_log", id_))[0].data == text
        assert await one.call("get_outputs", id_) == {"text": text}

    @store_test
    async def test_a_job_of_another_namespace_is_not_visible(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        for verb, *more in (("get",), ("watch",), ("trigger",), ("cancel", "why")):
            assert await one.call(verb, bench.job().id, *more) is None, verb

    @store_test
    async def test_thousands_of_jobs_pass_in_single_exchanges(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        ids = await one.add_many(3000)
        jobs = await one.claim(3000)
        assert [job.id for job in jobs] == ids
        assert await one.renew(*jobs) == ["ok"] * 3000
        from backstay.testing.conformance.job.bench import build_finish

        reply = await one.exchange([build_finish(job, result=b"r") for job in jobs])
        assert reply.verdicts == ("ok",) * 3000
        (queue,) = await one.call("queues")
        assert queue.completed == 3000

    @store_test
    async def test_a_very_long_backlog_of_due_jobs_is_worked_off(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        ids = await one.add_many(2500, delay=MINUTE)
        bench.advance(MINUTE)
        taken: list[str] = []
        while jobs := await one.claim(700, lease=100 * LEASE):
            taken += [job.id for job in jobs]
        assert taken == ids
