"""Paused queues: their jobs are not claimed; running jobs, enqueues and other queues are not affected."""

from __future__ import annotations

from backstay.testing.conformance.job.bench import MINUTE, Bench, store_test


class JobPausingTests:
    """Tests of `pause`."""

    @store_test
    async def test_a_paused_queue_yields_no_job_and_hides_no_other_queue(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        await one.add_many(3, queue="a", priority=9)
        b = await one.add(queue="b")
        await other.call("pause", "a", paused=True)
        assert [job.id for job in await one.claim(10, queues=[["a", "b"]])] == [b]
        assert await one.claim(10, queues=[["a"]]) == []

    @store_test
    async def test_running_jobs_of_a_paused_queue_continue(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        await one.add_many(2)
        job = (await one.claim(1))[0]
        await other.call("pause", "default", paused=True)
        assert await one.renew(job) == ["ok"]
        assert await one.finish(job, result=b"done") == "ok"
        assert await one.claim(5) == []

    @store_test
    async def test_a_paused_queue_takes_in_jobs_and_makes_them_due(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        await one.call("pause", "default", paused=True)
        now, later = await one.add(), await one.add(delay=MINUTE)
        bench.advance(MINUTE)
        assert await other.claim(5) == []
        assert (await one.state(now), await one.state(later)) == ("pending", "pending")
        await other.call("pause", "default", paused=False)
        assert [job.id for job in await other.claim(5)] == [now, later]

    @store_test
    async def test_pausing_twice_and_resuming_twice_is_safe(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        await one.add(queue="q")
        for client in (one, other):
            await client.call("pause", "q", paused=True)
        (queue,) = await one.call("queues")
        assert (queue.name, queue.paused, queue.pending) == ("q", True, 1)
        for client in (one, other):
            await client.call("pause", "q", paused=False)
        (queue,) = await one.call("queues")
        assert not queue.paused
        assert len(await one.claim(5, queues=[["q"]])) == 1
