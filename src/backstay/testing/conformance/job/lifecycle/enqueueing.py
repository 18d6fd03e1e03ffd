"""An enqueued job is stored once, with all its fields."""

from __future__ import annotations

import asyncio
from collections import Counter

from backstay.hub.protocol import SCHEDULED, read_scheduled
from backstay.job.model import Enqueued
from backstay.testing.conformance.actor import assert_refused
from backstay.testing.conformance.job.bench import MINUTE, SECOND, Bench, store_test
from backstay.testing.waiting import soon

STRANGE = ["a", "a:b", "{a}", "}{", "*", " ", "é", "日本", "a\nb", "%", "'; --", '"', "\\", "a,b", "[1]", "null", "0"]


class JobEnqueueingTests:
    """Tests of `enqueue` and `get`."""

    @store_test
    async def test_a_job_is_stored_with_all_its_fields(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        new = bench.job(
            "resize",
            queue="images",
            args=bytes(range(256)),
            meta=b"\xc1meta",
            labels=("eu", "gpu"),
            priority=7,
            retries=3,
            run="run-1",
        )
        assert await one.enqueue(new) == [Enqueued(new.id, "pending")]
        job = await other.get(new.id)
        assert (job.id, job.type, job.queue, job.state) == (new.id, "resize", "images", "pending")
        assert (job.args, job.meta, job.labels, job.priority) == (new.args, new.meta, ("eu", "gpu"), 7)
        assert (job.attempt, job.retries, job.snoozes, job.chain, job.run) == (0, 3, 0, new.id, "run-1")
        assert (job.enqueued, job.due) == (bench.now, bench.now)
        assert (job.fence, job.worker, job.lease_until, job.started, job.finished) == (0, "", 0, 0, 0)
        assert (job.result, job.error, job.cancel_requested, job.waits_for, job.after) == (None, None, False, (), ())

    @store_test
    async def test_an_unknown_job_is_not_found(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        assert await one.call("get", bench.job().id) is None

    @store_test
    async def test_enqueue_announces_pending_jobs_if_the_store_announces(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        heard = await bench.listen(SCHEDULED)
        blocker = bench.job("blocker")
        announced = [bench.job("a"), bench.job("b"), bench.job("a")]
        unannounced = [bench.job("later", delay=MINUTE), bench.job("waits", after=(blocker.id,))]
        await one.enqueue(blocker)
        answers = await one.enqueue(*announced, *unannounced, announce=True)
        assert [answer.state for answer in answers] == ["pending"] * 3 + ["scheduled", "blocked"]
        assert {job.type for job in await other.claim(10)} == {"blocker", "a", "b"}
        await one.enqueue(bench.job("c"))
        await one.enqueue(bench.job("last"), announce=True)

        async def enough() -> bool:
            return bool(heard.payloads) and heard.payloads[-1].endswith(":last")

        if bench.announces:
            assert await soon(enough)
            kinds = Counter(read.type for text in heard.payloads if (read := read_scheduled(text)) is not None)
            assert kinds == {"a": 1, "b": 1, "last": 1}

    @store_test
    async def test_enqueueing_an_id_twice_creates_one_job(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        new = bench.job()
        await one.enqueue(new)
        assert await other.enqueue(new) == [Enqueued(new.id, "pending")]
        assert len(await one.claim(5)) == 1
        assert await other.enqueue(new) == [Enqueued(new.id, "running")]
        assert await one.claim(5) == []

    @store_test
    async def test_enqueueing_a_finished_job_again_does_not_run_it_again(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        new = bench.job()
        await one.enqueue(new)
        await one.finish(await one.take())
        assert await other.enqueue(new, bench.job()) != []
        assert (await one.take()).id != new.id
        assert await one.state(new.id) == "completed"

    @store_test
    async def test_enqueueing_many_again_creates_only_the_missing_jobs(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        asked = [bench.job() for _ in range(12)]
        await one.enqueue(*asked[:8])
        await one.finish(await one.take())
        running = await one.take()
        said = await other.enqueue(*asked)
        assert [done.id for done in said] == [job.id for job in asked]
        assert [done.state for done in said] == ["completed", "running", *["pending"] * 10]
        (queue,) = await one.call("queues")
        assert (queue.completed, queue.running, queue.pending) == (1, 1, 10)
        assert [job.id for job in await other.claim(50)] == [job.id for job in asked[2:]]
        assert await one.finish(running) == "ok"

    @store_test
    async def test_an_id_twice_in_one_batch_creates_one_job(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        new, other = bench.job(), bench.job()
        said = await one.enqueue(new, other, new)
        assert said == [Enqueued(job.id, "pending") for job in (new, other, new)]
        (queue,) = await one.call("queues")
        assert queue.pending == 2
        assert [job.id for job in await one.claim(5)] == [new.id, other.id]

    @store_test
    async def test_many_delayed_jobs_become_due_together(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        ids = await one.add_many(20, delay=SECOND, priority=1)
        (queue,) = await one.call("queues")
        assert (queue.scheduled, queue.pending) == (20, 0)
        bench.advance(SECOND - 1)
        assert await other.claim(50) == []
        bench.advance(1)
        assert [job.id for job in await other.claim(50)] == ids

    @store_test
    async def test_enqueueing_again_is_safe_after_a_blocker_was_pruned(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        blocker = await one.add(keep=SECOND)
        await one.finish(await one.take())
        new = bench.job(after=(blocker,))
        await one.enqueue(new)
        bench.advance(2 * SECOND)
        assert await other.call("prune", bench.shard, 1000) == 1
        assert await other.enqueue(new) == [Enqueued(new.id, "pending")]

    @store_test
    async def test_many_jobs_are_enqueued_in_one_call_and_keep_their_order(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        ids = await one.add_many(300)
        assert [job.id for job in await other.claim(500)] == ids

    @store_test
    async def test_an_empty_batch_is_accepted(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        assert await one.enqueue() == []

    @store_test
    async def test_a_delayed_job_becomes_due_by_the_engines_clock(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        new = bench.job(delay=10 * SECOND)
        assert await one.enqueue(new) == [Enqueued(new.id, "scheduled")]
        assert (await one.get(new.id)).due == bench.now + 10 * SECOND
        bench.advance(10 * SECOND - 1)
        assert await other.claim(5) == []
        assert await one.state(new.id) == "scheduled"
        bench.advance(1)
        assert (await other.take()).id == new.id

    @store_test
    async def test_a_due_time_may_replace_a_delay(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        later = await one.add(due=bench.now + MINUTE, delay=SECOND)
        past = await one.add(due=bench.now - MINUTE)
        assert await one.state(later) == "scheduled"
        assert [job.id for job in await one.claim(5)] == [past]
        bench.advance(MINUTE)
        assert (await one.take()).id == later

    @store_test
    async def test_one_invalid_job_rejects_the_whole_batch(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        good, bad, late = bench.job(), bench.job(after=(bench.job().id,)), bench.job()
        await assert_refused(one.enqueue(good, bad, late), "ConfigError")
        for new in (good, bad, late):
            assert await one.call("get", new.id) is None
        assert await one.claim(5) == []
        assert await one.call("list_jobs") == []

    @store_test
    async def test_names_with_special_characters_do_not_collide(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        made: dict[str, str] = {}
        for word in STRANGE:
            made[word] = await one.add(word, queue=word, labels=(word,), run=word)
        for word in STRANGE:
            (job,) = await other.claim(5, queues=[[word]], labels=[word])
            assert (job.id, job.type, job.queue, job.labels, job.run) == (made[word], word, word, (word,), word)
            assert await other.finish(job, result=word.encode()) == "ok"
        assert {queue.name for queue in await one.call("queues")} == set(STRANGE)

    @store_test
    async def test_many_callers_at_once_lose_nothing(self, bench: Bench) -> None:
        clients = await bench.clients(4)
        made = await asyncio.gather(*[client.add_many(20) for client in clients for _ in range(5)])
        taken = [job.id for job in await clients[0].claim(1000)]
        assert sorted(taken) == sorted(id_ for ids in made for id_ in ids)
