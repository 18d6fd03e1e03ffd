"""Fixtures with the engines of n8n, loaded once per test process and shared by its tests."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import subprocess
import sys
from http import HTTPStatus
from urllib.parse import quote

import pytest
import redis
from full_server import MAJORS, FullServer
from lab.process import Lab
from lab.runner import PrimitiveRunner
from patched import LabClient

from backstay.testing.servers import ServerMissing
from support.programs import programs

ENGINES = ("1", "2")


@pytest.fixture(scope="session")
def n8n_labs():
    """`n8n_labs("1")` returns the lab of that engine. A missing engine skips the test locally and fails it in CI."""
    made = {}

    def lab(major):
        if major not in made:
            try:
                made[major] = Lab(major).start_up()
            except ServerMissing as error:
                if os.environ.get("CI"):
                    raise
                pytest.skip(str(error))
        return made[major]

    yield lab
    for one in made.values():
        one.close()


@pytest.fixture(params=ENGINES)
def n8n_lab(request, n8n_labs):
    """The lab of each engine (parametrized)."""
    return n8n_labs(request.param)


@pytest.fixture(scope="session")
def n8n_servers(request, tmp_path_factory):
    """`n8n_servers("1")` returns a full n8n server, for tests marked `n8n_server` (`make test-n8n-server`). With
    `queue` it is in queue mode: a main process, a worker that runs workflows, and a Redis between them.
    """
    made = {}

    def server(major, *, queue=False):
        if (major, queue) not in made:
            port = request.getfixturevalue("backstay_redis").port if queue else None
            made[major, queue] = FullServer(tmp_path_factory.mktemp("n8n"), major, port)
            made[major, queue].start()
        return made[major, queue]

    yield server
    for one in made.values():
        one.stop()


@pytest.fixture(params=MAJORS)
def n8n_server(request, n8n_servers):
    """The server of each major version (parametrized)."""
    return n8n_servers(request.param)


@pytest.fixture(params=MAJORS)
def n8n_queue(request, n8n_servers):
    """The server of each major version, in queue mode."""
    return n8n_servers(request.param, queue=True)


@pytest.fixture
def scope():
    """A unique scope, so that tests can share one Redis, with characters that need escaping."""
    return f"test:{secrets.token_hex(6)}.a/b ü"


@pytest.fixture
def over_redis(n8n_lab, backstay_redis):
    """The primitives on a real Redis."""
    data = {"host": "127.0.0.1", "port": backstay_redis.port, "database": 0, "ssl": False}
    return PrimitiveRunner(n8n_lab, "redis", [{"id": "redis", "data": data}])


@pytest.fixture(scope="session")
def backstay_server(tmp_path_factory):
    """A real `backstay serve` with tokens: its URL, and a token."""
    url = f"sqlite:///{tmp_path_factory.mktemp('server') / 'backstay.db'}?synchronous=normal"
    command = [sys.executable, "-m", "backstay", "--url", url, "token", "create", "--role", "worker"]
    token = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True).stdout.strip()
    with programs() as start, contextlib.ExitStack() as stack:
        server = start("--url", url, "serve", "--port", "0")
        stack.callback(server.stop)
        yield server.waits_for(r"listening on (http://\S+)")[1], token


@pytest.fixture
def over_http(n8n_lab, backstay_server):
    """The primitives on a real `backstay serve`."""
    url, token = backstay_server
    data = {"name": "Authorization", "value": f"Bearer {token}"}
    return PrimitiveRunner(n8n_lab, "http", [{"id": "backstay", "data": data}], url=url)


@pytest.fixture
def lab_client(over_redis, backstay_redis):
    """Runs patched workflows on a real Redis, with a unique scope."""
    with redis.Redis.from_url(backstay_redis.url, decode_responses=True) as raw:
        yield LabClient(over_redis, lambda key: raw.exists(key) == 1)


@pytest.fixture
def http_lab_client(over_http, backstay_server):
    """Runs patched workflows on a real `backstay serve`, with a unique scope."""
    url, token = backstay_server

    server = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)

    def ask(scope, verb, **body):
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        wanted = json.dumps({"lock_id": "test", **body})
        server.request("POST", f"/api/locks/{quote(scope, safe='')}/{verb}", wanted, headers)
        response = server.getresponse()
        response.read()
        return response.status

    def held(scope):
        """Return whether the lock is held: an acquire without waiting fails."""
        status = ask(scope, "acquire", wait_till_lock_released=False)
        assert status in (HTTPStatus.OK, HTTPStatus.CONFLICT)
        return status == HTTPStatus.CONFLICT or ask(scope, "release") != HTTPStatus.OK

    with contextlib.closing(server):
        yield LabClient(over_http, held)
