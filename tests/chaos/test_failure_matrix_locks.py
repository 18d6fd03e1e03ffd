"""The failure matrix of the guarantees, column locks: one test for each cell, on each engine that can fail so."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys

import pytest

import holdfast
import holdfast.sync
from holdfast.engine.base import steady
from holdfast.testing.plugin import started_or_skip
from holdfast.testing.ports import lasting_port
from holdfast.testing.postgres import PostgresServer
from holdfast.testing.proxy import FaultProxy
from holdfast.testing.register import Register
from holdfast.testing.servers import RedisServer
from holdfast.testing.waiting import WITHIN, eventually, soon

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

HOLDER = """
import sys
from holdfast.sync import Holdfast
hf = Holdfast(sys.argv[1])
lease = hf.lock("x", ttl=1).acquire(wait=5)
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
    with holdfast.sync.Holdfast(server.url, profile=holdfast.MAX_AVAILABILITY) as hf:
        hf.lock("x").acquire(wait=0).release()
        server.kill()
        ran = []
        with pytest.raises(holdfast.EngineError), hf.lock("x", wait=1):
            ran.append("unprotected")
        with pytest.raises(holdfast.EngineUnavailable):
            hf.lock("x").try_acquire()
        assert not ran


def test_engine_down_locks_fail_closed_on_sqlite(tmp_path):
    """Down means here: a process that stopped inside a transaction keeps the file."""
    path = tmp_path / "down.db"
    with holdfast.sync.Holdfast(f"sqlite:///{path}?timeout=0.2", profile=holdfast.MAX_AVAILABILITY) as hf:
        hf.lock("x").acquire(wait=0).release()
        blocker = sqlite3.connect(path, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        ran = []
        with pytest.raises(holdfast.EngineUnavailable), hf.lock("x", wait=1):
            ran.append("unprotected")
        assert not ran
        blocker.execute("ROLLBACK")
        blocker.close()
        with hf.lock("x", wait=WITHIN):
            pass


@pytest.mark.postgres
def test_engine_down_locks_fail_closed_on_postgres(postgres):
    with holdfast.sync.Holdfast(postgres.url, profile=holdfast.MAX_AVAILABILITY) as hf:
        hf.lock("x").acquire(wait=0).release()
        postgres.kill()
        ran = []
        with pytest.raises(holdfast.EngineError), hf.lock("x", wait=1):
            ran.append("unprotected")
        with pytest.raises(holdfast.EngineUnavailable):
            hf.lock("x").try_acquire()
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
        holdfast.sync.Holdfast(proxy.instead_of(server.url) + "?timeout=2") as cut_off,
        holdfast.sync.Holdfast(server.url) as hf,
    ):
        stale = cut_off.lock("x", ttl=1).acquire(wait=0)
        assert register.write(stale.fence, "stale")
        proxy.rule("blackhole")
        fresh = hf.lock("x", ttl=10).acquire(wait=WITHIN)
        assert stale.is_lost  # it knew before anybody else could be granted
        assert register.write(fresh.fence, "fresh")
        assert not register.write(stale.fence, "stale")
        assert register.look().owner == "fresh"
        proxy.heal()
        with pytest.raises(holdfast.NotOwner, match="LOGIC ERROR"):
            stale.release()
        fresh.release()


def test_partition_the_fence_refuses_a_holder_that_was_paused(holder, url, tmp_path):
    register = Register(tmp_path, "x")
    register.write(holder.fence, "stale")
    os.kill(holder.pid, signal.SIGSTOP)
    with holdfast.sync.Holdfast(url) as hf, hf.lock("x", ttl=10, wait=WITHIN) as fresh:
        assert fresh.fence > holder.fence
        assert register.write(fresh.fence, "fresh")
        os.kill(holder.pid, signal.SIGCONT)
        assert not register.write(holder.fence, "stale")


def test_process_crash_the_lease_ends_and_the_next_waiter_is_served(holder, url):
    async def wait():
        async with holdfast.Holdfast(url) as hf:
            with pytest.raises(holdfast.LockHeld):
                await hf.lock("x").acquire(wait=0)
            waiter = asyncio.create_task(hf.lock("x", ttl=5).acquire(wait=WITHIN))
            assert await soon(lambda: asyncio.sleep(0, hf.telemetry.counts["lock.queued"]))
            holder.kill()
            killed = steady()
            lease = await waiter
            assert steady() - killed < 4  # one second of lease, and some for a busy machine
            assert lease.fence > holder.fence
            await lease.release()

    asyncio.run(wait())


def test_process_crash_of_a_live_holder_is_not_assumed(holder, url):
    """A slow holder that still renews is never taken for a dead one."""
    with holdfast.sync.Holdfast(url) as hf, pytest.raises(holdfast.LockTimeout):
        hf.lock("x").acquire(wait=2)


@pytest.mark.redis
def test_engine_restart_without_aof_locks_are_lost_and_fences_still_grow(server):
    with holdfast.sync.Holdfast(server.url) as hf, holdfast.sync.Holdfast(server.url) as other:
        before = hf.lock("x", ttl=2).acquire(wait=0)
        server.restart()
        after = other.lock("x", ttl=10).acquire(wait=WITHIN)
        assert after.fence > before.fence
        assert before.lost.wait(WITHIN)
        with pytest.raises(holdfast.NotOwner):
            before.release()
        assert other.locks.inspect("x").holders[0].lock_id == after.id
        after.release()


@pytest.mark.redis
def test_engine_restart_with_aof_locks_survive():
    server = RedisServer(port=lasting_port(), aof=True)
    try:
        started_or_skip(server)
        with holdfast.sync.Holdfast(server.url) as hf, holdfast.sync.Holdfast(server.url) as other:
            lease = hf.lock("x", ttl=10).acquire(wait=0)
            server.restart()
            with pytest.raises(holdfast.LockHeld):
                other.lock("x").acquire(wait=0)
            lease.renew()
            assert not lease.release().idempotent
            assert eventually(lambda: not other.locks.inspect("x").held)
    finally:
        server.stop()


@pytest.mark.postgres
def test_engine_restart_on_postgres_locks_survive(postgres):
    with holdfast.sync.Holdfast(postgres.url) as hf, holdfast.sync.Holdfast(postgres.url) as other:
        lease = hf.lock("x", ttl=30).acquire(wait=0)
        postgres.restart()
        with pytest.raises(holdfast.LockHeld):
            other.lock("x").acquire(wait=0)
        lease.renew()
        assert not lease.release().idempotent
        assert eventually(lambda: not other.locks.inspect("x").held)


def test_engine_restart_means_nothing_to_sqlite(tmp_path):
    url = f"sqlite:///{tmp_path}/a.db"
    with holdfast.sync.Holdfast(url) as hf:
        lease = hf.lock("x", ttl=30).acquire(wait=0)
    with holdfast.sync.Holdfast(url) as hf:
        with pytest.raises(holdfast.LockHeld) as caught:
            hf.lock("x").acquire(wait=0)
        assert caught.value.holder.lock_id == lease.id
        assert hf.locks.release("x", lease.id).released
        assert hf.lock("x").acquire(wait=0).fence > lease.fence
