"""Clients behind Sentinels follow a failover when the master is killed, replaced or paused."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

import backstay
import backstay.sync
from backstay import ConfigError, EngineError, EngineRefused, EngineUnavailable, OutcomeUnknown
from backstay.engine.redis.link.protocol import pack
from backstay.testing.servers import RedisSentinel, say
from backstay.testing.servers.ports import reserve_port
from backstay.testing.waiting import WITHIN, eventually, soon
from support.fake_server import FakeServer
from support.servers import running

pytestmark = [pytest.mark.redis, pytest.mark.chaos]


@pytest.fixture
def sentinel():
    """A master, its replicas and Sentinels for one test, which may kill them."""
    with running(RedisSentinel()) as group:
        yield group


def test_any_reachable_sentinel_is_enough(take, quiet_sentinel):
    service, alive = quiet_sentinel.service, quiet_sentinel.sentinels[1].port
    assert take(f"redis+sentinel://127.0.0.1:{reserve_port()},127.0.0.1:{alive}/{service}") > 0


@pytest.mark.parametrize("scheme", ["redis", "valkey"])
def test_the_url_may_name_a_database(quiet_sentinel, scheme):
    addresses = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in quiet_sentinel.sentinels)
    with (
        backstay.sync.Backstay(f"{scheme}+sentinel://{addresses}/{quiet_sentinel.service}/3") as stay,
        stay.lock("db", wait=0),
    ):
        assert b"db3:keys=" in say(quiet_sentinel.master(), "INFO", "keyspace")


def test_a_service_that_no_sentinel_knows_is_refused(take, quiet_sentinel):
    with pytest.raises(EngineRefused, match="knows no master 'elsewhere'"):
        take(quiet_sentinel.url.replace("/backstay/", "/elsewhere/"))


def test_unreachable_sentinels_are_named_at_once(take):
    ports = reserve_port(), reserve_port()
    with pytest.raises(EngineUnavailable, match=f"127.0.0.1:{ports[0]}.*127.0.0.1:{ports[1]}"):
        take(f"redis+sentinel://127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}/mymaster")


def test_a_server_is_not_taken_for_a_sentinel(take, backstay_redis):
    with pytest.raises(EngineRefused, match=str(backstay_redis.port)):
        take(f"redis+sentinel://127.0.0.1:{backstay_redis.port}/mymaster")


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://:s3cret@127.0.0.1:1",
        "redis+sentinel://:s3cret@127.0.0.1:1/a/b/c",
        "redis+sentinel://:s3cret@127.0.0.1:1/a/one",
        "redis+sentinel://:s3cret@127.0.0.1:1,127.0.0.1:port/a",
        "redis+sentinel://:s3cret@127.0.0.1:1/a?sentinel_pass=s3cret",
        "redis+sentinel://:s3cret@127.0.0.1:1/a?failover=s3cret",
        "redis+sentinels://:s3cret@127.0.0.1:1/a",
        "redis://:s3cret@127.0.0.1:1,127.0.0.1:2/0",
    ],
)
def test_a_mistyped_url_is_a_config_error_without_the_password(url):
    with pytest.raises(ConfigError) as caught:
        backstay.sync.Backstay(url)
    assert "s3cret" not in str(caught.value)


def test_sentinels_and_servers_have_separate_passwords(take):
    with running(RedisSentinel(replicas=1, password="of-servers", sentinel_password="of-sentinels")) as group:
        addresses = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in group.sentinels)
        url = f"redis+sentinel://:of-servers@{addresses}/{group.service}?sentinel_password=of-sentinels"
        assert take(url) > 0
        with pytest.raises(EngineRefused, match="sentinel_password") as caught:
            take(url.partition("?")[0])
        assert "of-se" not in str(caught.value)
        with pytest.raises(EngineRefused, match="username or password"):
            take(url.replace(":of-servers@", ":wrong@"))


def test_waiters_and_holders_continue_after_the_master_is_killed(sentinel):
    """Threads and tasks wait. The holder's lease is renewed at the new master, and the queue is kept."""

    async def main():
        async with backstay.Backstay(sentinel.url) as stay:
            held = await stay.lock("x", ttl=8).acquire(wait=0)

            async def wait():
                async with stay.lock("x", wait=60) as lease:
                    return lease.fence

            tasks = [asyncio.create_task(wait()) for _ in range(3)]
            fences = []

            def block():
                with backstay.sync.Backstay(sentinel.url) as blocking, blocking.lock("x", wait=60) as lease:
                    fences.append(lease.fence)

            threads = [threading.Thread(target=block) for _ in range(3)]
            for thread in threads:
                thread.start()

            async def all_queued():
                return len((await stay.locks.inspect("x")).queue) == 6

            assert await soon(all_queued)
            old = sentinel.master()
            await asyncio.to_thread(say, old, "WAIT", 2, 1000)  # the failover loses no write
            old.kill()
            await asyncio.to_thread(sentinel.await_failover, old)
            await held.renew()
            assert not held.is_lost
            assert len((await stay.locks.inspect("x")).queue) == 6
            await held.release()
            fences += await asyncio.gather(*tasks)
            await asyncio.to_thread(lambda: [thread.join() for thread in threads])
            return held.fence, fences

    first, fences = asyncio.run(main())
    assert len(set(fences)) == 6
    assert min(fences) > first


@pytest.mark.parametrize("api", ["async", "blocking"])
def test_the_engine_itself_waits_for_a_failover(sentinel, api):
    """The policy allows no retries."""
    no_retries = backstay.Policy(lock_retries=0)
    old = sentinel.master()

    async def acquire_async():
        async with backstay.Backstay(sentinel.url, profile=no_retries) as stay:
            first = await stay.lock("x").acquire(wait=0)
            await first.release()
            old.kill()
            return first.fence, (await stay.lock("x").acquire(wait=WITHIN)).fence

    if api == "async":
        first, second = asyncio.run(acquire_async())
    else:
        with backstay.sync.Backstay(sentinel.url, profile=no_retries) as stay:
            lease = stay.lock("x").acquire(wait=0)
            lease.release()
            old.kill()
            first, second = lease.fence, stay.lock("x").acquire(wait=WITHIN).fence
    assert second > first
    assert not old.running


def test_a_lease_is_kept_through_a_failover(sentinel):
    with backstay.sync.Backstay(sentinel.url) as stay:
        held = stay.lock("x", ttl=6).acquire(wait=0)
        old = sentinel.master()
        say(old, "WAIT", 2, 1000)
        old.kill()
        new = sentinel.await_failover(old)
        before = say(new, "PTTL", stay.engine.key("gate", "x"))
        assert eventually(lambda: say(new, "PTTL", stay.engine.key("gate", "x")) > before)  # renewed at the new master
        assert not held.is_lost
        assert held.release().idempotent is False


def test_clients_leave_a_live_master_that_was_replaced():
    """In a planned failover the old master stays a master for seconds; it refuses writes only because it has no
    replicas.
    """
    with (
        running(RedisSentinel(options=("--min-replicas-to-write", "1", "--min-replicas-max-lag", "5"))) as group,
        backstay.sync.Backstay(group.url) as stay,
    ):
        first = stay.lock("x", ttl=20).acquire(wait=0)
        old = group.master()
        say(old, "WAIT", 2, 1000)
        say(group.sentinels[0], "SENTINEL", "FAILOVER", group.service)
        new = group.await_failover(old)
        assert eventually(lambda: b"connected_slaves:0" in say(old, "INFO", "replication"))
        assert say(old, "ROLE")[0] == b"master"
        assert first.release().released
        assert stay.engine._thread_link().address.port == new.port
        with stay.lock("x", wait=WITHIN) as second:
            assert second.fence > first.fence


def test_a_replica_is_never_taken_for_the_master(quiet_sentinel):
    """A Sentinel with outdated information names a replica as master; the client asks the next Sentinel."""
    replica = next(server for server in quiet_sentinel.servers if server is not quiet_sentinel.master())
    commands = []

    def name_a_replica(command):
        commands.append(command)
        host, port = b"127.0.0.1", str(replica.port).encode()
        return b"*2\r\n$9\r\n%b\r\n$%d\r\n%b\r\n" % (host, len(port), port)

    with FakeServer(greet=name_a_replica) as outdated:
        addresses = f"127.0.0.1:{outdated.port},127.0.0.1:{quiet_sentinel.sentinels[0].port}"
        with backstay.sync.Backstay(f"redis+sentinel://{addresses}/{quiet_sentinel.service}") as stay:
            assert commands
            assert stay.engine._thread_link().address.port == quiet_sentinel.master().port
            stay.lock("fresh", wait=0).acquire().release()
        with pytest.raises(EngineUnavailable, match="not the master any more"):
            backstay.sync.Backstay(f"redis+sentinel://127.0.0.1:{outdated.port}/{quiet_sentinel.service}").open()


def test_a_connection_to_a_read_only_master_is_dropped(quiet_sentinel):
    """The connection stays open: only the server's READONLY error reveals the change."""
    with backstay.sync.Backstay(quiet_sentinel.url) as stay:
        link = stay.engine._thread_link()
        master = quiet_sentinel.master()
        say(master, "REPLICAOF", "127.0.0.1", reserve_port())
        assert link.call_many([pack("ROLE")])[0][0] == b"slave"
        threading.Timer(0.5, say, (master, "REPLICAOF", "NO", "ONE")).start()
        stay.lock("back", wait=WITHIN).acquire().release()
        assert not link.ready


def test_clients_leave_a_paused_master_after_the_timeout(sentinel):
    with backstay.sync.Backstay(sentinel.url + "?timeout=1&connect_timeout=1") as stay:
        first = stay.lock("x", ttl=20).acquire(wait=0)
        old = sentinel.master()
        say(old, "WAIT", 2, 1000)
        old.pause()
        try:
            assert first.release().released
            with stay.lock("x", wait=WITHIN) as second:
                assert second.fence > first.fence
        finally:
            old.resume()


def test_a_failover_timeout_names_the_servers_that_were_tried():
    with (
        running(RedisSentinel(replicas=0)) as group,
        backstay.sync.Backstay(group.url + "?failover=0.5", profile=backstay.Policy(lock_retries=0)) as stay,
    ):
        stay.lock("x", wait=0).acquire().release()
        group.master().kill()
        with pytest.raises(EngineError, match=r"no master found.*127.0.0.1"):
            stay.lock("y", wait=0).acquire()


def test_a_subscription_resumes_after_a_failover(sentinel):
    with backstay.sync.Backstay(sentinel.url) as stay, stay.hub.listen("news") as news:
        old = sentinel.master()
        old.kill()
        sentinel.await_failover(old)

        def is_received():
            with contextlib.suppress(OutcomeUnknown):  # a message is not sent again
                stay.hub.publish("news", "after")
            message = news.next(0.2)
            return message is not None and message.payload == "after"

        assert eventually(is_received)
