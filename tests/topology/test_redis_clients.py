"""Backstays made from redis-py clients, on servers of every kind. The clients stay usable and are never closed."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
import sys
import threading

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.cluster
import redis.sentinel

from backstay import Backstay, EngineRefused, EngineUnavailable, sync
from backstay.testing.servers import RedisServer
from backstay.testing.waiting import WITHIN, eventually
from support.exercise import exercise_async, exercise_blocking
from support.servers import running

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module")
def socket_redis():
    """A server on a Unix socket, and on a port that the check of its start uses."""
    server = RedisServer()
    server.options = ("--unixsocket", str(server.folder / "s.sock"), "--unixsocketperm", "700")
    with running(server):
        yield server


def plain(library, request):
    return library.Redis(port=request.getfixturevalue("backstay_redis").port, db=2)


def pooled(library, request):
    return library.ConnectionPool(port=request.getfixturevalue("backstay_redis").port, db=2)


def on_socket(library, request):
    return library.Redis(unix_socket_path=str(request.getfixturevalue("socket_redis").folder / "s.sock"))


def encrypted(library, request):
    server, made = (request.getfixturevalue(name) for name in ("tls_redis", "certificates"))
    cert, key = map(str, made.client)
    return library.Redis(
        port=server.port, ssl=True, ssl_ca_certs=str(made.ca), ssl_certfile=cert, ssl_keyfile=key, host="127.0.0.1"
    )


def behind_sentinels(library, request):
    group = request.getfixturevalue("quiet_sentinel")
    sentinels = library.sentinel.Sentinel([("127.0.0.1", sentinel.port) for sentinel in group.sentinels])
    return sentinels.master_for(group.service, db=1)


def clustered(library, request):
    node = request.getfixturevalue("quiet_cluster").nodes[0]
    return library.RedisCluster(host="127.0.0.1", port=node.port)


KINDS = [plain, pooled, on_socket, encrypted, behind_sentinels, clustered]


def works(client):
    """Whether a client can still write and read."""
    if isinstance(client, redis.ConnectionPool):
        client = redis.Redis(connection_pool=client)
    return client.set("probe", "1") and client.get("probe") == b"1"


async def works_async(client):
    if isinstance(client, redis.asyncio.ConnectionPool):
        client = redis.asyncio.Redis(connection_pool=client)
    return await client.set("probe", "1") and await client.get("probe") == b"1"


def sentinels_of(client):
    """Return the Sentinel manager of a client, which its `close` does not close."""
    return getattr(getattr(client, "connection_pool", None), "sentinel_manager", None)


def close(client):
    (client.close if hasattr(client, "close") else client.disconnect)()
    if sentinels := sentinels_of(client):
        sentinels.close()


async def close_async(client):
    await (client.aclose if hasattr(client, "aclose") else client.disconnect)()
    if sentinels := sentinels_of(client):
        await sentinels.aclose()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_blocking_client_makes_both_kinds_of_backstay_and_is_not_closed(kind, request, namespace):
    client = kind(redis, request)
    try:
        exercise_blocking(lambda: sync.Backstay(client, namespace=namespace))
        asyncio.run(exercise_async(lambda: Backstay(engine=client, namespace=namespace)))
        assert works(client)
    finally:
        close(client)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_asyncio_client_makes_both_kinds_of_backstay_and_is_not_closed(kind, request, namespace):
    async def main():
        client = kind(redis.asyncio, request)
        try:
            await exercise_async(lambda: Backstay(client, namespace=namespace))
            await asyncio.to_thread(exercise_blocking, lambda: sync.Backstay(client, namespace=namespace))
            assert await works_async(client)
        finally:
            await close_async(client)

    asyncio.run(main())


def names_of(client):
    return [known["name"] for known in client.client_list()]


def test_no_connection_of_the_clients_is_used(request, namespace):
    client = redis.Redis(port=request.getfixturevalue("backstay_redis").port, client_name="billing")
    with sync.Backstay(client, namespace=namespace) as stay, stay.lock("x"):
        pool = client.connection_pool
        assert not pool._available_connections
        assert not pool._in_use_connections
        assert "billing" in names_of(client)  # the engine's own connection has the client's name, too
    assert works(client)
    client.close()


@pytest.mark.parametrize("scheme", ["redis+unix", "valkey+unix", "unix"])
def test_a_url_may_name_a_unix_socket(scheme, socket_redis, namespace, take):
    path = socket_redis.folder / "s.sock"
    assert take(f"{scheme}://{path}?db=3", namespace=namespace) > 0
    with redis.Redis(unix_socket_path=str(path), db=3) as client:
        assert client.keys(f"{namespace}:*")


def test_a_missing_unix_socket_is_unavailable(take, tmp_path):
    with pytest.raises(EngineUnavailable, match=r"cannot reach redis\+unix:///.*missing.sock\?db=0"):
        take(f"redis+unix://{tmp_path}/missing.sock?db=0")


class Rotating(redis.CredentialProvider):
    """A provider whose password changes. Counts the calls."""

    def __init__(self):
        self.password = "first"
        self.calls = 0

    def get_credentials(self):
        self.calls += 1
        return "app", self.password


class AsyncRotating(Rotating):
    """The same provider with an async method."""

    async_calls = 0

    async def get_credentials_async(self):
        self.async_calls += 1
        return self.get_credentials()


@pytest.fixture
def acl_redis():
    """A server with one user, `app`, whose password is `first`."""
    server = RedisServer()
    users = server.folder / "users.acl"
    users.write_text("user default off\nuser app on >first ~* &* +@all\nuser admin on >root ~* &* +@all\n")
    server.options = ("--aclfile", str(users))
    with running(server):
        yield server


def change_password(server):
    with redis.Redis(port=server.port, username="admin", password="root") as admin:
        admin.execute_command("ACL SETUSER", "app", "resetpass", ">second")
        admin.execute_command("CLIENT KILL", "USER", "app")


def test_the_credential_provider_is_called_for_every_connection(acl_redis, namespace):
    provider = Rotating()
    client = redis.Redis(port=acl_redis.port, credential_provider=provider)
    with sync.Backstay(client, namespace=namespace) as stay:
        lease = stay.lock("x").acquire(wait=0)
        before = provider.calls
        provider.password = "second"
        change_password(acl_redis)
        lease.renew()
        assert provider.calls > before
        lease.release()
        provider.password = "wrong"
        with redis.Redis(port=acl_redis.port, username="admin", password="root") as admin:
            admin.execute_command("CLIENT KILL", "USER", "app")
        with pytest.raises(EngineRefused, match="username or password") as caught:
            stay.lock("x").acquire(wait=0)
        assert not {"first", "second", "wrong"} & set(str(caught.value).split())
    client.close()


@pytest.mark.parametrize("kind", [Rotating, AsyncRotating])
def test_the_credential_provider_does_not_block_the_event_loop(kind, acl_redis, namespace):
    provider = kind()
    loop_thread = threading.get_ident()
    calling_threads = []

    def record():
        calling_threads.append(threading.get_ident())
        return Rotating.get_credentials(provider)

    provider.get_credentials = record

    async def main():
        client = redis.asyncio.Redis(port=acl_redis.port, credential_provider=provider)
        async with Backstay(client, namespace=namespace) as stay, stay.lock("x"):
            pass
        await client.aclose()

    asyncio.run(main())
    assert calling_threads
    if kind is AsyncRotating:
        assert provider.async_calls
    else:
        assert loop_thread not in calling_threads


@pytest.mark.parametrize("error", [RuntimeError, OSError, ssl.SSLCertVerificationError])
def test_a_failing_credential_provider_is_unavailable_and_its_message_is_hidden(error, acl_redis, namespace, take):
    class Broken(redis.CredentialProvider):
        def get_credentials(self):
            raise error("token hunter2 has expired")

    client = redis.Redis(port=acl_redis.port, credential_provider=Broken())
    with pytest.raises(EngineUnavailable, match="credential provider Broken raised") as caught:
        take(client, namespace=namespace)
    assert "hunter2" not in str(caught.value)
    client.close()


def test_a_wrong_password_is_refused_without_showing_it(acl_redis, namespace, take):
    client = redis.Redis(port=acl_redis.port, username="app", password="hunter2")
    with pytest.raises(EngineRefused) as caught:
        take(client, namespace=namespace)
    assert "hunter2" not in str(caught.value)
    client.close()


@pytest.mark.parametrize(
    "kind", [plain, pooled, on_socket, behind_sentinels, clustered], ids=lambda kind: kind.__name__
)
def test_a_client_carries_the_hints_of_another_engine(kind, request, namespace, tmp_path):
    client = kind(redis, request)
    url = f"sqlite:///{tmp_path / 'state.db'}"
    try:
        with (
            sync.Backstay(url, namespace=namespace, hub=client) as one,
            sync.Backstay(url, namespace=namespace, hub=client) as two,
        ):
            with one.hub.listen("news") as messages:
                two.hub.publish("news", "x")
                message = messages.next(timeout=WITHIN)
            assert message is not None
            assert message.payload == "x"
        assert works(client)
    finally:
        close(client)


FORK = """
import json, os, sys, warnings
warnings.simplefilter("error")
import redis
from backstay.sync import Backstay

client = redis.Redis(port=int(sys.argv[1]))
client.ping()
stay = Backstay(client, namespace=sys.argv[2]).open()
lease = stay.lock("fork").acquire(wait=0)
pid = os.fork()
if pid == 0:
    ok = lease.is_lost and stay.lock("fork").try_acquire() is None
    ok = ok and stay.lock("child").acquire(wait=0) and client.ping()
    os._exit(0 if ok else 1)
status = os.waitpid(pid, 0)[1]
lease.renew()
print(json.dumps([status, lease.release().idempotent, client.ping()]))
stay.close()
client.close()
"""


def test_a_forked_child_has_its_own_connections_and_the_client_serves_both(backstay_redis, namespace):
    done = subprocess.run(
        [sys.executable, "-c", FORK, str(backstay_redis.port), namespace],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [0, False, True]


def test_two_backstays_on_one_client_close_independently(backstay_redis, namespace):
    client = redis.Redis(port=backstay_redis.port)
    one, two = (sync.Backstay(client, namespace=namespace) for _ in range(2))
    lease = two.lock("x").acquire(wait=0)
    one.close()
    lease.renew()
    assert eventually(lambda: two.locks.inspect("x").holders)
    two.close()
    assert works(client)
    client.close()
