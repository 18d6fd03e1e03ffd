"""Manual operations on jobs: cancel and retry."""

from __future__ import annotations

from backstay.job.model import Failure
from backstay.testing.conformance.job.bench import LEASE, MINUTE, Bench, store_test

OOPS = Failure("OSError", "disk full")


class JobAdminTests:
    """Tests of `cancel` and `trigger`."""

    @store_test
    async def test_a_job_that_does_not_run_is_cancelled_at_once(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        pending, scheduled = await one.add(), await one.add(delay=MINUTE)
        blocked = await one.add(after=(pending, scheduled), when="all_done")
        for id_ in (blocked, scheduled, pending):
            assert await other.call("cancel", id_, "enough of it") == "cancelled"
            seen = await one.get(id_)
            assert (seen.state, seen.finished) == ("cancelled", bench.now)
            assert seen.error is not None
            assert "enough of it" in seen.error.message
        bench.advance(MINUTE)
        assert await one.claim(10) == []
        assert (await one.exchange()).next_in is None

    @store_test
    async def test_a_running_job_is_asked_to_end(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        heard = await bench.listen("owls")
        id_ = await one.add()
        job = await one.take()
        assert await one.renew(job) == ["ok"]
        assert await other.call("cancel", id_, "enough") == "running"
        assert await heard.soon(id_)
        seen = await other.get(id_)
        assert (seen.state, seen.cancel_requested) == ("running", True)
        assert await one.renew(job) == ["cancelled"]
        assert await one.finish(job, "cancel") == "ok"
        assert await one.state(id_) == "cancelled"

    @store_test
    async def test_a_job_that_completes_after_a_cancel_request_is_completed(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        id_ = await one.add()
        job = await one.take()
        await other.call("cancel", id_, "enough")
        assert await one.finish(job, result=b"done") == "ok"
        seen = await one.get(id_)
        assert (seen.state, seen.result) == ("completed", b"done")

    @store_test
    async def test_a_final_job_is_not_cancelled(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        for kind, state in (("complete", "completed"), ("fail", "failed"), ("cancel", "cancelled")):
            id_ = await one.add()
            job = await one.take()
            await one.finish(job, kind)
            before = await one.get(id_)
            bench.advance(1)
            assert await one.call("cancel", id_, "enough") == state
            assert await one.get(id_) == before

    @store_test
    async def test_cancel_and_trigger_ignore_an_unknown_job(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        assert await one.call("cancel", bench.job().id, "enough") is None
        assert await one.call("trigger", bench.job().id) is None

    @store_test
    async def test_cancelling_a_job_skips_its_dependents(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        a = await one.add(delay=MINUTE)
        b = await one.add(after=(a,))
        c = await one.add(after=(b,))
        d = await one.add(after=(a,), when="all_done")
        await other.call("cancel", a, "enough")
        assert [await one.state(id_) for id_ in (b, c, d)] == ["skipped", "skipped", "pending"]

    @store_test
    async def test_trigger_makes_a_scheduled_job_pending(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        id_ = await one.add(delay=MINUTE)
        assert await other.call("trigger", id_) == "pending"
        assert (await one.take()).id == id_
        bench.advance(MINUTE)
        assert await other.claim(5) == []

    @store_test
    async def test_a_dead_letter_is_tried_again_with_all_its_attempts(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        id_ = await one.add(retries=1)
        for _ in range(2):
            await one.finish(await one.take(), "retry", error=OOPS)
        assert await one.state(id_) == "failed"
        bench.advance(MINUTE)
        assert await other.call("trigger", id_) == "pending"
        seen = await one.get(id_)
        assert (seen.state, seen.due, seen.finished) == ("pending", bench.now, 0)
        job = await one.take()
        assert (job.id, job.attempt) == (id_, 1)
        await one.finish(job, "retry", error=OOPS)
        assert (await one.take()).attempt == 2

    @store_test
    async def test_trigger_starts_a_delayed_retry_with_all_its_attempts(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        id_ = await one.add(retries=1)
        await one.finish(await one.take(), "retry", error=OOPS, delay=MINUTE)
        assert await other.call("trigger", id_) == "pending"
        assert (await one.take()).attempt == 1

    @store_test
    async def test_a_cancelled_job_can_be_tried_again(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        id_ = await one.add()
        await other.call("cancel", id_, "enough")
        assert await other.call("trigger", id_) == "pending"
        job = await one.take()
        assert await one.renew(job) == ["ok"]
        assert await one.finish(job) == "ok"

    @store_test
    async def test_trigger_ignores_running_waiting_and_completed_jobs(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        id_ = await one.add()
        assert await one.call("trigger", id_) == "pending"
        job = await one.take()
        assert await one.call("trigger", id_) == "running"
        blocked = await one.add(after=(id_,))
        assert await one.call("trigger", blocked) == "blocked"
        await one.finish(job)
        before = await one.get(id_)
        assert await one.call("trigger", id_) == "completed"
        assert await one.get(id_) == before
        assert [job.id for job in await one.claim(10)] == [blocked]

    @store_test
    async def test_skipped_dependents_wait_again_for_a_retried_job(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        a = await one.add("a")
        b = await one.add("b", after=(a,))
        c = await one.add("c", after=(b,))
        await one.finish(await one.take(), "fail", error=OOPS)
        assert [await one.state(id_) for id_ in (a, b, c)] == ["failed", "skipped", "skipped"]
        assert await other.call("trigger", a) == "pending"
        assert [await one.state(id_) for id_ in (a, b, c)] == ["pending", "blocked", "blocked"]
        order: list[tuple[str, dict[str, bytes | None]]] = []
        while jobs := await other.claim(5):
            (job,) = jobs
            order.append((job.id, job.upstream))
            await other.finish(job, result=job.type.encode())
        assert order == [(a, {}), (b, {a: b"a"}), (c, {b: b"b"})]

    @store_test
    async def test_dependents_skipped_at_enqueue_wait_again_for_a_retried_job(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        a = await one.add("a")
        await one.finish(await one.take(), "fail", error=OOPS)
        b = await one.add("b", after=(a,), delay=MINUTE)
        assert await one.state(b) == "skipped"
        due = (await one.get(b)).due
        bench.advance(1)
        assert await other.call("trigger", a) == "pending"
        seen = await one.get(b)
        assert (seen.state, seen.waits_for, seen.finished, seen.due) == ("blocked", (a,), 0, due)
        await one.finish(await one.take(), result=b"A")
        assert await one.state(b) == "scheduled"
        bench.advance(MINUTE)
        assert (await other.take()).upstream == {a: b"A"}

    @store_test
    async def test_a_job_skipped_because_of_two_blockers_waits_for_both(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        a, b = await one.add("a"), await one.add("b")
        dependent = await one.add("after", after=(a, b))
        for job in await one.claim(2):
            await one.finish(job, "fail", error=OOPS)
        await other.call("trigger", a)
        await one.finish(await one.take(), result=b"A")
        assert await other.state(dependent) == "skipped"
        await other.call("trigger", b)
        assert await other.state(dependent) == "blocked"
        await one.finish(await one.take(), result=b"B")
        assert (await other.take()).upstream == {a: b"A", b: b"B"}

    @store_test
    async def test_trigger_starts_a_skipped_job(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        a = await one.add()
        b = await one.add("b", after=(a,))
        await one.finish(await one.take(), "fail", error=OOPS)
        assert await other.call("trigger", b) == "pending"
        job = await one.take()
        assert (job.id, job.upstream) == (b, {a: None})

    @store_test
    async def test_a_skipped_job_waits_for_a_blocker_that_has_not_ended(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        a, slow = await one.add_many(2)
        b = await one.add("b", after=(a, slow))
        job, running = await one.claim(2)
        await one.finish(job, "fail", error=OOPS)
        assert await one.state(b) == "skipped"
        assert await other.call("trigger", b) == "blocked"
        assert await other.claim(5) == []
        await one.finish(running, result=b"slow")
        job = await other.take()
        assert (job.id, job.upstream) == (b, {a: None, slow: b"slow"})

    @store_test
    async def test_a_reaped_job_that_is_triggered_has_a_new_lease(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        id_ = await one.add(retries=0)
        old = await one.take()
        bench.advance(LEASE)
        await other.reap()
        assert await one.state(id_) == "failed"
        await other.call("trigger", id_)
        new = await other.take()
        assert await one.finish(old) == "stale"
        assert await other.finish(new) == "ok"
