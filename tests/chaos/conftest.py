"""Fixtures of chaos tests: servers that a test may kill, a proxy before the shared server, and patterns of requests."""

import hashlib
import sqlite3

import pytest

import backstay.sync
from backstay.engine.redis import scripts
from backstay.engine.redis.address import parse
from backstay.engine.redis.link.blocking_link import BlockingLink
from backstay.engine.redis.link.protocol import pack
from backstay.gate.commands import Acquire, Release, Renew, Withdraw
from backstay.gate.machine import GATE
from backstay.testing.proxy import FaultProxy
from backstay.testing.servers import RedisServer
from backstay.testing.servers.ports import reserve_port
from backstay.testing.servers.postgres import PostgresServer
from support.servers import running

REDIS = pytest.param("redis", marks=pytest.mark.redis)
POSTGRES = pytest.param("postgres", marks=pytest.mark.postgres)


@pytest.fixture
def own_redis():
    """A Redis that the test may kill. It loses its data in a restart."""
    with running(RedisServer(port=reserve_port())) as server:
        yield server


@pytest.fixture
def own_postgres():
    """A PostgreSQL that the test may kill."""
    with running(PostgresServer()) as server:
        yield server


@pytest.fixture(params=[REDIS, POSTGRES])
def own_server(request):
    return request.getfixturevalue(f"own_{request.param}")


@pytest.fixture(params=["sqlite", REDIS, POSTGRES])
def own_url(request, tmp_path):
    """The URL of an engine that only this test uses."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/matrix.db"
    return request.getfixturevalue(f"own_{request.param}").url


class OwnEngine:
    """An engine that a test stops and starts again. SQLite is blocked by an open write transaction of another
    connection, as of a process that was suspended inside it.
    """

    def __init__(self, kind, request, tmp_path):
        self._server = None
        if kind == "sqlite":
            self._path = tmp_path / "down.db"
            self.url = f"sqlite:///{self._path}?timeout=0.1"
        else:
            self._server = request.getfixturevalue(f"own_{kind}")
            self.url = self._server.url

    def stop(self):
        if self._server is not None:
            self._server.kill()
        else:
            self._blocker = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            self._blocker.execute("BEGIN IMMEDIATE")

    def start(self):
        if self._server is not None:
            self._server.restart()
        else:
            self._blocker.execute("ROLLBACK")
            self._blocker.close()


@pytest.fixture
def own_sqlite(request, tmp_path):
    return OwnEngine("sqlite", request, tmp_path)


@pytest.fixture(params=["sqlite", REDIS, POSTGRES])
def own_engine(request, tmp_path):
    return OwnEngine(request.param, request, tmp_path)


@pytest.fixture
def proxy(backstay_redis):
    with FaultProxy(backstay_redis.port) as proxy:
        yield proxy


@pytest.fixture
def name(request):
    """The name of a lock that no other test uses."""
    return "chaos-" + hashlib.sha1(request.node.nodeid.encode(), usedforsecurity=False).hexdigest()[:12]


@pytest.fixture
def direct(backstay_redis):
    """A Backstay that does not use the proxy."""
    with backstay.sync.Backstay(backstay_redis.url) as stay:
        yield stay


class RequestPatterns:
    """Bytes by which a proxy recognizes the request of each command: the hash of its script, which is loaded first so
    that clients send only the hash.
    """

    def __init__(self, url):
        link = BlockingLink(parse(url), "patterns", None)
        for command in (Acquire, Renew, Release, Withdraw):
            link.call_many([pack("SCRIPT", "LOAD", GATE.script(command))])
            setattr(self, command.__name__.lower(), scripts.command_script(GATE, command).sha.encode())
        link.close()


@pytest.fixture
def patterns(backstay_redis):
    return RequestPatterns(backstay_redis.url)


@pytest.fixture
def patterns_of():
    """`patterns_of(url)` returns the patterns for another server."""
    return RequestPatterns
