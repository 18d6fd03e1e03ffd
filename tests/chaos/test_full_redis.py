"""A Redis that has reached its maxmemory: leases and releases continue, other requests are retried like in an outage.

`full` makes the server refuse every command that needs memory, and ends that again.
"""

from __future__ import annotations

import asyncio
import contextlib

import pytest

import backstay
import backstay.sync
from backstay import EngineUnavailable, InProgress, LockHeld, OutcomeUnknown
from backstay.policy import Policy
from backstay.testing.servers.redis import say
from backstay.testing.waiting import WITHIN, eventually, soon

pytestmark = [pytest.mark.redis, pytest.mark.chaos]

IMPATIENT = Policy(lock_retries=0)


class Fullness:
    """Whether the server is full: `begin` and `end` change it, and as a context manager it is full in the block."""

    def __init__(self, server):
        self._server = server

    def begin(self):
        say(self._server, "CONFIG", "SET", "maxmemory", 1)

    def end(self):
        say(self._server, "CONFIG", "SET", "maxmemory", 0)

    def __enter__(self):
        self.begin()

    def __exit__(self, *_):
        self.end()


@pytest.fixture
def full(own_redis):
    return Fullness(own_redis)


@pytest.fixture
def stay(own_redis):
    with backstay.sync.Backstay(own_redis.url, profile=IMPATIENT) as stay:
        yield stay


def test_a_full_server_is_unavailable_until_it_has_memory_again(stay, full):
    with full, pytest.raises(EngineUnavailable, match=r"full.*maxmemory.*OOM"):
        stay.lock("x").acquire(wait=0)
    stay.lock("x").acquire(wait=0).release()


def test_an_acquire_is_retried_while_the_server_is_full(own_redis, full):
    with backstay.sync.Backstay(own_redis.url) as stay:
        full.begin()
        stay.telemetry.subscribe(lambda event: event.kind == "engine.retry" and full.end())
        with stay.lock("x", wait=0):
            assert stay.telemetry.counts["engine.retry"] == 1


def test_a_block_that_ends_while_the_server_is_full_releases_its_lock(stay, full):
    with stay.lock("x", ttl=60) as lease:
        full.begin()
        lease.renew()
    assert not stay.locks.inspect("x").held
    assert stay.telemetry.counts["lock.release_deferred"] == 0


def test_an_async_block_that_ends_while_the_server_is_full_releases_its_lock(own_redis, full):
    async def main():
        async with backstay.Backstay(own_redis.url, profile=IMPATIENT) as stay:
            async with stay.lock("x", ttl=60) as lease:
                full.begin()
                await lease.renew()
                await lease.renew(ttl=90)
            assert not (await stay.locks.inspect("x")).held
            assert stay.telemetry.counts["lock.release_deferred"] == 0

    asyncio.run(main())


def test_waiters_of_a_full_server_keep_their_places_and_get_their_turn(own_redis, full):
    async def main():
        async with backstay.Backstay(own_redis.url, profile=IMPATIENT) as stay:
            first = await stay.lock("x", ttl=60).acquire(wait=0)
            waiting = asyncio.create_task(stay.lock("x", ttl=60).acquire(wait=WITHIN))
            leaving = asyncio.create_task(stay.lock("x", ttl=60).acquire(wait=WITHIN))

            async def queued():
                return len((await stay.locks.inspect("x")).queue) == 2

            assert await soon(queued)
            full.begin()
            leaving.cancel()
            await asyncio.wait([leaving])
            await first.release()
            second = await waiting
            await second.release()
            assert (await stay.locks.inspect("x")).count == 0
            assert not stay._core.keeper._pending

    asyncio.run(main())


def test_permits_and_read_locks_are_released_on_a_full_server(stay, full):
    permits = [stay.semaphore("s", 3, ttl=60).acquire(wait=0) for _ in range(3)]
    readers = [stay.rwlock("rw", ttl=60).read().acquire(wait=0) for _ in range(2)]
    with full:
        for lease in permits + readers:
            lease.renew()
            lease.release()
        assert (stay.locks.inspect("s").count, stay.locks.inspect("rw").count) == (0, 0)


def test_a_lock_in_the_keys_of_n8n_is_released_on_a_full_server(stay, full):
    with stay.lock("x", ttl=60, wire="n8n") as lease:
        full.begin()
        lease.renew()
        lease.doubt_until = stay.engine.now() + 5_000_000  # the release must also store a tombstone
    full.end()
    with stay.lock("x", ttl=60, wire="n8n", wait=0):
        pass


def test_a_full_server_grants_no_new_lock(stay, full):
    stay.lock("used", ttl=60).acquire(wait=0).release()
    with full:
        for name in ("used", "new"):
            with pytest.raises(EngineUnavailable):
                stay.lock(name, ttl=60).acquire(wait=0)


class Refusal:
    """A refusal of all writes that passes."""

    def __init__(self, server, kind):
        self._server, self._kind = server, kind

    def begin(self):
        if self._kind == "NOPERM":
            say(self._server, "ACL", "SETUSER", "app", "-eval", "-evalsha")
            return
        say(self._server, "CONFIG", "SET", "save", "3600 1")
        self._server.folder.rename(f"{self._server.folder}-moved")
        for file in self._moved.iterdir():
            file.unlink()
        self._moved.rmdir()  # the server's working folder: it can no longer write a snapshot
        say(self._server, "BGSAVE")
        assert eventually(lambda: b"rdb_last_bgsave_status:err" in say(self._server, "INFO", "persistence"))

    @property
    def _moved(self):
        return self._server.folder.with_name(f"{self._server.folder.name}-moved")

    def end(self):
        if self._kind == "NOPERM":
            say(self._server, "ACL", "SETUSER", "app", "+eval", "+evalsha")
        else:
            say(self._server, "CONFIG", "SET", "stop-writes-on-bgsave-error", "no")


@pytest.mark.parametrize("kind", ["NOPERM", "MISCONF"])
def test_a_release_that_is_refused_for_a_while_is_sent_again(own_redis, kind):
    say(own_redis, "ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all")
    refusal = Refusal(own_redis, kind)
    url = own_redis.url.replace("redis://", "redis://app:pw@")
    with backstay.sync.Backstay(url, profile=IMPATIENT) as stay, backstay.sync.Backstay(own_redis.url) as direct:
        with stay.lock("x", ttl=600):
            refusal.begin()
        assert direct.locks.inspect("x").held
        assert stay.telemetry.counts["lock.release_deferred"] == 1
        refusal.end()
        assert eventually(lambda: not direct.locks.inspect("x").held)
        assert stay.telemetry.counts["keeper.gave_up"] == 0


# ── idempotent calls ──


@pytest.fixture(params=["async", "blocking"])
def call(request, own_redis):
    """`call.run(key, fn)` on either API."""
    if request.param == "blocking":
        with backstay.sync.Backstay(own_redis.url) as stay:
            yield Calls(stay, stay.idempotency.run)
        return
    with asyncio.Runner() as runner:
        stay = backstay.Backstay(own_redis.url)
        runner.run(stay.open())
        yield Calls(stay, lambda *args, **options: runner.run(stay.idempotency.run(*args, **options)))
        runner.run(stay.close())


class Calls:
    def __init__(self, stay, run):
        self.stay, self.run = stay, run


def test_a_call_that_ends_while_the_server_is_full_keeps_its_outcome(call, full):
    ran = []

    def work():
        ran.append(1)
        full.begin()
        return len(ran)

    call.stay.telemetry.subscribe(lambda event: event.kind == "engine.retry" and full.end())
    assert call.run("k", work) == 1
    assert call.run("k", work) == 1
    assert ran == [1]


def test_an_outcome_that_could_not_be_stored_is_kept_and_no_other_caller_runs_the_call(own_redis, stay, full):
    ran = []

    def work():
        ran.append(1)
        full.begin()
        return "done"

    with backstay.sync.Backstay(own_redis.url) as other:
        with pytest.raises(OutcomeUnknown, match="maxmemory"):
            stay.idempotency.run("k", work, lease=1)
        renewed = stay.telemetry.counts["lease.renewed"]
        # Three renewals take as long as the lease: without them it would have ended.
        assert eventually(lambda: stay.telemetry.counts["lease.renewed"] >= renewed + 4)
        with pytest.raises(InProgress):
            other.idempotency.run("k", work, wait=0)
        full.end()
        assert other.idempotency.run("k", work, wait=WITHIN) == "done"
        assert ran == [1]
        assert eventually(lambda: not stay._core.keeper._leases)


def test_a_failed_call_frees_its_key_on_a_full_server(stay, full):
    def fail():
        full.begin()
        raise ValueError("no")

    with contextlib.suppress(ValueError):
        stay.idempotency.run("k", fail)
    assert stay.idempotency.inspect("k").state == "idle"
    assert not stay._core.keeper._pending


def test_an_outcome_can_be_forgotten_on_a_full_server(stay, full):
    assert stay.idempotency.run("k", lambda: 1) == 1
    with full:
        assert stay.idempotency.forget("k")
    assert stay.idempotency.run("k", lambda: 2) == 2


def test_a_call_may_run_unprotected_on_a_full_server(stay, full):
    """For `on_unavailable`, a full server is an outage."""
    with full:
        assert stay.idempotency.run("k", lambda: 1, on_unavailable="allow") == 1


# ── limits ──


def test_a_full_server_leaves_the_decision_to_the_policy_of_the_limit(stay, full):
    allowing = stay.limit("a", "5/minute", on_unavailable="allow")
    denying = stay.limit("d", "5/minute", on_unavailable="deny")
    with full:
        assert allowing.hit("k").allowed
        assert not denying.hit("k").allowed


def test_a_reservation_is_refunded_on_a_full_server(stay, full):
    limit = stay.limit("l", "2/hour", algorithm="token-bucket")
    assert limit.hit("k", cost=2).allowed
    with full:
        limit.refund("k", cost=2)
    assert limit.hit("k", cost=2).allowed


def test_a_held_lock_is_still_refused_to_others_on_a_full_server(stay, full):
    with stay.lock("x", ttl=60), full, pytest.raises(LockHeld):
        stay.lock("x", ttl=60).acquire(wait=0)
