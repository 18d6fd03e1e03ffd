"""Connecting and signing in to Redis on both transports: refusals and their error texts."""

import asyncio
import logging
import traceback

import pytest

import backstay
import backstay.sync
from backstay import EngineRefused, EngineUnavailable
from backstay.engine.base import Ping
from backstay.engine.redis.address import parse
from backstay.engine.redis.engine import RedisEngine
from backstay.engine.redis.link.blocking_link import BlockingLink
from backstay.engine.redis.link.protocol import pack
from backstay.testing.servers import RedisServer
from backstay.testing.servers.ports import reserve_port
from support.fake_server import FakeServer, Hangup, bulk
from support.servers import running

pytestmark = pytest.mark.redis

SECRET = "s3cret/with:odd@signs"
QUOTED = "s3cret%2Fwith%3Aodd%40signs"


def blocking_open(url):
    with backstay.sync.Backstay(url):
        pass


def async_open(url):
    async def enter():
        async with backstay.Backstay(url):
            pass

    asyncio.run(enter())


@pytest.fixture(params=[async_open, blocking_open], ids=["async", "blocking"])
def open_backstay(request):
    return request.param


@pytest.fixture(scope="module")
def protected_server():
    """A server with a password, an ACL user, and a user without the HELLO command."""
    users = (
        f"--user default on >{SECRET} ~* &* +@all",
        f"--user worker on >{SECRET} ~backstay:* &* +@all",
        f"--user shy on >{SECRET} ~* &* +@all -hello",
    )
    with running(RedisServer(options=tuple(part for user in users for part in user.split()))) as server:
        yield server


def ask(url, *command):
    """Send one plain command over a link of its own."""
    link = BlockingLink(parse(url), "asker", None)
    try:
        return link.call_many([pack(*command)])[0]
    finally:
        link.close()


def all_texts(error, caplog):
    """Return all texts of an error that a log or a crash report could show."""
    texts = [str(error), repr(error), *map(str, error.args), caplog.text]
    texts += traceback.format_exception(error)
    return "\n".join(texts)


def test_an_unreachable_server_is_named_in_the_error(open_backstay):
    port = reserve_port()
    with pytest.raises(EngineUnavailable, match=f"127.0.0.1:{port}"):
        open_backstay(f"redis://127.0.0.1:{port}/0")


def test_a_connection_attempt_to_a_silent_server_times_out(open_backstay):
    with (
        FakeServer(greet=lambda _: b"") as server,
        pytest.raises(EngineUnavailable, match=f"127.0.0.1:{server.port}.*no (answer|reply) in time"),
    ):
        open_backstay(server.url + "?connect_timeout=0.2")


@pytest.mark.parametrize("user", ["", "worker", "nobody"])
def test_a_wrong_password_is_refused_and_appears_in_no_text(open_backstay, protected_server, user, caplog):
    caplog.set_level(logging.DEBUG)
    with pytest.raises(EngineRefused, match="username or password") as caught:
        open_backstay(f"redis://{user}:{QUOTED}x@127.0.0.1:{protected_server.port}/0")
    texts = all_texts(caught.value, caplog)
    assert f"127.0.0.1:{protected_server.port}" in texts
    assert SECRET not in texts
    assert QUOTED not in texts


def test_a_missing_password_is_refused(open_backstay, protected_server):
    with pytest.raises(EngineRefused, match="username or password"):
        open_backstay(protected_server.url)


@pytest.mark.parametrize("user", ["", "worker", "shy"])
def test_the_right_password_opens_a_connection(open_backstay, protected_server, user):
    open_backstay(f"redis://{user}:{QUOTED}@127.0.0.1:{protected_server.port}/0")


def test_the_password_of_a_user_without_hello_is_checked(open_backstay, protected_server, caplog):
    with pytest.raises(EngineRefused, match="username or password") as caught:
        open_backstay(f"redis://shy:{QUOTED}x@127.0.0.1:{protected_server.port}/0")
    assert SECRET not in all_texts(caught.value, caplog)


def test_an_acl_user_acquires_locks_within_its_keys(protected_server):
    url = f"redis://worker:{QUOTED}@127.0.0.1:{protected_server.port}/0"
    with backstay.sync.Backstay(url) as stay, stay.lock("mine", wait=0):
        pass
    with (
        backstay.sync.Backstay(url, namespace="elsewhere") as stay,
        pytest.raises(EngineRefused, match=r"(?i)permission|access") as caught,
    ):
        stay.lock("not mine", wait=0).acquire()
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        f"redis//:{SECRET}@127.0.0.1:1/0",
        f":{SECRET}@127.0.0.1:1",
        f"redis://:{SECRET}@127.0.0.1:port/0",
        f"redis://:{QUOTED}@127.0.0.1:port/0",
        f"redis://:{QUOTED}@127.0.0.1:1/zero",
        f"redis://:{QUOTED}@127.0.0.1:1/0?tls=yes",
        f"redis://:{QUOTED}@[::1/0",
        f"rediss:/:{QUOTED}@127.0.0.1:1/0",
    ],
)
def test_a_mistyped_url_is_a_config_error_without_the_password(url, caplog):
    with pytest.raises(backstay.ConfigError) as caught:
        backstay.sync.Backstay(url)
    assert "s3cret" not in all_texts(caught.value, caplog)


def test_an_address_shows_no_password():
    address = parse(f"redis://worker:{QUOTED}@127.0.0.1:1/3")
    assert address.password == SECRET
    assert "s3cret" not in f"{address} {address!r}"


def test_the_database_of_the_url_is_used(backstay_redis, request):
    name = request.node.name
    url = f"redis://127.0.0.1:{backstay_redis.port}/3"
    with backstay.sync.Backstay(url) as stay, stay.lock(name, wait=0):
        assert ask(url, "EXISTS", f"backstay:gate:{{{name}}}") == 1
        assert ask(backstay_redis.url, "EXISTS", f"backstay:gate:{{{name}}}") == 0


def test_a_database_that_does_not_exist_is_refused(open_backstay, backstay_redis):
    with pytest.raises(EngineRefused, match=r"(?i)DB index"):
        open_backstay(f"redis://127.0.0.1:{backstay_redis.port}/99")


def test_connections_have_a_client_name(backstay_redis):
    async def names():
        engine = RedisEngine(parse(backstay_redis.url), client_name="shop-worker")
        await engine.open()
        await asyncio.to_thread(engine.apply_many, [Ping()])
        try:
            return ask(backstay_redis.url, "CLIENT", "LIST").decode()
        finally:
            await engine.close()

    assert asyncio.run(names()).count("name=shop-worker ") == 2


def test_an_old_server_is_refused_with_its_version(open_backstay):
    with FakeServer(version="5.0.0") as server, pytest.raises(EngineRefused, match=r"5\.0\.0.*needs redis 6\.2"):
        open_backstay(server.url)


def test_an_old_server_without_hello_is_refused_with_its_version(open_backstay):
    def ancient(command):
        if command[0] == b"HELLO":
            return b"-ERR unknown command `HELLO`\r\n"
        if command[0] == b"INFO":
            return b"$21\r\nredis_version:4.0.14\n\r\n"
        return None

    with FakeServer(greet=ancient) as server, pytest.raises(EngineRefused, match=r"4\.0\.14.*needs redis 6\.2"):
        open_backstay(server.url)


@pytest.mark.parametrize(
    "greeting",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"+OK\r\n", b":1\r\n", b"*0\r\n", b"$-1\r\n", b"\x00\xff\r\n"],
)
def test_a_server_that_is_not_redis_is_an_engine_error(open_backstay, greeting):
    with FakeServer(greet=lambda _: greeting) as server, pytest.raises(backstay.EngineError, match=str(server.port)):
        open_backstay(server.url + "?connect_timeout=0.5")


def test_a_server_that_echoes_commands_is_refused(open_backstay):
    """A client that is connected to itself gets its own commands back."""

    def echo(command):
        return b"*%d\r\n%b" % (len(command), b"".join(map(bulk, command)))

    with FakeServer(greet=echo) as server, pytest.raises(backstay.EngineError, match=str(server.port)):
        open_backstay(server.url + "?connect_timeout=0.5")


def test_a_server_that_disconnects_during_the_sign_in_is_unavailable(open_backstay):
    def hang_up(_):
        raise Hangup(b"%2\r\n$6\r\nserv")

    with FakeServer(greet=hang_up) as server, pytest.raises(EngineUnavailable, match=str(server.port)):
        open_backstay(server.url)


def test_a_loading_server_is_reported_as_unavailable_not_as_a_refusal(open_backstay):
    loading = b"-LOADING Redis is loading the dataset in memory\r\n"
    with FakeServer(greet=lambda _: loading) as server, pytest.raises(EngineUnavailable, match="LOADING"):
        open_backstay(server.url)


def test_a_read_only_replica_is_reported_as_one(backstay_redis):
    with (
        running(RedisServer(options=("--replicaof", f"127.0.0.1 {backstay_redis.port}"))) as replica,
        backstay.sync.Backstay(replica.url, profile=backstay.MAX_AVAILABILITY) as stay,
        pytest.raises(EngineUnavailable, match="read-only replica"),
    ):
        stay.lock("x", wait=0).acquire()
