"""The failure matrix of the guarantees, column locks: one test for each cell, on each engine that can fail so."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys

import pytest

import backstay
import backstay.sync
from backstay.engine.base import steady
from backstay.testing.histories.register import Register
from backstay.testing.plugin import started_or_skip
from backstay.testing.proxy import FaultProxy
from backstay.testing.servers import RedisServer
from backstay.testing.servers.ports import lasting_port
from backstay.testing.servers.postgres import PostgresServer
from backstay.testing.waiting import WITHIN, eventually, soon

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
def server():
    server = RedisServer(port=lasting_port())
    try:
        yield started_or_skip(server)
    finally:
        server.stop()


@pytest.fixture
def postgres():
    server = PostgresServer()
    try:
        yield started_or_skip(server)
    finally:
        server.stop()


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("redis", marks=pytest.mark.redis),
        pytest.param("postgres", marks=pytest.mark.postgres),
    ]
)
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/matrix.db"
    if request.param == "postgres":
        return request.getfixturevalue("postgres").url
    return request.getfixturevalue("server").url


@pytest.fixture
def holder(url):
    """Another process that holds "x", with one-second leases that it renews."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    process.fence = int(process.stdout.readline())
    yield process
    process.kill()
    process.communicate()


@pytest.mark.redis
def test_engine_down_locks_fail_closed(server):
    with backstay.sync.Backstay(server.url, profile=backstay.MAX_AVAILABILITY) as stay:
        stay.lock("x").acquire(wait=0).release()
        server.kill()
        ran = []
        with pytest.raises(backstay.EngineError), stay.lock("x", wait=1):
            ran.append("unprotected")
        with pytest.raises(backstay.EngineUnavailable):
            stay.lock("x").try_acquire()
        assert not ran


def test_engine_down_locks_fail_closed_on_sqlite(tmp_path):
    """Down means here: a process that stopped inside a transaction keeps the file."""
    path = tmp_path / "down.db"
    with backstay.sync.Backstay(f"sqlite:///{path}?timeout=0.2", profile=backstay.MAX_AVAILABILITY) as stay:
        stay.lock("x").acquire(wait=0).release()
        blocker = sqlite3.connect(path, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        ran = []
        with pytest.raises(backstay.EngineUnavailable), stay.lock("x", wait=1):
            ran.append("unprotected")
        assert not ran
        blocker.execute("ROLLBACK")
        blocker.close()
        with stay.lock("x", wait=WITHIN):
            pass


@pytest.mark.postgres
def test_engine_down_locks_fail_closed_on_postgres(postgres):
    with backstay.sync.Backstay(postgres.url, profile=backstay.MAX_AVAILABILITY) as stay:
        stay.lock("x").acquire(wait=0).release()
        postgres.kill()
        ran = []
        with pytest.raises(backstay.EngineError), stay.lock("x", wait=1):
            ran.append("unprotected")
        with pytest.raises(backstay.EngineUnavailable):
            stay.lock("x").try_acquire()
        assert not ran


@pytest.mark.parametrize(
    "kind",
    [pytest.param("server", marks=pytest.mark.redis), pytest.param("postgres", marks=pytest.mark.postgres)],
    ids=["redis", "postgres"],
)
def test_partition_the_fence_refuses_the_stale_holder(kind, request, tmp_path):
    """Cut off from the server a holder learns that its lease is lost; if it writes all the same, the fence is old."""
    server = request.getfixturevalue(kind)
    register = Register(tmp_path, "x")
    with (
        FaultProxy(server.port) as proxy,
        backstay.sync.Backstay(proxy.instead_of(server.url) + "?timeout=2") as cut_off,
        backstay.sync.Backstay(server.url) as stay,
    ):
        stale = cut_off.lock("x", ttl=1).acquire(wait=0)
        assert register.write(stale.fence, "stale")
        proxy.rule("blackhole")
        fresh = stay.lock("x", ttl=10).acquire(wait=WITHIN)
        assert stale.is_lost  # it knew before any other caller could get the lock
        assert register.write(fresh.fence, "fresh")
        assert not register.write(stale.fence, "stale")
        assert register.look().owner == "fresh"
        proxy.heal()
        with pytest.raises(backstay.NotOwner, match="LOGIC ERROR"):
            stale.release()
        fresh.release()


def test_partition_the_fence_refuses_a_holder_that_was_paused(holder, url, tmp_path):
    register = Register(tmp_path, "x")
    register.write(holder.fence, "stale")
    os.kill(holder.pid, signal.SIGSTOP)
    with backstay.sync.Backstay(url) as stay, stay.lock("x", ttl=10, wait=WITHIN) as fresh:
        assert fresh.fence > holder.fence
        assert register.write(fresh.fence, "fresh")
        os.kill(holder.pid, signal.SIGCONT)
        assert not register.write(holder.fence, "stale")


def test_process_crash_the_lease_ends_and_the_next_waiter_is_served(holder, url):
    async def wait():
        async with backstay.Backstay(url) as stay:
            with pytest.raises(backstay.LockHeld):
                await stay.lock("x").acquire(wait=0)
            waiter = asyncio.create_task(stay.lock("x", ttl=5).acquire(wait=WITHIN))
            assert await soon(lambda: asyncio.sleep(0, stay.telemetry.counts["lock.queued"]))
            holder.kill()
            killed = steady()
            lease = await waiter
            assert steady() - killed < 4  # one second of lease, and some for a busy machine
            assert lease.fence > holder.fence
            await lease.release()

    asyncio.run(wait())


def test_process_crash_of_a_live_holder_is_not_assumed(holder, url):
    """A slow holder that still renews is never taken for a dead one."""
    with backstay.sync.Backstay(url) as stay, pytest.raises(backstay.LockTimeout):
        stay.lock("x").acquire(wait=2)


@pytest.mark.redis
def test_engine_restart_without_aof_locks_are_lost_and_fences_still_grow(server):
    with backstay.sync.Backstay(server.url) as stay, backstay.sync.Backstay(server.url) as other:
        before = stay.lock("x", ttl=2).acquire(wait=0)
        server.restart()
        after = other.lock("x", ttl=10).acquire(wait=WITHIN)
        assert after.fence > before.fence
        assert before.lost.wait(WITHIN)
        with pytest.raises(backstay.NotOwner):
            before.release()
        assert other.locks.inspect("x").holders[0].lock_id == after.id
        after.release()


@pytest.mark.redis
def test_engine_restart_with_aof_locks_survive():
    server = RedisServer(port=lasting_port(), aof=True)
    try:
        started_or_skip(server)
        with backstay.sync.Backstay(server.url) as stay, backstay.sync.Backstay(server.url) as other:
            lease = stay.lock("x", ttl=10).acquire(wait=0)
            server.restart()
            with pytest.raises(backstay.LockHeld):
                other.lock("x").acquire(wait=0)
            lease.renew()
            assert not lease.release().idempotent
            assert eventually(lambda: not other.locks.inspect("x").held)
    finally:
        server.stop()


@pytest.mark.postgres
def test_engine_restart_on_postgres_locks_survive(postgres):
    with backstay.sync.Backstay(postgres.url) as stay, backstay.sync.Backstay(postgres.url) as other:
        lease = stay.lock("x", ttl=30).acquire(wait=0)
        postgres.restart()
        with pytest.raises(backstay.LockHeld):
            other.lock("x").acquire(wait=0)
        lease.renew()
        assert not lease.release().idempotent
        assert eventually(lambda: not other.locks.inspect("x").held)


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
