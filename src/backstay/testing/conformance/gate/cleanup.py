"""Cleaning up the locks that a caller acquired for an execution (option `execution_id`) that has failed."""

from __future__ import annotations

from backstay.testing.conformance.actor import assert_refused
from backstay.testing.conformance.driver import Stage, driver_test
from backstay.testing.conformance.gate.cases import NAME, enter, wait_queued

FAILED = "execution-1"


class GateCleanupTests:
    """`cleanup` releases the locks with the `execution_id` of the failed execution and no others."""

    @driver_test
    async def test_cleanup_finds_every_lock_of_an_execution(self, stage: Stage) -> None:
        worker, other, operator = await stage.actors(3)
        await worker.acquire("a", execution_id=FAILED)
        await worker.acquire("b", "semaphore", permits=2, execution_id=FAILED)
        await worker.acquire("c", "read", execution_id=FAILED)
        kept = await other.acquire("d", execution_id="execution-2")
        cleaned = await operator.cleanup(FAILED)
        assert cleaned.cleaned
        assert cleaned.cleaned_count == 3
        assert sorted(cleaned.scopes) == ["a", "b", "c"]
        assert [seen.name for seen in await operator.list_all()] == ["d"]
        assert not await other.is_lost(kept)

    @driver_test
    async def test_cleanup_looks_only_at_the_scopes_it_is_given(self, stage: Stage) -> None:
        worker, operator = await stage.actors(2)
        for name in ("a", "b", "c"):
            await worker.acquire(name, execution_id=FAILED)
        cleaned = await operator.cleanup(FAILED, ["a", "c", "never-seen"])
        assert cleaned.cleaned_count == 2
        assert sorted(cleaned.scopes) == ["a", "c"]
        assert [seen.name for seen in await operator.list_all()] == ["b"]

    @driver_test
    async def test_cleanup_of_an_empty_list_does_nothing_and_gives_the_reason(self, stage: Stage) -> None:
        worker, operator = await stage.actors(2)
        await worker.acquire(NAME, execution_id=FAILED)
        cleaned = await operator.cleanup(FAILED, [])
        assert not cleaned.cleaned
        assert (cleaned.cleaned_count, cleaned.scopes) == (0, ())
        assert "empty" in cleaned.reason
        assert (await operator.inspect(NAME)).held

    @driver_test
    async def test_cleanup_leaves_other_executions_alone(self, stage: Stage) -> None:
        worker, other, operator = await stage.actors(3)
        await worker.acquire(NAME, "semaphore", permits=2, execution_id=FAILED)
        kept = await other.acquire(NAME, "semaphore", permits=2, execution_id="execution-2")
        cleaned = await operator.cleanup(FAILED, [NAME])
        assert (cleaned.cleaned_count, cleaned.scopes) == (1, (NAME,))
        assert [h.lock_id for h in (await operator.inspect(NAME)).holders] == [kept.lock_id]
        nothing = await operator.cleanup("execution-3", [NAME])
        assert not nothing.cleaned
        assert "execution-3" in nothing.reason
        assert not await other.is_lost(kept)

    @driver_test
    async def test_cleanup_removes_waiters_of_the_execution(self, stage: Stage) -> None:
        holder, waiter, operator = await stage.actors(3)
        held = await holder.acquire(NAME, execution_id="execution-2")
        place = await enter(operator, waiter, NAME, execution_id=FAILED, wait=1)
        await operator.cleanup(FAILED)
        await wait_queued(operator, NAME, 0)
        await assert_refused(place, "LockTimeout")
        assert [h.lock_id for h in (await operator.inspect(NAME)).holders] == [held.lock_id]

    @driver_test
    async def test_cleanup_serves_the_next_waiter(self, stage: Stage) -> None:
        worker, waiter, operator = await stage.actors(3)
        await worker.acquire(NAME, execution_id=FAILED)
        place = await enter(operator, waiter, NAME)
        await operator.cleanup(FAILED)
        await place

    @driver_test
    async def test_cleanup_twice_is_safe(self, stage: Stage) -> None:
        worker, operator = await stage.actors(2)
        await worker.acquire(NAME, execution_id=FAILED)
        assert (await operator.cleanup(FAILED)).cleaned
        again = await operator.cleanup(FAILED)
        assert not again.cleaned
        assert again.reason

    @driver_test
    async def test_cleanup_finds_locks_acquired_after_an_earlier_cleanup(self, stage: Stage) -> None:
        worker, operator = await stage.actors(2)
        await worker.acquire(NAME, execution_id=FAILED)
        await operator.cleanup(FAILED)
        await worker.acquire(NAME, execution_id=FAILED, wait=0)
        assert (await operator.cleanup(FAILED)).scopes == (NAME,)
