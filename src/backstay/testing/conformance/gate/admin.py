"""Inspecting, listing and force-releasing locks."""

from __future__ import annotations

from backstay.testing.conformance.driver import Stage, driver_test
from backstay.testing.conformance.gate.cases import NAME, enter, enter_in_order


class GateAdminTests:
    """Tests of `inspect`, `list` and `force_release`."""

    @driver_test
    async def test_an_unused_name_is_empty(self, stage: Stage) -> None:
        (one,) = await stage.actors(1)
        seen = await one.inspect(NAME)
        assert (seen.name, seen.held, seen.count, seen.fence) == (NAME, False, 0, 0)

    @driver_test
    async def test_inspect_shows_holders_and_the_queue_in_order(self, stage: Stage) -> None:
        holder, one, two, observer = await stage.actors(4)
        held = await holder.acquire(NAME, lock_id="held", execution_id="e0", workflow_id="w0")
        first = await enter(observer, one, NAME, lock_id="first", execution_id="e1", workflow_id="w1")
        second = await enter(observer, two, NAME, lock_id="second", execution_id="e2", workflow_id="w2")
        seen = await observer.inspect(NAME)
        assert seen.held
        assert (seen.holder_count, seen.waiter_count, seen.count) == (1, 2, 3)
        assert (seen.capacity, seen.fence) == (1, held.fence)
        (shown,) = seen.holders
        assert (shown.lock_id, shown.execution_id, shown.workflow_id) == ("held", "e0", "w0")
        assert (shown.locked_at, shown.exclusive) == (held.fields["locked_at"], True)
        assert [(w.position, w.lock_id, w.execution_id) for w in seen.queue] == [
            (0, "first", "e1"),
            (1, "second", "e2"),
        ]
        assert seen.queue[0].waiting >= seen.queue[1].waiting >= 0
        assert not any(w.offered for w in seen.queue)
        await holder.release(held)
        await one.release(await first)
        await second

    @driver_test
    async def test_list_shows_held_and_awaited_locks_with_a_prefix(self, stage: Stage) -> None:
        one, two, observer = await stage.actors(3)
        for name in ("order:1", "order:2", "user:1"):
            await one.acquire(name)
        gone = await one.acquire("order:3")
        await one.release(gone)
        await two.acquire("order:4", "semaphore", permits=3)
        assert [seen.name for seen in await observer.list_all("order:")] == ["order:1", "order:2", "order:4"]
        assert [seen.name for seen in await observer.list_all()] == ["order:1", "order:2", "order:4", "user:1"]
        assert await observer.list_all("nothing") == []
        (seen,) = await observer.list_all("user")
        assert seen == await observer.inspect("user:1")

    @driver_test
    async def test_a_forced_release_takes_it_from_everybody_and_serves_the_next(self, stage: Stage) -> None:
        one, two, waiter, observer = await stage.actors(4)
        reads = [await reader.acquire(NAME, "read") for reader in (one, two)]
        place = await enter(observer, waiter, NAME, "write")
        forced = await observer.force_release(NAME)
        assert forced.name == NAME
        assert sorted(h.lock_id for h in forced.holders) == sorted(r.lock_id for r in reads)
        grant = await place
        assert grant.fence > forced.fence > max(r.fence for r in reads)

    @driver_test
    async def test_a_forced_release_of_a_free_lock_removes_no_holder(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        forced = await one.force_release(NAME)
        assert forced.holders == ()
        assert (await other.acquire(NAME, wait=0)).fence > forced.fence

    @driver_test
    async def test_a_forced_release_keeps_the_queue_in_order(self, stage: Stage) -> None:
        holder, observer, *crowd = await stage.actors(5)
        await holder.acquire(NAME)
        waiting = await enter_in_order(observer, crowd, NAME)
        await observer.force_release(NAME)
        fences: list[int] = []
        for actor, place in zip(crowd, waiting, strict=True):
            grant = await place
            fences.append(grant.fence)
            await actor.release(grant)
        assert fences == sorted(fences)
