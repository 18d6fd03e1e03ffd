"""The server stops, ends, crashes and restarts: calls time out, waiters get their locks, listeners reconnect."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading

import psycopg
import pytest

import backstay
from backstay import EngineError, EngineUnavailable, sync
from backstay.engine.base import steady
from backstay.testing.servers.postgres import PostgresServer
from backstay.testing.waiting import WITHIN, eventually, soon
from support.nemeses.postgres import ENGINE_BACKENDS, Crash
from support.servers import running

pytestmark = [pytest.mark.postgres, pytest.mark.chaos, pytest.mark.slow]


@pytest.fixture(scope="module")
def server():
    """A server that these tests stop and kill, one after another."""
    with running(PostgresServer()) as server:
        yield server


@pytest.fixture
def backend(server):
    """Kill one of the engine's backends with SIGKILL, so that the server restarts all of them."""

    def crash():
        with psycopg.connect(server.admin_url, autocommit=True) as admin:
            engine_backends = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'backstay%' LIMIT 1"
            os.kill(admin.execute(engine_backends).fetchone()[0], signal.SIGKILL)

    return crash


HOW = ["fast shutdown", "killed", "crashed backend"]


def stop_server(how, server, backend):
    if how == "crashed backend":
        backend()
    else:
        server.restart(fast=how == "fast shutdown")


@pytest.mark.parametrize("how", HOW)
def test_a_caller_after_a_restart_gets_no_error(server, backend, namespace, how):
    with sync.Backstay(server.url, namespace=namespace) as stay:
        lease = stay.lock("kept", ttl=60).acquire(wait=0)
        stop_server(how, server, backend)
        with stay.lock("x", ttl=5, wait=WITHIN):
            pass
        lease.renew()
        assert not lease.release().idempotent


@pytest.mark.parametrize("how", HOW)
def test_a_waiter_gets_its_lock_after_a_restart(server, backend, namespace, how):
    async def wait():
        async with (
            backstay.Backstay(server.url, namespace=namespace) as stay,
            backstay.Backstay(server.url, namespace=namespace) as other,
        ):
            held = await stay.lock("x", ttl=20).acquire(wait=0)
            waiter = asyncio.create_task(other.lock("x", ttl=10).acquire(wait=30))
            assert await soon(lambda: asyncio.sleep(0, other.telemetry.counts["lock.queued"]))
            await asyncio.to_thread(stop_server, how, server, backend)
            assert (await held.release()).idempotent is False
            lease = await waiter
            assert lease.fence > held.fence
            await lease.release()

    asyncio.run(wait())


@pytest.mark.timed
@pytest.mark.parametrize("how", HOW)
def test_a_listener_gets_one_gap_after_a_restart_and_then_further_messages(server, backend, namespace, how):
    async def listen():
        async with (
            backstay.Backstay(server.url, namespace=namespace) as stay,
            backstay.Backstay(server.url, namespace=namespace) as other,
            stay.hub.listen("news") as news,
        ):
            await other.hub.publish("news", "before")
            assert (await news.next(timeout=WITHIN)).payload == "before"
            await asyncio.to_thread(stop_server, how, server, backend)
            back = steady()
            missed = await news.next(timeout=WITHIN)
            assert missed.missed
            assert steady() - back < 5  # two seconds on an idle host
            await soon(lambda: published(other))
            assert (await news.next(timeout=WITHIN)).payload == "after"
            assert await news.next(timeout=0.3) is None

    async def published(other):
        try:
            await other.hub.publish("news", "after")
        except EngineUnavailable:
            return False
        return True

    asyncio.run(listen())


@pytest.mark.timed
def test_calls_to_a_stopped_server_time_out_and_succeed_after_it_continues(server, namespace):
    once = backstay.Policy(lock_retries=0)
    with sync.Backstay(server.url + "?timeout=0.5", namespace=namespace, profile=once) as stay:
        stay.lock("x").acquire(wait=0).release()
        server.pause()
        try:
            for _ in range(2):  # on an open connection, then on a new one, whose timeout is at least two seconds
                started = steady()
                with pytest.raises(EngineError):
                    stay.locks.inspect("x")
                assert steady() - started < 4.5
        finally:
            server.resume()
        with stay.lock("x", ttl=5, wait=WITHIN):
            pass


def test_calls_that_wait_for_a_stopped_server_succeed_when_it_continues(server, namespace):
    with sync.Backstay(server.url, namespace=namespace) as stay:
        stay.lock("x").acquire(wait=0).release()
        server.pause()
        timer = threading.Timer(0.5, server.resume)
        timer.start()
        started = steady()
        with stay.lock("x", ttl=5, wait=0):
            assert steady() - started >= 0.4
        timer.join()


@pytest.mark.timed
def test_opening_a_connection_to_a_stopped_server_times_out(server, namespace):
    """The first statements of a connection have a timeout too: it reads the schema version first."""
    from backstay.engine.postgres.address import parse
    from backstay.engine.postgres.connection.session import connect

    session = connect(parse(server.url + "?timeout=0.5"), "test")
    server.pause()
    started = steady()
    try:
        with pytest.raises(psycopg.OperationalError, match="no answer in time"):
            session.execute("SELECT 1")
    finally:
        server.resume()
    assert steady() - started < 2


@pytest.mark.timed
def test_the_keeper_renews_leases_through_a_restart(server, namespace):
    with sync.Backstay(server.url, namespace=namespace) as stay:
        lease = stay.lock("x", ttl=6).acquire(wait=0)
        assert eventually(lambda: stay.telemetry.counts["lease.renewed"] >= 1)
        server.restart()
        until = lease.deadline
        assert eventually(lambda: lease.deadline > until)
        lease.check()
        lease.release()


@pytest.mark.timed
def test_an_idle_listener_is_not_disconnected(server, namespace, monkeypatch):
    """Its connection is idle between messages for longer than a call timeout."""
    from backstay.hub import postgres

    monkeypatch.setattr(postgres, "PING_EVERY", 1.0)
    url = server.url + "?timeout=0.5"
    with sync.Backstay(url, namespace=namespace) as stay, stay.hub.listen("news") as news:
        assert news.next(timeout=2.5) is None
        assert stay.telemetry.counts["hub.interrupted"] == 0
        stay.hub.publish("news", "x")
        assert news.next(timeout=WITHIN).payload == "x"


def test_a_message_that_is_too_long_is_refused_at_once(server, namespace):
    with sync.Backstay(server.url, namespace=namespace) as stay, stay.hub.listen("news") as news:
        for size in (8000, 10_000_000):
            with pytest.raises(backstay.ConfigError, match="bytes"):
                stay.hub.publish("news", "x" * size)
        for crowded in ('"' * 4000, "\n" * 4000, "\0" * 1400):
            with pytest.raises(backstay.ConfigError, match="on PostgreSQL"):
                stay.hub.publish("news", crowded)
        stay.hub.publish("news", "x" * 7000)
        assert len(news.next(timeout=WITHIN).payload) == 7000
        for payload in ("nul\0", "'\"\\", "ключ 🔒", ""):
            stay.hub.publish("news", payload)
            assert news.next(timeout=WITHIN).payload == payload


def test_a_nemesis_without_a_matching_session_does_nothing(server):
    def engine_backends():
        with psycopg.connect(server.admin_url) as admin:
            return admin.execute(ENGINE_BACKENDS).fetchall()

    assert eventually(lambda: not engine_backends())
    crash = Crash(server)
    for seed in range(4):
        crash.inject(None, random.Random(seed))
    assert not crash.counts
