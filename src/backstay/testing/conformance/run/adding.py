"""The finish of a job may add new jobs to the run and store outputs of the job. All of this is one transaction."""

from __future__ import annotations

from backstay.testing.conformance.job.bench import LEASE, Bench, long_store_test, store_test
from backstay.testing.conformance.run.cases import begin, default_finish, run_jobs


class RunAddingTests:
    """Tests of `Finish.adds`, `Finish.next` and `Finish.outputs`."""

    @store_test
    async def test_added_jobs_count_in_the_run(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, ["map"])
        job = await other.take()
        adds = tuple(bench.job(f"child {nth}", run=run.id) for nth in range(3))
        gather = bench.job("gather", run=run.id, chain=job.chain, after=tuple(new.id for new in adds))
        reply = await other.exchange([default_finish(job, adds=adds, next=gather)])
        assert reply.ready == {"child 0": 1, "child 1": 1, "child 2": 1}
        assert (await run.audit()).counts == {
            "pending": 3,
            "blocked": 1,
        }  # a chain counts once, by the state of its last job
        assert await one.call("check_runs", bench.shard) == []
        assert [job.id for job in await run.jobs()] == [job.id, *[new.id for new in adds], gather.id]
        children = await other.claim(5)
        await other.exchange([default_finish(child) for child in children])
        last = await other.take()
        assert (last.type, last.upstream) == ("gather", {new.id: new.type.encode() for new in adds})
        await other.exchange([default_finish(last)])
        seen = await run.audit()
        assert (seen.status, seen.counts) == ("success", {"completed": 4})

    @store_test
    async def test_added_jobs_belong_to_the_run_of_the_job_that_adds_them(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run, stranger = await begin(one, ["a"]), await begin(one, {"x": {"queue": "elsewhere"}})
        job = await other.take()
        adds = (bench.job("b"), bench.job("c", run=stranger.id))
        await other.exchange([default_finish(job, adds=adds, next=bench.job("d", chain=job.chain))])
        assert await run.states() == {"a": "completed", "b": "pending", "c": "pending", "d": "pending"}
        assert await stranger.states() == {"x": "pending"}
        for one_of in (run, stranger):
            await one_of.audit()

    @store_test
    async def test_dependents_of_a_chain_wait_for_its_next_job(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, {"map": {}, "then": {"after": "map"}})
        job = await other.take()
        adds = (bench.job("child", run=run.id),)
        gather = bench.job("gather", run=run.id, chain=job.chain, after=(adds[0].id,))
        await other.exchange([default_finish(job, adds=adds, next=gather)])
        assert await run_jobs(other) == ["child", "gather", "then"]
        assert (await run.audit()).status == "success"

    @store_test
    async def test_added_jobs_may_wait_for_one_another_and_for_others_of_the_run(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {}, "slow": {}})
        job, slow = await other.claim(2)
        first = bench.job("first", run=run.id)
        second = bench.job("second", run=run.id, after=(first.id, slow.id))
        await other.exchange([default_finish(job, adds=(first, second))])
        assert await run.states() == {"a": "completed", "slow": "running", "first": "pending", "second": "blocked"}
        await other.exchange([default_finish(slow)])
        assert await run_jobs(other) == ["first", "second"]
        assert (await run.audit()).status == "success"

    @store_test
    async def test_an_added_job_may_wait_for_a_job_that_has_ended(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, {"bad": {}, "a": {"after": "bad", "when": "all_done"}})
        await one.exchange([default_finish(await one.take(), "fail")])
        job = await one.take()
        bad = run.ids["bad"]
        adds = (
            bench.job("needs", run=run.id, after=(bad,)),
            bench.job("tells", run=run.id, after=(bad,), when="any_failure"),
            bench.job("always", run=run.id, after=(bad, job.chain), when="all_done"),
        )
        await one.exchange([default_finish(job, adds=adds)])
        states = await run.states()
        assert [states[new.type] for new in adds] == ["skipped", "pending", "pending"]
        await run_jobs(one)
        await run.audit()

    @store_test
    async def test_the_last_job_may_add_more(self, bench: Bench) -> None:
        """A run does not end when its last open job adds further jobs."""
        one, other = await bench.clients(2)
        run = await begin(one, ["0"])
        for nth in range(1, 6):
            (job,) = await other.claim(5)
            reply = await other.exchange([default_finish(job, adds=(bench.job(str(nth), run=run.id),))])
            assert reply.ready == {str(nth): 1}
            assert (await run.audit()).status == "running"
        await run_jobs(one)
        assert (await run.audit()).status == "success"
        assert (await run.event_list()).count(("run_finished", "")) == 1

    @store_test
    async def test_a_chain_of_a_run_ends_with_its_last_job(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, ["0"])
        job = await one.take()
        for nth in range(1, 5):
            new = bench.job(str(nth), run=run.id, chain=job.chain)
            reply = await other.exchange([default_finish(job, next=new)], want=1)
            assert (await run.audit()).status == "running"
            (job,) = reply.jobs
        await other.exchange([default_finish(job, "fail")])
        seen = await run.audit()
        assert (seen.status, seen.counts) == ("failure", {"failed": 1})

    @store_test
    async def test_only_a_completed_job_adds_jobs(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        for kind in ("fail", "retry", "snooze", "release", "cancel", "skip"):
            run = await begin(one, ["a"])
            job = await other.take()
            extras = {"adds": (bench.job("b"),), "next": bench.job("c", chain=job.chain), "outputs": {"x": "1"}}
            assert (await other.exchange([default_finish(job, kind, **extras)])).verdicts == ("ok",)
            assert set(await run.states()) == {"a"}, kind
            assert await one.call("get_outputs", job.id) == {}, kind
            await other.call("cancel_run", run.id, "next, please")

    @store_test
    async def test_a_stale_finish_adds_no_job(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {"retries": 1}})
        old = await one.take()
        bench.advance(LEASE)
        await other.reap()
        assert (await one.exchange([default_finish(old, adds=(bench.job("b"),), outputs={"x": "1"})])).verdicts == (
            "stale",
        )
        assert await run.states() == {"a": "pending"}
        assert await one.call("get_outputs", old.id) == {}
        await run.audit()

    @store_test
    async def test_a_repeated_finish_adds_its_jobs_once(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, ["a"])
        job = await one.take()
        command = one.command([default_finish(job, adds=(bench.job("b"), bench.job("c")))])
        await one.send(command)
        assert (await one.send(command)).verdicts == ("ok",)
        assert await run.states() == {"a": "completed", "b": "pending", "c": "pending"}
        assert sorted(await run_jobs(other)) == ["b", "c"]
        await run.audit()

    @store_test
    async def test_an_unknown_blocker_counts_as_failed(self, bench: Bench) -> None:
        """If an added job names a blocker that does not exist, the exchange is not refused, because it also contains
        the finishes of other jobs. The added job is treated as if the blocker had failed.
        """
        one, other = await bench.clients(2)
        run = await begin(one, ["a", "b"])
        a, b = await one.claim(2)
        unknown = bench.new_id()
        adds = (
            bench.job("needs", after=(unknown,)),
            bench.job("tells", after=(unknown,), when="any_failure"),
            bench.job("always", after=(unknown,), when="all_done"),
        )
        new = bench.job("next", chain=b.chain, after=(unknown,))
        assert (await one.exchange([default_finish(a), default_finish(b, adds=adds, next=new)])).verdicts == (
            "ok",
            "ok",
        )
        expected = {"needs": "skipped", "tells": "pending", "always": "pending", "next": "skipped"}
        assert await run.states() == {"a": "completed", "b": "completed", **expected}
        assert [job.upstream for job in await other.claim(5)] == [{unknown: None}] * 2
        await run.audit()

    @store_test
    async def test_a_job_without_a_run_may_add_jobs(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        id_ = await one.add()
        dependent = await one.add("then", after=(id_,))
        job = await one.take()
        new = bench.job("b")
        reply = await one.exchange([default_finish(job, adds=(new,))])
        assert reply.ready == {"b": 1, "then": 1}
        assert {job.id for job in await one.claim(5)} == {new.id, dependent}

    @long_store_test
    async def test_a_thousand_jobs_are_added_in_one_transaction(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, {"map": {}, "then": {"after": "map"}})
        job = await one.take()
        adds = tuple(bench.job("child", run=run.id) for _ in range(1000))
        gather = bench.job("gather", run=run.id, after=tuple(new.id for new in adds))
        await one.exchange([default_finish(job, adds=adds, next=gather)])
        order = await run_jobs(other, most=100)
        assert order == ["child"] * 1000 + ["gather", "then"]
        assert (await run.audit()).counts == {"completed": 1002}

    # ── outputs ──

    @store_test
    async def test_outputs_are_kept_with_the_end(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        await begin(one, ["a"])
        job = await one.take()
        await one.call("put_outputs", job.id, job.fence, {"early": "1", "both": "put"})
        outputs = {"both": "finish", "é\n\x00": "\u2028", "": "empty key", "empty": ""}
        await one.exchange([default_finish(job, outputs=outputs)])
        assert await other.call("get_outputs", job.id) == {"early": "1", **outputs}

    @store_test
    async def test_outputs_and_results_are_there_when_dependents_start(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        await begin(one, {"a": {}, "b": {"after": "a"}})
        job = await one.take()
        (b,) = (await one.exchange([default_finish(job, result=b"R", outputs={"k": "v"})], want=1)).jobs
        assert b.upstream == {job.id: b"R"}
        assert await other.call("get_outputs", job.id) == {"k": "v"}

    @store_test
    async def test_large_outputs_come_back_whole(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        await one.add()
        job = await one.take()
        outputs = {f"key {nth}": "é" * 1000 for nth in range(200)}
        await one.exchange([default_finish(job, outputs=outputs)])
        assert await other.call("get_outputs", job.id) == outputs
