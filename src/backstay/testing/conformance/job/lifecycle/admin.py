"""Manual operations on jobs: cancel and retry."""

from __future__ import annotations

from backstay.job.model import Failure
from backstay.testing.conformance.job.bench import LEASE, MINUTE, Bench, claim

OOPS = Failure("OSError", "disk full")


class Admin:
    """Tests of `cancel` and `trigger`."""

    @claim
    async def test_a_job_that_does_not_run_is_cancelled_at_once(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        pending, scheduled = await one.add(), await one.add(delay=MINUTE)
        blocked = await one.add(after=(pending, scheduled), when="all_done")
        for id_ in (blocked, scheduled, pending):
            assert await other.ask("cancel", id_, "enough of it") == "cancelled"
            seen = await one.get(id_)
            assert (seen.state, seen.finished) == ("cancelled", bench.now)
            assert seen.error is not None
            assert "enough of it" in seen.error.message
        bench.wait(MINUTE)
        assert await one.claim(10) == []
        assert (await one.exchange()).next_in is None

    @claim
    async def test_a_running_job_is_asked_to_end(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        heard = await bench.listen("owls")
        id_ = await one.add()
        job = await one.take()
        assert await one.renew(job) == ["ok"]
        assert await other.ask("cancel", id_, "enough") == "running"
        assert await heard.soon(id_)
        seen = await other.get(id_)
        assert (seen.state, seen.cancel_requested) == ("running", True)
        assert await one.renew(job) == ["cancelled"]
        assert await one.finish(job, "cancel") == "ok"
        assert await one.state(id_) == "cancelled"

    @claim
    async def test_a_job_that_completes_in_spite_of_it_has_completed(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        id_ = await one.add()
        job = await one.take()
        await other.ask("cancel", id_, "enough")
        assert await one.finish(job, result=b"done") == "ok"
        seen = await one.get(id_)
        assert (seen.state, seen.result) == ("completed", b"done")

    @claim
    async def test_a_final_job_stays_as_it_is(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        for kind, state in (("complete", "completed"), ("fail", "failed"), ("cancel", "cancelled")):
            id_ = await one.add()
            job = await one.take()
            await one.finish(job, kind)
            before = await one.get(id_)
            bench.wait(1)
            assert await one.ask("cancel", id_, "enough") == state
            assert await one.get(id_) == before

    @claim
    async def test_there_is_nothing_to_be_done_to_a_job_that_is_not(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        assert await one.ask("cancel", bench.job().id, "enough") is None
        assert await one.ask("trigger", bench.job().id) is None

    @claim
    async def test_cancelling_skips_those_who_wait_for_it(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        a = await one.add(delay=MINUTE)
        b = await one.add(after=(a,))
        c = await one.add(after=(b,))
        d = await one.add(after=(a,), when="all_done")
        await other.ask("cancel", a, "enough")
        assert [await one.state(id_) for id_ in (b, c, d)] == ["skipped", "skipped", "pending"]

    @claim
    async def test_a_scheduled_job_can_be_had_now(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        id_ = await one.add(delay=MINUTE)
        assert await other.ask("trigger", id_) == "pending"
        assert (await one.take()).id == id_
        bench.wait(MINUTE)
        assert await other.claim(5) == []

    @claim
    async def test_a_dead_letter_is_tried_again_with_all_its_attempts(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        id_ = await one.add(retries=1)
        for _ in range(2):
            await one.finish(await one.take(), "retry", error=OOPS)
        assert await one.state(id_) == "failed"
        bench.wait(MINUTE)
        assert await other.ask("trigger", id_) == "pending"
        seen = await one.get(id_)
        assert (seen.state, seen.due, seen.finished) == ("pending", bench.now, 0)
        job = await one.take()
        assert (job.id, job.attempt) == (id_, 1)
        await one.finish(job, "retry", error=OOPS)
        assert (await one.take()).attempt == 2

    @claim
    async def test_a_retry_that_waits_can_be_had_now_with_all_its_attempts(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        id_ = await one.add(retries=1)
        await one.finish(await one.take(), "retry", error=OOPS, delay=MINUTE)
        assert await other.ask("trigger", id_) == "pending"
        assert (await one.take()).attempt == 1

    @claim
    async def test_a_cancelled_job_can_be_tried_again(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        id_ = await one.add()
        await other.ask("cancel", id_, "enough")
        assert await other.ask("trigger", id_) == "pending"
        job = await one.take()
        assert await one.renew(job) == ["ok"]
        assert await one.finish(job) == "ok"

    @claim
    async def test_what_runs_waits_or_has_completed_is_left_alone(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        id_ = await one.add()
        assert await one.ask("trigger", id_) == "pending"
        job = await one.take()
        assert await one.ask("trigger", id_) == "running"
        blocked = await one.add(after=(id_,))
        assert await one.ask("trigger", blocked) == "blocked"
        await one.finish(job)
        before = await one.get(id_)
        assert await one.ask("trigger", id_) == "completed"
        assert await one.get(id_) == before
        assert [job.id for job in await one.claim(10)] == [blocked]

    @claim
    async def test_those_who_were_skipped_wait_again_for_what_is_tried_again(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        a = await one.add("a")
        b = await one.add("b", after=(a,))
        c = await one.add("c", after=(b,))
        await one.finish(await one.take(), "fail", error=OOPS)
        assert [await one.state(id_) for id_ in (a, b, c)] == ["failed", "skipped", "skipped"]
        assert await other.ask("trigger", a) == "pending"
        assert [await one.state(id_) for id_ in (a, b, c)] == ["pending", "blocked", "blocked"]
        order: list[tuple[str, dict[str, bytes | None]]] = []
        while jobs := await other.claim(5):
            (job,) = jobs
            order.append((job.id, job.upstream))
            await other.finish(job, result=job.type.encode())
        assert order == [(a, {}), (b, {a: b"a"}), (c, {b: b"b"})]

    @claim
    async def test_those_skipped_at_once_wait_again_too(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        a = await one.add("a")
        await one.finish(await one.take(), "fail", error=OOPS)
        b = await one.add("b", after=(a,), delay=MINUTE)
        assert await one.state(b) == "skipped"
        due = (await one.get(b)).due
        bench.wait(1)
        assert await other.ask("trigger", a) == "pending"
        seen = await one.get(b)
        assert (seen.state, seen.waits_for, seen.finished, seen.due) == ("blocked", (a,), 0, due)
        await one.finish(await one.take(), result=b"A")
        assert await one.state(b) == "scheduled"
        bench.wait(MINUTE)
        assert (await other.take()).upstream == {a: b"A"}

    @claim
    async def test_who_was_skipped_because_of_two_waits_for_both(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        a, b = await one.add("a"), await one.add("b")
        dependent = await one.add("after", after=(a, b))
        for job in await one.claim(2):
            await one.finish(job, "fail", error=OOPS)
        await other.ask("trigger", a)
        await one.finish(await one.take(), result=b"A")
        assert await other.state(dependent) == "skipped"
        await other.ask("trigger", b)
        assert await other.state(dependent) == "blocked"
        await one.finish(await one.take(), result=b"B")
        assert (await other.take()).upstream == {a: b"A", b: b"B"}

    @claim
    async def test_a_skipped_job_can_be_started_all_the_same(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        a = await one.add()
        b = await one.add("b", after=(a,))
        await one.finish(await one.take(), "fail", error=OOPS)
        assert await other.ask("trigger", b) == "pending"
        job = await one.take()
        assert (job.id, job.upstream) == (b, {a: None})

    @claim
    async def test_a_skipped_job_waits_for_a_blocker_that_has_not_ended(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        a, slow = await one.add_many(2)
        b = await one.add("b", after=(a, slow))
        job, running = await one.claim(2)
        await one.finish(job, "fail", error=OOPS)
        assert await one.state(b) == "skipped"
        assert await other.ask("trigger", b) == "blocked"
        assert await other.claim(5) == []
        await one.finish(running, result=b"slow")
        job = await other.take()
        assert (job.id, job.upstream) == (b, {a: None, slow: b"slow"})

    @claim
    async def test_a_triggered_job_that_was_reaped_begins_anew(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        id_ = await one.add(retries=0)
        old = await one.take()
        bench.wait(LEASE)
        await other.reap()
        assert await one.state(id_) == "failed"
        await other.ask("trigger", id_)
        new = await other.take()
        assert await one.finish(old) == "stale"
        assert await other.finish(new) == "ok"
