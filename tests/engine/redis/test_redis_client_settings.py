"""Settings read from a redis-py client, and settings refused by name. No server is needed."""

from __future__ import annotations

import asyncio
import gc
import ssl

import pytest
import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.sentinel
import redis.cluster
import redis.sentinel

from backstay import Backstay, ConfigError, EngineUnavailable, sync
from backstay.engine.redis.client_settings import open_client
from backstay.engine.redis.link.credentials import Credentials

BOTH = pytest.mark.parametrize("library", [redis, redis.asyncio], ids=["blocking", "asyncio"])


class Provider(redis.CredentialProvider):
    def get_credentials(self):
        return "app", "hunter2"


@BOTH
def test_all_connection_settings_of_a_client_are_used(library):
    client = library.Redis(
        host="h",
        port=7,
        db=3,
        username="u",
        password="hunter2",
        socket_timeout=1.5,
        socket_connect_timeout=0.5,
        client_name="billing",
    )
    engine = open_client(client, "ns")
    address = engine.address
    assert (address.host, address.port, address.db) == ("h", 7, 3)
    assert (address.username, address.password) == ("u", "hunter2")
    assert (address.timeout, address.connect_timeout) == (1.5, 0.5)
    assert (engine.client_name, engine.namespace, engine.tls) == ("billing", "ns", None)
    assert "hunter2" not in repr(address) + str(address)


@BOTH
def test_a_connection_pool_is_accepted_like_its_client(library):
    pool = library.ConnectionPool.from_url("redis://u:p@h:7/3")
    address = open_client(pool, "ns").address
    assert (address.host, address.port, address.db, address.username, address.password) == ("h", 7, 3, "u", "p")
    assert open_client(library.BlockingConnectionPool(host="h", timeout=3), "ns").address.host == "h"


@BOTH
def test_an_unlimited_timeout_becomes_the_default_timeout(library):
    address = open_client(library.Redis(socket_timeout=None, socket_connect_timeout=None), "ns").address
    assert (address.timeout, address.connect_timeout) == (5.0, 2.0)


@BOTH
def test_a_unix_socket_of_a_client_is_used(library):
    address = open_client(library.Redis(unix_socket_path="/run/a b.sock", db=2), "ns").address
    assert (address.path, address.db) == ("/run/a b.sock", 2)
    assert str(address) == "redis+unix:///run/a%20b.sock?db=2"
    assert open_client(library.Redis.from_url("unix:///run/x.sock?db=4"), "ns").address.db == 4


@BOTH
def test_the_tls_settings_of_a_client_are_used(library):
    client = library.Redis(
        host="h", ssl=True, ssl_check_hostname=False, ssl_min_version=ssl.TLSVersion.TLSv1_3, ssl_ciphers="HIGH"
    )
    engine = open_client(client, "ns")
    assert str(engine.address) == "rediss://h:6379/0"
    assert engine.tls is not None
    assert engine.tls.verify_mode is ssl.CERT_REQUIRED
    assert not engine.tls.check_hostname
    assert engine.tls.minimum_version is ssl.TLSVersion.TLSv1_3
    engine = open_client(library.Redis.from_url("rediss://h:6380/0"), "ns")
    assert engine.tls is not None
    assert engine.tls.check_hostname


class CustomConnection(redis.Connection):
    pass


class AsyncProvider(redis.CredentialProvider):
    async def get_credentials_async(self):
        return ("p",)


def sentinel(library=redis, **options):
    return library.sentinel.Sentinel([("127.0.0.1", 1)], **options)


@pytest.mark.parametrize(
    ("client", "why"),
    [
        (lambda: redis.Redis(ssl=True, ssl_cert_reqs="none"), "ssl_cert_reqs"),
        (lambda: redis.asyncio.Redis(ssl=True, ssl_cert_reqs=None), "ssl_cert_reqs"),
        (lambda: redis.Redis(ssl=True, ssl_validate_ocsp=True), "ssl_validate_ocsp"),
        (lambda: redis.Redis(ssl=True, ssl_certfile="/nowhere"), "ssl_certfile"),
        (lambda: redis.Redis(ssl=True, ssl_ca_certs="/nowhere"), "ssl_ca_certs"),
        (lambda: redis.Redis(ssl=True, ssl_keyfile="/nowhere"), "ssl_keyfile"),
        (lambda: redis.Redis(redis_connect_func=print), "redis_connect_func"),
        (lambda: redis.ConnectionPool(socket_type=2), "socket_type"),
        (lambda: redis.ConnectionPool(what_is_this="x"), "what_is_this"),
        (lambda: redis.ConnectionPool(connection_class=CustomConnection), "connection_class CustomConnection"),
        (lambda: redis.Redis(socket_timeout=0), "socket_timeout"),
        (lambda: redis.Redis(socket_connect_timeout=9999), "socket_connect_timeout"),
        (lambda: redis.Redis(credential_provider=AsyncProvider()), "get_credentials"),
        (lambda: redis.ConnectionPool(port="x"), "port"),
        (lambda: redis.ConnectionPool(db=object()), "db"),
        (lambda: redis.ConnectionPool(password=b"\xff"), "password"),
        (sentinel, "master_for"),
        (lambda: sentinel().slave_for("one"), "master_for"),
        (lambda: sentinel(redis.asyncio).slave_for("one"), "master_for"),
        (lambda: sentinel(min_other_sentinels=2).master_for("one"), "min_other_sentinels"),
        (lambda: sentinel(sentinel_kwargs={"redis_connect_func": print}).master_for("one"), "redis_connect_func"),
        (lambda: redis.sentinel.Sentinel([]).master_for("one"), "no Sentinels"),
        (lambda: redis.asyncio.RedisCluster("127.0.0.1", 1, address_remap=lambda a: a), "address_remap"),
        (lambda: redis.asyncio.RedisCluster("127.0.0.1", 1, ssl=True, ssl_cert_reqs="none"), "ssl_cert_reqs"),
        (redis.CredentialProvider, "has no server address"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named_in_the_error(client, why):
    made = client()
    for kind in (Backstay, sync.Backstay):
        with pytest.raises(ConfigError, match=why):
            kind(made)
    with pytest.raises(ConfigError, match=why):
        sync.Backstay("memory://", hub=made)


@pytest.mark.parametrize("thing", [7, b"redis://", object(), ssl, [], {}])
@pytest.mark.parametrize("kind", [Backstay, sync.Backstay])
def test_an_unsupported_object_is_refused_with_the_accepted_types(kind, thing):
    for arguments in ({"url": thing}, {"engine": thing}, {"url": "memory://", "hub": thing}):
        with pytest.raises(ConfigError, match=r"a URL, a redis-py client .*psycopg_pool.*; got "):
            kind(**arguments)


@BOTH
def test_the_sentinels_of_a_client_and_their_own_credentials_are_used(library):
    group = library.sentinel.Sentinel(
        [("a", 1), ("b", 2)], sentinel_kwargs={"password": "s3cret", "socket_timeout": 0.3}, password="hunter2"
    )
    engine = open_client(group.master_for("mymaster", db=5), "ns")
    seeds = engine.seeds
    assert str(seeds) == "redis+sentinel://a:1,b:2/mymaster"
    assert (seeds.address.password, seeds.address.db) == ("hunter2", 5)
    sentinel_address = seeds.sentinel_address(seeds.hosts[1])
    assert (
        sentinel_address.host,
        sentinel_address.port,
        sentinel_address.password,
        sentinel_address.db,
        sentinel_address.timeout,
    ) == ("b", 2, "s3cret", 0, 0.3)
    assert not {"hunter2", "s3cret"} & set(repr(seeds).split("'"))


def test_a_cluster_client_that_has_not_connected_yet_is_accepted():
    nodes = [redis.asyncio.cluster.ClusterNode("a", 1), redis.asyncio.cluster.ClusterNode("b", 2)]
    spread = (
        redis.cluster.LoadBalancingStrategy.ROUND_ROBIN
    )  # affects reads from replicas, which the engine never sends
    client = redis.asyncio.RedisCluster(startup_nodes=nodes, password="hunter2", load_balancing_strategy=spread)
    engine = open_client(client, "ns")
    assert str(engine.seeds) == "redis+cluster://a:1,b:2"
    assert engine.address.password == "hunter2"
    del client, nodes
    gc.collect()


def test_a_credential_provider_is_called_each_time_and_never_shown():
    credentials = Credentials(Provider())
    assert credentials.fetch() == ("app", "hunter2")
    assert asyncio.run(credentials.fetch_async()) == ("app", "hunter2")
    address = open_client(redis.Redis(credential_provider=Provider()), "ns").address
    assert "hunter2" not in repr(address) + str(address)


@pytest.mark.parametrize("reply", [None, (), ("a", "b", "c"), (1,), "hunter2"])
def test_a_malformed_credential_is_an_error_that_does_not_show_it(reply):
    class MalformedProvider(redis.CredentialProvider):
        def get_credentials(self):
            return reply

    for fetch in (lambda it: it.fetch(), lambda it: asyncio.run(it.fetch_async())):
        with pytest.raises(
            EngineUnavailable, match=r"credential provider MalformedProvider raised TypeError"
        ) as caught:
            fetch(Credentials(MalformedProvider()))
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis+unix://run/redis.sock", "three|absolute"),
        ("redis+unix://", "absolute"),
        ("unix:///run/redis.sock?ca=/x", "TLS"),
        ("unix:///run/redis.sock?db=x", "number"),
        ("rediss+unix:///run/redis.sock", "unknown Redis scheme"),
        ("unix+cluster:///run/redis.sock", "unknown Redis scheme"),
    ],
)
def test_a_malformed_socket_url_is_refused(url, why):
    with pytest.raises(ConfigError, match=why):
        sync.Backstay(url)
