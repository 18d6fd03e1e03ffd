"""Outages of a server: leases that have not expired are kept, waiters are served afterwards, and no call hangs."""

import asyncio
import functools
import threading
import time

import pytest

import backstay
import backstay.sync
from backstay.engine.base import steady
from backstay.testing.proxy import FaultProxy
from backstay.testing.servers import RedisServer
from backstay.testing.servers.ports import reserve_port
from backstay.testing.waiting import WITHIN, eventually, soon
from support.fake_server import FakeServer
from support.servers import running

pytestmark = [pytest.mark.redis, pytest.mark.chaos, pytest.mark.slow]


@pytest.fixture
def server():
    """A Redis with an AOF that only this test uses, and may stop and kill."""
    with running(RedisServer(port=reserve_port(), aof=True)) as server:
        yield server


@pytest.fixture(scope="module")
def postgres():
    pytest.importorskip("psycopg", reason="PostgreSQL needs backstay[postgres]")
    from backstay.testing.servers.postgres import PostgresServer

    with running(PostgresServer()) as server:
        with backstay.sync.Backstay(server.url):
            pass  # creates the tables, which may take longer than the limits of the tests below
        yield server


class AnyServer:
    """A server that a test may kill. `pace` multiplies the times of a test: PostgreSQL needs longer to connect and to
    start. `hello`: bytes by which a proxy recognizes a new connection.
    """

    def __init__(self, server, pace, hello):
        self.server, self.pace, self.hello = server, pace, hello

    def through(self, proxy, **options):
        return proxy.instead_of(self.server.url) + "".join(f"?{name}={value:g}" for name, value in options.items())


@pytest.fixture(params=["redis", pytest.param("postgres", marks=pytest.mark.postgres)])
def any_server(request):
    """Redis or PostgreSQL. `tests/engine/postgres/test_postgres_outages.py` has tests of PostgreSQL alone."""
    if request.param == "redis":
        yield AnyServer(request.getfixturevalue("server"), 1, b"HELLO")
        return
    server = request.getfixturevalue("postgres")
    yield AnyServer(server, 2, b"application_name")
    if not server.running:
        server.start()


def test_a_paused_server_that_resumes_answers_the_pending_callers(server):
    with backstay.sync.Backstay(server.url + "?timeout=5") as stay:
        server.pause()
        timer = threading.Timer(0.5, server.resume)
        timer.start()
        started = steady()
        with stay.lock("x", ttl=5, wait=0):
            assert steady() - started >= 0.4
        timer.join()


def test_a_paused_server_times_out_and_is_used_again_after_it_resumes(server):
    with backstay.sync.Backstay(server.url + "?timeout=0.2&connect_timeout=0.2") as stay:
        server.pause()
        with pytest.raises(backstay.EngineError, match=str(server.port)):
            stay.locks.inspect("x")
        server.resume()
        with stay.lock("x", ttl=5, wait=WITHIN):
            pass


def test_connections_come_back_after_a_restart(server):
    async def restart_under_a_loop():
        async with backstay.Backstay(server.url) as stay:
            await (await stay.lock("x").acquire(wait=0)).release()
            await asyncio.to_thread(server.restart)
            async with stay.lock("x", wait=WITHIN):
                pass
            assert stay.telemetry.counts["link.connected"] >= 2

    asyncio.run(restart_under_a_loop())
    with backstay.sync.Backstay(server.url) as stay:
        stay.lock("x").acquire(wait=0).release()
        server.restart()
        with stay.lock("x", wait=WITHIN):
            pass


@pytest.mark.timed
@pytest.mark.parametrize("outage", ["refused", "silent", "restarted"])
def test_the_keeper_keeps_leases_through_an_outage_shorter_than_the_ttl(any_server, outage):
    server, pace = any_server.server, any_server.pace
    with FaultProxy(server.port) as proxy, backstay.sync.Backstay(any_server.through(proxy, timeout=0.5)) as stay:
        lease = stay.lock("x", ttl=3 * pace).acquire(wait=0)
        counts = stay.telemetry.counts
        assert eventually(lambda: counts["lease.renewed"] >= 1)
        if outage == "restarted":
            server.kill()
        elif outage == "refused":
            proxy.refuse()
        else:
            proxy.rule("blackhole")
        time.sleep(1.3 * pace)  # the outage lasts longer than the interval of renewals, and not as long as the lease
        if outage == "restarted":
            server.start()
        proxy.heal()
        until = lease.deadline
        assert eventually(lambda: lease.deadline > until, within=3 * pace)
        lease.check()
        lease.release()


def assert_kept(lease, seconds):
    """Assert for this long that the lease is not lost."""
    deadline = steady() + seconds
    while steady() < deadline:
        assert not lease.is_lost, lease.loss()
        time.sleep(0.02)


@pytest.mark.timed
def test_an_unsent_release_does_not_delay_other_renewals(server, patterns_of):
    """The keeper sends a deferred release, which gets no reply; it must renew a short lease nevertheless."""
    patterns = patterns_of(server.url)
    profile = backstay.MAX_AVAILABILITY
    with FaultProxy(server.port) as proxy, backstay.sync.Backstay(proxy.url, profile=profile) as stay:
        kept = stay.lock("kept", ttl=2).acquire(wait=0)
        released = stay.lock("released", ttl=30, renew=False).acquire(wait=0)
        assert eventually(lambda: stay.telemetry.counts["lease.renewed"] >= 1)
        proxy.refuse()
        with pytest.raises(backstay.EngineError):
            released.release()
        proxy.heal()
        applied = proxy.once("blackhole", patterns.release).applied
        assert applied.wait(WITHIN)
        assert_kept(kept, 4)
        kept.release()


@pytest.mark.timed
def test_one_failed_connection_attempt_does_not_lose_a_short_lease(any_server):
    ttl = 1.5 if any_server.pace == 1 else 6  # libpq's shortest connect timeout is two seconds
    url = any_server.through if any_server.pace == 1 else functools.partial(any_server.through, timeout=2)
    with FaultProxy(any_server.server.port) as proxy, backstay.sync.Backstay(url(proxy)) as stay:
        kept = stay.lock("kept", ttl=ttl).acquire(wait=0)
        assert eventually(lambda: stay.telemetry.counts["lease.renewed"] >= 1)
        applied = proxy.once("blackhole", any_server.hello).applied
        proxy.cut_all()
        assert applied.wait(WITHIN)
        assert_kept(kept, 2 * ttl)
        kept.release()


def test_a_lease_is_lost_when_the_outage_outlives_it(any_server):
    server = any_server.server
    with backstay.sync.Backstay(server.url + "?timeout=0.3") as stay:
        lease = stay.lock("x", ttl=1).acquire(wait=0)
        server.kill()
        assert lease.lost.wait(WITHIN)
        with pytest.raises(backstay.LeaseLost):
            lease.check()
        server.start()


def test_a_body_is_cancelled_when_the_outage_outlives_its_lease(any_server):
    server = any_server.server

    async def body():
        stay = backstay.Backstay(server.url + "?timeout=0.3", profile=backstay.MAX_AVAILABILITY)
        async with stay, stay.lock("x", ttl=1, wait=0):
            await asyncio.to_thread(server.kill)
            await asyncio.sleep(20)

    with pytest.raises(backstay.LeaseLost):
        asyncio.run(body())
    server.start()


def test_a_waiter_is_served_after_a_restart_that_keeps_the_data(server):
    async def wait():
        async with backstay.Backstay(server.url) as stay, backstay.Backstay(server.url) as other:
            held = await stay.lock("x", ttl=10).acquire(wait=0)
            waiter = asyncio.create_task(other.lock("x", ttl=10).acquire(wait=WITHIN))
            assert await soon(lambda: asyncio.sleep(0, other.telemetry.counts["lock.queued"]))
            await asyncio.to_thread(server.restart)
            assert (await held.release()).idempotent is False
            lease = await waiter
            assert lease.fence > held.fence
            await lease.release()

    asyncio.run(wait())


def test_closing_during_a_connect_fails_its_waiting_callers():
    """The callers get a BackstayError, not the CancelledError of the connecting task."""

    async def close():
        with FakeServer(greet=lambda _: b"") as server:
            stay = backstay.Backstay(server.url + "?connect_timeout=5")
            task = asyncio.create_task(stay.lock("x").acquire(wait=0))
            assert await soon(lambda: asyncio.sleep(0, bool(server.commands)))
            await stay.close()
            (outcome,) = await asyncio.gather(task, return_exceptions=True)
            assert isinstance(outcome, backstay.BackstayError), repr(outcome)

    asyncio.run(close())


@pytest.mark.timed
def test_a_timeout_around_a_waiter_fires_while_the_server_is_paused(server):
    """Leaving the queue is only cleanup: a caller that gave up does not wait for the server's reply to it."""

    async def main():
        async with backstay.Backstay(server.url + "?timeout=8") as stay, backstay.Backstay(server.url) as other:
            lease = await other.lock("x", ttl=30).acquire(wait=0)

            async def queued():
                return (await other.locks.inspect("x")).waiter_count == 1

            async def left():
                return not await queued()

            waiting = asyncio.ensure_future(stay.lock("x").acquire(wait=None))
            assert await soon(queued)
            server.pause()
            try:
                started = steady()
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                took = steady() - started
            finally:
                server.resume()
            assert took < 4
            assert await soon(left)
            await lease.release()

    asyncio.run(main())


def test_a_caller_that_timed_out_does_not_wait_again_for_its_withdrawal(server):
    with backstay.sync.Backstay(server.url + "?timeout=1") as stay:
        server.pause()
        try:
            with pytest.raises(backstay.EngineError):
                stay.lock("x").acquire(wait=0)
            assert stay._core.keeper._pending  # the keeper sends the withdrawal later
        finally:
            server.resume()
        assert eventually(lambda: not stay._core.keeper._pending)
        assert not stay.locks.inspect("x").held
