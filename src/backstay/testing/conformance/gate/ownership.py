"""A release affects only the caller's own lease."""

from __future__ import annotations

from backstay.testing.conformance.actor import assert_refused
from backstay.testing.conformance.driver import Stage, driver_test
from backstay.testing.conformance.gate.cases import NAME, enter, wait_free


class GateOwnershipTests:
    """Tests of late, repeated and wrong releases."""

    @driver_test
    async def test_a_release_returns_the_released_lock(self, stage: Stage) -> None:
        holder, observer = await stage.actors(2)
        held = await holder.acquire(NAME)
        released = await holder.release(held)
        assert released.released
        assert not released.idempotent
        assert (released.scope, released.lock_id) == (NAME, held.lock_id)
        assert not (await observer.inspect(NAME)).held

    @driver_test
    async def test_releasing_twice_is_safe(self, stage: Stage) -> None:
        holder, other = await stage.actors(2)
        held = await holder.acquire(NAME)
        await holder.release(held)
        successor = await other.acquire(NAME, wait=0)
        again = await holder.release(held)
        assert again.released
        assert again.idempotent
        assert [h.fence for h in (await other.inspect(NAME)).holders] == [successor.fence]

    @driver_test
    async def test_releasing_a_free_lock_is_idempotent_and_deletes_nothing(self, stage: Stage) -> None:
        holder, observer = await stage.actors(2)
        held = await holder.acquire(NAME, ttl=0.1, renew=False)
        await wait_free(observer, NAME)
        released = await holder.release(held)
        assert released.released
        assert released.idempotent
        assert (await observer.inspect(NAME)).fence == held.fence

    @driver_test
    async def test_releasing_a_lock_of_another_holder_names_that_holder(self, stage: Stage) -> None:
        holder, other = await stage.actors(2)
        held = await holder.acquire(NAME, ttl=0.1, renew=False)
        await wait_free(other, NAME)
        grant = await other.acquire(
            NAME, wait=0, execution_id="execution-9", workflow_id="billing", workflow_name="Monthly billing"
        )
        failure = await assert_refused(holder.release(held), "NotOwner")
        assert failure.message.startswith("LOGIC ERROR:")
        for part in ("Monthly billing", "execution-9", grant.fields["locked_at"], held.lock_id):
            assert part in failure.message
        assert failure.facts["lock_id"] == held.lock_id
        assert failure.facts["holder"]["lock_id"] == grant.lock_id
        assert [h.fence for h in (await other.inspect(NAME)).holders] == [grant.fence]

    @driver_test
    async def test_another_process_may_release_by_lock_id(self, stage: Stage) -> None:
        holder, waiter, other = await stage.actors(3)
        held = await holder.acquire(NAME)
        place = await enter(other, waiter, NAME)
        released = await other.release_by_id(NAME, held.lock_id)
        assert released.released
        assert not released.idempotent
        await place

    @driver_test
    async def test_a_wrong_lock_id_releases_nothing(self, stage: Stage) -> None:
        holder, other = await stage.actors(2)
        held = await holder.acquire(NAME)
        failure = await assert_refused(other.release_by_id(NAME, "not-it"), "NotOwner")
        assert failure.message.startswith("LOGIC ERROR:")
        assert failure.facts["holder"]["lock_id"] == held.lock_id
        assert (await other.inspect(NAME)).held

    @driver_test
    async def test_a_lock_id_that_is_gone_is_released_already(self, stage: Stage) -> None:
        holder, other = await stage.actors(2)
        held = await holder.acquire(NAME)
        await holder.release(held)
        released = await other.release_by_id(NAME, held.lock_id)
        assert released.released
        assert released.idempotent

    @driver_test
    async def test_one_permit_is_released_and_the_others_stay(self, stage: Stage) -> None:
        one, two, observer = await stage.actors(3)
        first = await one.acquire(NAME, "semaphore", permits=2)
        second = await two.acquire(NAME, "semaphore", permits=2)
        await one.release(first)
        assert [h.lock_id for h in (await observer.inspect(NAME)).holders] == [second.lock_id]
        assert not await two.is_lost(second)
