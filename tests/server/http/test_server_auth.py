"""Tokens, roles and origin checks. Routes are read from the route table, so a new route is tested automatically."""

from __future__ import annotations

import contextlib
import socket
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import httpx
import pytest
from route_names import name, path_of

from backstay.engine.base import steady
from backstay.errors import ConfigError
from backstay.job.flows import send
from backstay.server import hosting
from backstay.server.hosting import HostOptions
from backstay.server.http import auth
from backstay.server.http.auth import digest, new_token
from backstay.server.http.route import ROLES
from backstay.server.routes.table import TABLE
from backstay.server.settings import ServerSettings, require_tokens_beyond_loopback
from backstay.testing.waiting import eventually
from support.server.site import serving

GUARDED = [route for route in TABLE if route.roles]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A server with one token per role; yields the site and the tokens by role."""
    made = {}

    async def prepare(server):
        await server.stay.open()
        for role in ROLES:
            made[role], record = new_token(role, role)
            await send(server.core, server.store.put_token(record))

    url = f"sqlite:///{tmp_path_factory.mktemp('auth') / 'backstay.db'}?synchronous=normal"
    with serving(
        url, prepare=prepare, settings=ServerSettings(access_log=False, auth_failure_rate="1000/minute")
    ) as running:
        yield running, made


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with serving(f"sqlite:///{tmp_path_factory.mktemp('open') / 'backstay.db'}?synchronous=normal") as running:
        yield running


def call_route(site, route, token=None, scheme="Bearer"):
    headers = {} if token is None else {"authorization": f"{scheme} {token}"}
    options = {"poll_seconds": 0} if route.path.endswith("/acquire") else {}
    body = {"json": options} if route.method == "POST" else {}
    with site.http.stream(route.method, path_of(route), headers=headers, **body) as response:
        return response.status_code, dict(response.headers)


def test_only_health_and_dashboard_routes_need_no_token():
    assert {route.path for route in TABLE if not route.roles} == {"/healthz", "/readyz", "/", "/assets/{file}"}


@pytest.mark.parametrize("route", GUARDED, ids=name)
def test_no_route_answers_without_a_token(guarded, route):
    site, _ = guarded
    status, headers = call_route(site, route)
    assert status == 401
    assert headers["www-authenticate"].startswith("Bearer")
    assert headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("route", GUARDED, ids=name)
def test_no_route_accepts_a_wrong_token(guarded, route):
    site, tokens = guarded
    right = tokens["admin"]
    for wrong in (f"{right}x", right[:-1], "bst_nobody_secret", "x", f"bst_{right}", right.replace("bst_", "xx_")):
        assert call_route(site, route, wrong)[0] == 401
    assert call_route(site, route, right, scheme="Basic")[0] == 401


@pytest.mark.parametrize("route", GUARDED, ids=name)
def test_a_route_accepts_only_its_roles(guarded, route):
    site, tokens = guarded
    for role in ROLES:
        status, _ = call_route(site, route, tokens[role])
        if role in route.roles:
            assert status not in (401, 403, 500)
        else:
            assert status == 403


def test_health_needs_no_token_and_reveals_nothing(guarded):
    site, _ = guarded
    assert site.get("/healthz").json() == {"status": "ok"}
    assert site.get("/readyz").json() == {"status": "ok"}


def test_only_the_hash_of_a_token_is_stored(guarded):
    site, tokens = guarded
    records = site.do(send(site.server.core, site.server.store.tokens()))
    assert {record.role for record in records} == set(ROLES)
    for record in records:
        secret = tokens[record.role].split("_", 2)[2]
        assert record.digest == digest(secret)
        assert secret.encode() not in repr(record).encode()


@pytest.fixture
def fast_token_refresh(monkeypatch):
    """The server rereads tokens after 50 ms instead of two seconds."""
    monkeypatch.setattr(auth, "REFRESH_SECONDS", 0.05)


@pytest.mark.usefixtures("fast_token_refresh")
def test_a_revoked_token_is_refused_soon(tmp_path):
    token, record = new_token("submit")
    admin, other = new_token("admin")

    async def prepare(server):
        await server.stay.open()
        await send(server.core, server.store.put_token(record))
        await send(server.core, server.store.put_token(other))

    with serving(f"sqlite:///{tmp_path / 'backstay.db'}", prepare=prepare) as site:
        headers = {"authorization": f"Bearer {token}"}
        assert site.get("/api/jobs", headers=headers).status_code == 200
        site.do(send(site.server.core, site.server.store.drop_token(record.id)))
        assert eventually(lambda: site.get("/api/jobs", headers=headers).status_code == 401)
        assert site.get("/api/jobs", headers={"authorization": f"Bearer {admin}"}).status_code == 200


#: Two seconds until the server rereads tokens, two until waiting requests are checked again, and a margin.
SOON_REVOKED = 10.0


def test_streams_and_long_polls_of_a_revoked_token_end(tmp_path):
    """Log streams, event streams and long polls of the token end within seconds; those of other tokens continue."""
    tokens, records = zip(*(new_token("admin") for _ in range(2)), strict=True)

    async def prepare(server):
        await server.stay.open()
        for record in records:
            await send(server.core, server.store.put_token(record))

    with (
        serving(f"sqlite:///{tmp_path / 'backstay.db'}", prepare=prepare) as site,
        ThreadPoolExecutor(20) as threads,
        contextlib.ExitStack() as cleanup,
    ):
        cleanup.callback(site.loop.call_soon_threadsafe, site.server.begin_close)  # ends the streams of the other token
        mine, other = ({"authorization": f"Bearer {token}"} for token in tokens)
        site.http.post("/api/locks/busy/acquire", json={"lock_id": "holder"}, headers=other)
        site.http.post(
            "/api/workflows",
            content="name: w\njobs: {a: {run: echo a}}",
            headers={**other, "content-type": "application/yaml"},
        )
        run = site.http.post("/api/workflows/w/run", json={}, headers=other).json()["run_id"]
        open_streams = Barrier(9)

        def stream(path, headers):
            received = b""
            with contextlib.suppress(httpx.ReadTimeout), site.http.stream("GET", path, headers=headers) as response:
                assert response.status_code == 200
                for place, piece in enumerate(response.iter_raw()):
                    received += piece
                    if place == 0:
                        open_streams.wait(20)
            return steady(), received

        def poll(path, body, headers):
            open_streams.wait(20)
            response = site.http.post(path, json=body, headers=headers)
            return steady(), response.status_code

        streams = ["/api/events", f"/api/runs/{run}/events/stream", "/api/workflows/w/jobs/a/logs/stream"]
        ending = [threads.submit(stream, path, mine) for path in streams]
        lasting = [threads.submit(stream, path, other) for path in streams]
        wait = {"lock_id": "me", "max_wait_seconds": 50, "poll_seconds": 50}
        polls = [
            threads.submit(poll, "/api/locks/busy/acquire", wait, mine),
            threads.submit(poll, "/api/jobs/claim", {"worker_id": "w", "queues": ["none"], "wait_secs": 30}, mine),
        ]
        open_streams.wait(20)
        assert eventually(lambda: site.server.waiting == 8)
        began = steady()
        site.do(send(site.server.core, site.server.store.drop_token(records[0].id)))
        for at, received in [one.result(30) for one in ending]:
            assert at - began < SOON_REVOKED
            assert received.endswith(b": the token is no longer valid\n\n")
        for at, status in [one.result(30) for one in polls]:
            assert at - began < SOON_REVOKED
            assert status == 401
        assert not any(one.done() for one in lasting)


@pytest.mark.usefixtures("fast_token_refresh")
def test_the_first_token_makes_tokens_required(site):
    assert site.get("/api/jobs").status_code == 200
    _, record = new_token("admin")
    site.do(send(site.server.core, site.server.store.put_token(record)))
    assert eventually(lambda: site.get("/api/jobs").status_code == 401)


def test_the_first_token_is_required_from_the_next_request_on(site, monkeypatch):
    """Also when no request has reached the server since the token was created."""
    assert site.get("/api/jobs").status_code == 200
    monkeypatch.setattr(auth, "REFRESH_SECONDS", 0.0)
    _, record = new_token("admin")
    site.do(send(site.server.core, site.server.store.put_token(record)))
    assert site.get("/api/jobs").status_code == 401


@pytest.mark.usefixtures("fast_token_refresh")
def test_revoking_the_last_token_keeps_tokens_required(site):
    token, record = new_token("admin")
    mine = {"authorization": f"Bearer {token}"}
    site.do(send(site.server.core, site.server.store.put_token(record)))
    assert eventually(lambda: site.get("/api/jobs").status_code == 401)
    assert site.get("/api/jobs", headers=mine).status_code == 200
    site.do(send(site.server.core, site.server.store.drop_token(record.id)))
    assert eventually(lambda: site.get("/api/jobs", headers=mine).status_code == 401)
    assert site.get("/api/jobs").status_code == 401


def test_a_token_that_has_expired_is_refused(tmp_path):
    token, record = new_token("admin", expires=1)
    lasting, other = new_token("admin")

    async def prepare(server):
        await server.stay.open()
        await send(server.core, server.store.put_token(other))
        await server.keyring.refresh()
        server.keyring.load([record, other])

    with serving(f"sqlite:///{tmp_path / 'backstay.db'}", prepare=prepare) as site:
        assert site.get("/api/jobs", headers={"authorization": f"Bearer {token}"}).status_code == 401
        assert site.get("/api/jobs", headers={"authorization": f"Bearer {lasting}"}).status_code == 200


def test_repeated_wrong_tokens_are_rate_limited(tmp_path):
    settings = ServerSettings(access_log=False, auth_failure_rate="5/minute", require_tokens=True)
    with serving(f"sqlite:///{tmp_path / 'backstay.db'}", settings=settings) as site:
        statuses = [site.get("/api/jobs", headers={"authorization": f"Bearer bst_a_{n}"}).status_code for n in range(8)]
        assert statuses == [401] * 5 + [429] * 3
        assert site.get("/api/jobs").status_code == 401


def test_a_non_loopback_address_needs_tokens():
    for host in ("127.0.0.1", "localhost", "::1", "[::1]", "127.8.8.8"):
        require_tokens_beyond_loopback(host, tokens=0, required=False)
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org", ""):  # noqa: S104 - refused addresses
        with pytest.raises(ConfigError, match="backstay token create"):
            require_tokens_beyond_loopback(host, tokens=0, required=False)
        require_tokens_beyond_loopback(host, tokens=1, required=False)
        require_tokens_beyond_loopback(host, tokens=0, required=True)


def test_a_non_loopback_address_always_requires_tokens():
    assert HostOptions(host="0.0.0.0").effective_settings.require_tokens  # noqa: S104 - the address under test
    assert not HostOptions(host="127.0.0.1").effective_settings.require_tokens
    assert HostOptions(host="127.0.0.1", settings=ServerSettings(require_tokens=True)).effective_settings.require_tokens


def test_an_unknown_host_header_is_refused(site):
    for host in ("evil.example.org", "evil.example.org:3000", "127.0.0.1.evil.org", "localhost.evil.org", ""):
        assert site.get("/api/jobs", headers={"host": host}).status_code == 421
    for host in ("localhost", "localhost:9", "127.0.0.1:80", "[::1]:3000", "[::1]"):
        assert site.get("/api/jobs", headers={"host": host}).status_code == 200


FOREIGN = (
    {"origin": "https://evil.example.org"},
    {"origin": "null"},
    {"origin": "http://127.0.0.1:1"},
    {"origin": "https://evil.example.org", "sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
)


@pytest.mark.parametrize("route", [route for route in GUARDED if route.method != "GET"], ids=name)
def test_a_cross_site_request_is_refused(shared, route):
    for headers in FOREIGN:
        response = shared.http.request(route.method, path_of(route), headers=headers)
        assert response.status_code == 403, headers
        assert "--cors" in response.json()["detail"]


def test_same_origin_pages_and_programs_are_accepted(shared):
    own = f"http://127.0.0.1:{shared.port}"
    for headers in ({}, {"origin": own}, {"origin": own, "sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}):
        assert shared.http.post("/api/queues/q/resume", headers=headers).status_code == 200
    # Behind a proxy that forwards requests under a different host name.
    proxied = {"origin": "https://ops.example.org", "sec-fetch-site": "same-origin"}
    assert shared.http.post("/api/queues/q/resume", headers=proxied).status_code == 200


def test_a_configured_cors_origin_is_accepted(tmp_path):
    settings = ServerSettings(access_log=False, cors=("https://ops.example.org",))
    with serving(f"sqlite:///{tmp_path / 'backstay.db'}", settings=settings) as site:
        headers = {"origin": "https://ops.example.org", "sec-fetch-site": "cross-site"}
        assert site.http.post("/api/queues/q/resume", headers=headers).status_code == 200


def test_an_unknown_role_makes_no_token():
    with pytest.raises(ConfigError, match="submit"):
        new_token("root")


def test_nagles_algorithm_is_off():
    with hosting.bind("127.0.0.1", 0) as sock:
        assert sock.proto == socket.IPPROTO_TCP  # asyncio sets TCP_NODELAY only on sockets with this protocol number
