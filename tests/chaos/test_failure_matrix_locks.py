"""The failure matrix of the guarantees, column locks: one test for each cell, on each engine that can fail so."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

import backstay
import backstay.sync
from backstay.engine.base import steady
from backstay.testing.histories.register import Register
from backstay.testing.proxy import FaultProxy
from backstay.testing.servers import RedisServer
from backstay.testing.servers.ports import reserve_port
from backstay.testing.waiting import WITHIN, eventually, soon
from support.servers import running

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

HOLDER = """
import sys
from backstay.sync import Backstay
stay = Backstay(sys.argv[1])
lease = stay.lock("x", ttl=1).acquire(wait=5)
print(lease.fence, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(own_url):
    """Another process that holds "x", with one-second leases that it renews."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, own_url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    process.fence = int(process.stdout.readline())
    yield process
    process.kill()
    process.communicate()


def test_engine_down_locks_fail_closed(own_engine):
    with backstay.sync.Backstay(own_engine.url, profile=backstay.MAX_AVAILABILITY) as stay:
        stay.lock("x").acquire(wait=0).release()
        own_engine.stop()
        ran = []
        with pytest.raises(backstay.EngineError), stay.lock("x", wait=1):
            ran.append("unprotected")
        with pytest.raises(backstay.EngineUnavailable):
            stay.lock("x").try_acquire()
        assert not ran
        own_engine.start()
        with stay.lock("x", wait=WITHIN):
            pass


def test_partition_the_fence_refuses_the_stale_holder(own_server, tmp_path):
    """A holder that cannot reach the server detects the loss of its lease, and a store refuses its late write."""
    register = Register(tmp_path, "x")
    with (
        FaultProxy(own_server.port) as proxy,
        backstay.sync.Backstay(proxy.instead_of(own_server.url) + "?timeout=2") as cut_off,
        backstay.sync.Backstay(own_server.url) as stay,
    ):
        stale = cut_off.lock("x", ttl=1).acquire(wait=0)
        assert register.write(stale.fence, "stale")
        proxy.rule("blackhole")
        fresh = stay.lock("x", ttl=10).acquire(wait=WITHIN)
        assert stale.is_lost  # it detected the loss before another caller could get the lock
        assert register.write(fresh.fence, "fresh")
        assert not register.write(stale.fence, "stale")
        assert register.read().owner == "fresh"
        proxy.heal()
        with pytest.raises(backstay.NotOwner, match="LOGIC ERROR"):
            stale.release()
        fresh.release()


def test_partition_the_fence_refuses_a_holder_that_was_paused(holder, own_url, tmp_path):
    register = Register(tmp_path, "x")
    register.write(holder.fence, "stale")
    os.kill(holder.pid, signal.SIGSTOP)
    with backstay.sync.Backstay(own_url) as stay, stay.lock("x", ttl=10, wait=WITHIN) as fresh:
        assert fresh.fence > holder.fence
        assert register.write(fresh.fence, "fresh")
        os.kill(holder.pid, signal.SIGCONT)
        assert not register.write(holder.fence, "stale")


def test_process_crash_the_lease_ends_and_the_next_waiter_is_served(holder, own_url):
    async def wait():
        async with backstay.Backstay(own_url) as stay:
            with pytest.raises(backstay.LockHeld):
                await stay.lock("x").acquire(wait=0)
            waiter = asyncio.create_task(stay.lock("x", ttl=5).acquire(wait=WITHIN))
            assert await soon(lambda: asyncio.sleep(0, stay.telemetry.counts["lock.queued"]))
            holder.kill()
            killed = steady()
            lease = await waiter
            assert steady() - killed < 4  # the lease of one second, and a margin for a busy machine
            assert lease.fence > holder.fence
            await lease.release()

    asyncio.run(wait())


def test_process_crash_of_a_live_holder_is_not_assumed(holder, own_url):
    """A slow holder that still renews its lease keeps the lock."""
    with backstay.sync.Backstay(own_url) as stay, pytest.raises(backstay.LockTimeout):
        stay.lock("x").acquire(wait=2)


@pytest.mark.redis
def test_engine_restart_without_aof_locks_are_lost_and_fences_still_grow(own_redis):
    with backstay.sync.Backstay(own_redis.url) as stay, backstay.sync.Backstay(own_redis.url) as other:
        before = stay.lock("x", ttl=2).acquire(wait=0)
        own_redis.restart()
        after = other.lock("x", ttl=10).acquire(wait=WITHIN)
        assert after.fence > before.fence
        assert before.lost.wait(WITHIN)
        with pytest.raises(backstay.NotOwner):
            before.release()
        assert other.locks.inspect("x").holders[0].lock_id == after.id
        after.release()


def assert_a_lock_survives_a_restart(server):
    with backstay.sync.Backstay(server.url) as stay, backstay.sync.Backstay(server.url) as other:
        lease = stay.lock("x", ttl=30).acquire(wait=0)
        server.restart()
        with pytest.raises(backstay.LockHeld):
            other.lock("x").acquire(wait=0)
        lease.renew()
        assert not lease.release().idempotent
        assert eventually(lambda: not other.locks.inspect("x").held)


@pytest.mark.redis
def test_engine_restart_with_aof_locks_survive():
    with running(RedisServer(port=reserve_port(), aof=True)) as server:
        assert_a_lock_survives_a_restart(server)


@pytest.mark.postgres
def test_engine_restart_on_postgres_locks_survive(own_postgres):
    assert_a_lock_survives_a_restart(own_postgres)


def test_engine_restart_means_nothing_to_sqlite(tmp_path):
    url = f"sqlite:///{tmp_path}/a.db"
    with backstay.sync.Backstay(url) as stay:
        lease = stay.lock("x", ttl=30).acquire(wait=0)
    with backstay.sync.Backstay(url) as stay:
        with pytest.raises(backstay.LockHeld) as caught:
            stay.lock("x").acquire(wait=0)
        assert caught.value.holder.lock_id == lease.id
        assert stay.locks.release("x", lease.id).released
        assert stay.lock("x").acquire(wait=0).fence > lease.fence
