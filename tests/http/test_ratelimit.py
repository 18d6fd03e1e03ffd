"""RateLimitMiddleware and the FastAPI dependency, through a real server and a real client."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from types import SimpleNamespace

import httpx
import pytest
import redis
from fastapi import Depends, FastAPI
from serving import serving

import backstay
from backstay import ConfigError, RateLimitMiddleware, sync
from backstay.http.caller_key import CallerKeys
from backstay.http.fastapi import RateLimit, handlers
from backstay.testing.servers.ports import reserve_port

pytestmark = pytest.mark.redis


async def hello(scope, receive, send):
    """A minimal ASGI application."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"hello"})


def limited(rates, **options):
    names = {k: options.pop(k) for k in ("algorithm", "on_unavailable") if k in options}
    return lambda stay: RateLimitMiddleware(hello, stay.limit("api", *rates, **names), **options)


@pytest.fixture
def serve(backstay_redis, namespace):
    stack = []

    def start(make, url=backstay_redis.url):
        context = serving(make, url, namespace=namespace)
        stack.append(context)
        return httpx.Client(base_url=context.__enter__())

    clients = []

    def client(*args, **kwargs):
        clients.append(start(*args, **kwargs))
        return clients[-1]

    yield client
    for one in clients:
        one.close()
    for context in reversed(stack):
        context.__exit__(None, None, None)


def test_requests_within_the_limit_pass_with_headers(serve):
    client = serve(limited(["3/hour"]))
    replies = [client.get("/") for _ in range(3)]
    assert [(r.status_code, r.text) for r in replies] == [(200, "hello")] * 3
    assert [r.headers["x-ratelimit-remaining"] for r in replies] == ["2", "1", "0"]
    last = replies[-1].headers
    assert last["ratelimit-policy"] == '"api";q=3;w=3600'
    assert last["ratelimit"] == '"api";r=0;t=3600'
    assert last["x-ratelimit-limit"] == "3"
    assert int(last["x-ratelimit-reset"]) > 1_600_000_000
    assert "retry-after" not in last


def test_a_request_over_the_limit_is_a_429_with_retry_after(serve):
    client = serve(limited(["2/hour", "5/day"]))
    for _ in range(2):
        client.get("/")
    refused = client.get("/")
    assert refused.status_code == 429
    assert refused.headers["content-type"] == "application/problem+json"
    assert 0 < int(refused.headers["retry-after"]) <= 3600
    assert refused.headers["ratelimit-policy"] == '"api-3600s";q=2;w=3600, "api-86400s";q=5;w=86400'
    assert re.fullmatch(r'"api-3600s";r=0;t=\d+', refused.headers["ratelimit"])
    body = refused.json()
    assert (body["title"], body["status"], body["limit"], body["remaining"]) == ("Too Many Requests", 429, 2, 0)
    assert "2/hour and 5/day" in body["detail"]
    assert 0 < body["retry_after"] <= 3600


@pytest.mark.timed
def test_after_retry_after_the_request_is_admitted(serve):
    client = serve(limited(["1/second"]))
    assert client.get("/").status_code == 200
    refused = client.get("/")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    time.sleep(refused.json()["retry_after"] + 0.002)
    assert client.get("/").status_code == 200


def test_a_fail_closed_limit_is_a_503_during_an_engine_outage(serve):
    client = serve(limited(["5/second"]), f"redis://127.0.0.1:{reserve_port()}/0")
    for _ in range(3):
        refused = client.get("/")
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert refused.headers["content-type"] == "application/problem+json"
        assert "x-ratelimit-limit" not in refused.headers
        body = refused.json()
        assert (body["title"], body["status"]) == ("Service Unavailable", 503)
        assert "127.0.0.1" not in refused.text  # internal addresses are not disclosed


@pytest.mark.parametrize(("mode", "statuses"), [("allow", [200, 200, 200]), ("local", [200, 200, 429])])
def test_on_unavailable_decides_during_an_engine_outage(serve, mode, statuses):
    client = serve(limited(["2/hour"], on_unavailable=mode), f"redis://127.0.0.1:{reserve_port()}/0")
    assert [client.get("/").status_code for _ in range(3)] == statuses


def test_a_damaged_record_is_a_503(serve, backstay_redis, namespace):
    client = serve(limited(["2/hour"], key=lambda _: "me"))
    assert client.get("/").status_code == 200
    with redis.Redis.from_url(backstay_redis.url) as server:
        (key,) = server.keys(f"{namespace}:limit:*")
        server.set(key, b"\x93\x02damaged")
    assert client.get("/").status_code == 503


def test_a_forwarded_header_from_an_untrusted_client_is_ignored(serve):
    client = serve(limited(["1/hour"]))
    replies = [client.get("/", headers={"x-forwarded-for": f"9.9.9.{n}"}).status_code for n in range(3)]
    assert replies == [200, 429, 429]


def test_callers_behind_a_trusted_proxy_are_counted_separately(serve):
    client = serve(limited(["1/hour"], trusted_proxies=["127.0.0.0/8"]))
    for caller in ("9.9.9.1", "9.9.9.2"):
        for forged in ("", "1.2.3.4, "):
            reply = client.get("/", headers={"x-forwarded-for": f"{forged}{caller}"})
            assert reply.status_code == (429 if forged else 200)


def test_made_up_api_keys_do_not_evade_the_limit_by_address(serve):
    def make(stay):
        by_address = stay.limit("by-address", "3/hour")
        return RateLimitMiddleware(hello, stay.limit("api", "2/hour"), key="api-key", address_limit=by_address)

    client = serve(make)
    replies = [client.get("/", headers={"x-api-key": f"made-up-{n}"}) for n in range(5)]
    assert [reply.status_code for reply in replies] == [200, 200, 200, 429, 429]
    assert "3/hour" in replies[-1].json()["detail"]
    assert replies[0].headers["x-ratelimit-limit"] == "2"


def test_api_keys_are_counted_separately_and_stored_only_as_hashes(serve, backstay_redis, namespace):
    client = serve(limited(["1/hour"], key="api-key"))
    for secret in ("s3cret-one", "s3cret-two"):
        assert [client.get("/", headers={"x-api-key": secret}).status_code for _ in range(2)] == [200, 429]
    assert client.get("/").status_code == 200  # without a key: counted by address
    with sync.Backstay(backstay_redis.url, namespace=namespace) as stay:
        keys = {use.key for use in stay.limits.list("api")}
    assert f"key:{hashlib.sha256(b's3cret-one').hexdigest()[:32]}" in keys
    assert not any("s3cret" in key for key in keys)


@pytest.mark.parametrize("is_async", [True, False])
def test_a_key_function_names_the_key_or_exempts_the_request(serve, is_async):
    def by_path(scope):
        return None if scope["path"] == "/health" else f"path:{scope['path']}"

    async def by_path_later(scope):
        return by_path(scope)

    client = serve(limited(["1/hour"], key=by_path_later if is_async else by_path))
    paths = ["/a", "/a", "/b", "/health", "/health"]
    assert [client.get(path).status_code for path in paths] == [200, 429, 200, 200, 200]


def test_headers_that_the_application_sets_are_not_overwritten(serve):
    async def with_headers(scope, receive, send):
        own = [(b"x-ratelimit-limit", b"7"), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 204, "headers": own})
        await send({"type": "http.response.body", "body": b""})

    client = serve(lambda stay: RateLimitMiddleware(with_headers, stay.limit("api", "9/hour")))
    reply = client.get("/")
    assert reply.headers.get_list("x-ratelimit-limit") == ["7"]
    assert reply.headers["x-ratelimit-remaining"] == "8"


def fastapi(stay, **options):
    app = FastAPI(**options)
    login = RateLimit(stay.limit("login", "2/hour"))

    @app.get("/login", dependencies=[Depends(login)])
    async def log_in() -> str:
        return "welcome"

    @app.get("/free")
    async def free() -> str:
        return "free"

    return app


@pytest.mark.parametrize("whole", [True, False])
def test_a_dependency_limits_only_its_own_routes(serve, whole):
    client = serve(lambda stay: fastapi(stay, **({"exception_handlers": handlers} if whole else {})))
    first = client.get("/login")
    assert (first.status_code, first.json(), first.headers["x-ratelimit-remaining"]) == (200, "welcome", "1")
    client.get("/login")
    refused = client.get("/login")
    assert refused.status_code == 429
    assert refused.headers["content-type"] == "application/problem+json"
    assert 0 < int(refused.headers["retry-after"]) <= 3600
    assert "2/hour" in refused.json()["detail"]
    assert ("status" in refused.json()) is whole
    assert "x-ratelimit-limit" not in client.get("/free").headers


def test_a_dependency_is_a_503_during_an_engine_outage(serve):
    client = serve(fastapi, f"redis://127.0.0.1:{reserve_port()}/0")
    refused = client.get("/login")
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert client.get("/free").status_code == 200


def key(how, client=("10.0.0.9", 1234), forwarded=(), trusted=(), **scope):
    headers = [(b"x-forwarded-for", value.encode()) for value in forwarded]
    return CallerKeys(trusted).find(how)({"client": client, "headers": headers, **scope})


@pytest.mark.parametrize(
    ("client", "forwarded", "trusted", "found"),
    [
        ("10.0.0.9", [], [], "ip:10.0.0.9"),
        ("10.0.0.9", ["1.1.1.1"], [], "ip:10.0.0.9"),
        ("10.0.0.9", ["1.1.1.1"], ["10.0.0.0/8"], "ip:1.1.1.1"),
        ("10.0.0.9", ["6.6.6.6, 1.1.1.1, 10.0.0.1"], ["10.0.0.0/8"], "ip:1.1.1.1"),
        ("10.0.0.9", ["6.6.6.6", "1.1.1.1"], ["10.0.0.0/8"], "ip:1.1.1.1"),
        ("10.0.0.9", ["10.0.0.3, 10.0.0.4"], ["10.0.0.0/8"], "ip:10.0.0.3"),
        ("10.0.0.9", ["1.1.1.1:5555"], ["10.0.0.9"], "ip:1.1.1.1"),
        ("10.0.0.9", ["6.6.6.6, nonsense"], ["10.0.0.9"], "ip:10.0.0.9"),
        ("10.0.0.9", [""], ["10.0.0.9"], "ip:10.0.0.9"),
        ("::ffff:10.0.0.9", ["1.1.1.1"], ["10.0.0.9"], "ip:1.1.1.1"),
        ("2001:db8::1", [], [], "ip:2001:db8::/64"),
        ("2001:db8::ffff:2", [], [], "ip:2001:db8::/64"),
        ("::1", ["[2001:db8:1::7]:443"], ["::1/128"], "ip:2001:db8:1::/64"),
        ("fe80::1%eth0", [], [], "ip:fe80::/64"),
    ],
)
def test_the_client_address_is_the_nearest_one_that_is_not_a_trusted_proxy(client, forwarded, trusted, found):
    assert key("ip", (client, 1), forwarded, trusted) == found


def test_callers_without_an_address_share_the_key_unknown():
    assert key("ip", None) == "ip:unknown"
    assert key("ip", ("testclient", 50000)) == "ip:unknown"


def test_authenticated_users_are_counted_by_identity_and_others_by_address():
    known = SimpleNamespace(is_authenticated=True, identity="7", display_name="Ada")
    assert key("user", user=known) == "user:7"
    assert key("user", user=SimpleNamespace(is_authenticated=True, display_name="Ada")) == "user:Ada"
    assert key("user", user=SimpleNamespace(is_authenticated=False, display_name="")) == "ip:10.0.0.9"
    assert key("user") == "ip:10.0.0.9"
    assert len(key("user", user="x" * 10_000)) < 100


def test_invalid_rate_limit_options_are_refused():
    with pytest.raises(ConfigError, match="trusted_proxies"):
        CallerKeys(["10.0.0.0/99"])
    with pytest.raises(ConfigError, match="api-key"):
        CallerKeys().find("cookie")
    with sync.Backstay("memory://") as stay, pytest.raises(ConfigError, match="async Backstay"):
        RateLimitMiddleware(hello, stay.limit("api", "1/s"))
    with sync.Backstay("memory://") as stay, pytest.raises(ConfigError, match="async Backstay"):
        RateLimit(stay.limit("api", "1/s"))


def test_websocket_and_lifespan_scopes_are_not_limited():
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["type"])

    async def main():
        async with backstay.Backstay("memory://") as stay:
            middleware = RateLimitMiddleware(app, stay.limit("api", "1/s"))
            for kind in ("lifespan", "websocket", "websocket"):
                await middleware({"type": kind}, None, None)

    asyncio.run(main())
    assert seen == ["lifespan", "websocket", "websocket"]
