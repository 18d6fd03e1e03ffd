"""Read-write locks: readers share the lock, writers do not, and neither starves the other."""

from __future__ import annotations

from backstay.testing.conformance.actor import assert_refused
from backstay.testing.conformance.driver import Stage, driver_test
from backstay.testing.conformance.gate.cases import NAME, enter


class GateSharingTests:
    """Tests of the read-write lock, and of the options that all callers of a name must agree on."""

    @driver_test
    async def test_readers_share(self, stage: Stage) -> None:
        actors = await stage.actors(4)
        for reader in actors[:3]:
            await reader.acquire(NAME, "read", wait=0)
        seen = await actors[3].inspect(NAME)
        assert seen.holder_count == 3
        assert seen.capacity is None
        assert not any(holder.exclusive for holder in seen.holders)

    @driver_test
    async def test_a_writer_excludes_readers_and_writers(self, stage: Stage) -> None:
        writer, other = await stage.actors(2)
        grant = await writer.acquire(NAME, "write", wait=0)
        assert await other.try_acquire(NAME, "read") is None
        assert await other.try_acquire(NAME, "write") is None
        await writer.release(grant)
        assert await other.try_acquire(NAME, "read") is not None
        assert await writer.try_acquire(NAME, "write") is None

    @driver_test
    async def test_readers_do_not_starve_a_writer(self, stage: Stage) -> None:
        reader, writer, late, observer = await stage.actors(4)
        reading = await reader.acquire(NAME, "read")
        writing = await enter(observer, writer, NAME, "write")
        assert await late.try_acquire(NAME, "read") is None
        waiting = await enter(observer, late, NAME, "read")
        await reader.release(reading)
        written = await writing
        assert not waiting.done()
        await writer.release(written)
        assert (await waiting).fence > written.fence

    @driver_test
    async def test_writers_do_not_starve_a_reader(self, stage: Stage) -> None:
        first, reader, second, observer = await stage.actors(4)
        writing = await first.acquire(NAME, "write")
        waiting = await enter(observer, reader, NAME, "read")
        rewriting = await enter(observer, second, NAME, "write")
        await first.release(writing)
        reading = await waiting
        assert not rewriting.done()
        await reader.release(reading)
        assert (await rewriting).fence > reading.fence

    @driver_test
    async def test_all_leading_readers_enter_together(self, stage: Stage) -> None:
        writer, one, two, second, late, observer = await stage.actors(6)
        writing = await writer.acquire(NAME, "write")
        leading = [await enter(observer, reader, NAME, "read") for reader in (one, two)]
        rewriting = await enter(observer, second, NAME, "write")
        trailing = await enter(observer, late, NAME, "read")
        await writer.release(writing)
        reads = [await waiting for waiting in leading]
        assert (await observer.inspect(NAME)).holder_count == 2
        assert not rewriting.done()
        assert not trailing.done()
        for reader, grant in zip((one, two), reads, strict=True):
            await reader.release(grant)
        rewritten = await rewriting
        assert not trailing.done()
        await second.release(rewritten)
        await trailing

    @driver_test
    async def test_callers_that_disagree_on_permits_get_the_stored_number(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        await one.acquire(NAME, "semaphore", permits=3)
        failure = await assert_refused(other.acquire(NAME, "semaphore", permits=5, wait=0), "ConfigError")
        assert "permits=3" in failure.message
        assert "permits=5" in failure.message
        assert NAME in failure.message
        assert (await other.inspect(NAME)).count == 1

    @driver_test
    async def test_permits_may_change_once_the_semaphore_is_unused(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        grant = await one.acquire(NAME, "semaphore", permits=3)
        await assert_refused(other.acquire(NAME, "semaphore", permits=5), "ConfigError")
        await one.release(grant)
        await other.acquire(NAME, "semaphore", permits=5, wait=0)
        assert (await one.inspect(NAME)).capacity == 5

    @driver_test
    async def test_one_name_is_not_a_semaphore_and_a_read_write_lock_at_once(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        await one.acquire(NAME, "semaphore", permits=3)
        for kind in ("read", "write", "lock"):
            failure = await assert_refused(other.acquire(NAME, kind, wait=0), "ConfigError")
            assert "permits=3" in failure.message
