"""IdempotencyMiddleware through a real uvicorn and httpx: keys, replays, streams and options."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from idempotent_app import CALLER, is_replay, post, visible_parts

import backstay
import backstay.sync
from backstay.http.idempotency import _digest, by_credentials
from backstay.http.response_recorder import BytesCodec
from backstay.testing.waiting import eventually


def test_a_replayed_response_is_identical_to_the_first_one(open_app):
    app = open_app()
    first, again = post(app), post(app)
    assert first.status_code == 201
    assert first.content == b"\x00\xff receipt 1 5 EUR"
    assert not is_replay(first)
    assert is_replay(again)
    assert visible_parts(again) == visible_parts(first)
    assert first.headers.get_list("set-cookie") == ["seen=1", "second=1"]
    assert again.headers.get_list("set-cookie") == []
    assert len(app.effects) == 1
    assert eventually(lambda: app.background == [1])  # the background task ran once


def test_a_second_server_replays_the_response_of_the_first(open_app):
    first = post(open_app())
    other = open_app()
    assert visible_parts(post(other)) == visible_parts(first)
    assert other.effects == []


def test_requests_without_a_key_and_safe_methods_pass(open_app):
    app = open_app()
    for _ in range(2):
        assert post(app, key=None).status_code == 201
        assert httpx.get(app.base + "/charge", headers={"idempotency-key": "k1"}).status_code == 201
    assert len(app.effects) == 4


def test_a_missing_key_is_refused_where_it_is_required(open_app):
    app = open_app(required=lambda scope: scope["path"] == "/charge")
    refused = post(app, key=None)
    assert refused.status_code == 400
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["status"] == 400
    assert "Idempotency-Key" in refused.json()["detail"]
    assert app.effects == []
    assert post(app, "/refund", key=None).status_code == 201


@pytest.mark.parametrize(
    "key",
    [b"", b"  ", b"x" * 256, b"a\tb", "ключ".encode(), b"\xff"],
    ids=["empty", "blank", "long", "control", "unicode", "byte"],
)
def test_a_key_is_short_printable_text(open_app, key):
    app = open_app()
    head = [b"POST /charge HTTP/1.1", b"Host: x", b"Connection: close", b"Content-Length: 0"]
    with socket.create_connection(("127.0.0.1", app.port)) as line:
        line.sendall(b"\r\n".join([*head, b"Idempotency-Key: " + key, b"", b""]))
        answer = b"".join(iter(lambda: line.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"printable ASCII" in answer
    assert app.effects == []


def test_two_keys_are_refused(open_app):
    app = open_app()
    refused = httpx.post(app.base + "/charge", headers=[("idempotency-key", "a"), ("idempotency-key", "b")])
    assert refused.status_code == 400
    assert app.effects == []


def test_another_request_with_the_same_key_is_refused(open_app):
    app = open_app()
    post(app)
    for other in (post(app, content=b"6 EUR"), post(app, "/charge?currency=USD")):
        assert other.status_code == 422
        assert other.json()["title"].startswith("Unprocessable")
    assert len(app.effects) == 1


def test_a_request_in_flight_is_a_409_with_retry_after(open_app):
    app = open_app()
    app.proceed.clear()
    with ThreadPoolExecutor() as pool:
        first = pool.submit(post, app)
        assert eventually(lambda: app.effects)
        refused = post(app)
        assert refused.status_code == 409
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["since"]
        app.proceed.set()
        assert visible_parts(post_until_done(app)) == visible_parts(first.result())
    assert len(app.effects) == 1


def post_until_done(app):
    """Repeat the request until it is no longer a 409, as a client would."""
    responses = []
    assert eventually(lambda: responses.append(post(app)) or responses[-1].status_code != 409)
    return responses[-1]


def test_the_wait_option_waits_for_the_request_in_flight(open_app):
    app = open_app(wait=20)
    app.proceed.clear()
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(post, app) for _ in range(8)]
        assert eventually(lambda: app.effects)
        app.proceed.set()
        responses = [call.result() for call in calls]
    assert len({repr(visible_parts(answer)) for answer in responses}) == 1
    assert sum(map(is_replay, responses)) == 7
    assert len(app.effects) == 1


def test_a_key_is_separate_for_each_caller_and_route(open_app):
    app = open_app()
    by_token = [{"authorization": "Bearer a"}, {"authorization": "Bearer b"}]
    for headers in (*by_token, {"x-api-key": "a"}, {"authorization": "Bearer a", "x-api-key": "a"}):
        for path in ("/charge", "/refund"):
            before = len(app.effects)
            assert not is_replay(post(app, path, **headers))
            assert is_replay(post(app, path, **headers))
            assert len(app.effects) == before + 1


def test_the_principal_option_identifies_the_caller(open_app):
    async def tenant(scope):
        return dict(scope["headers"]).get(b"x-tenant", b"").decode()

    app = open_app(principal=tenant)
    post(app, **{"x-tenant": "a", "authorization": "Bearer old"})
    assert is_replay(post(app, **{"x-tenant": "a", "authorization": "Bearer new"}))
    assert not is_replay(post(app, **{"x-tenant": "b"}))


def test_users_who_share_an_api_key_never_get_each_others_responses(open_app):
    app = open_app(cookies=["session"])
    for session in ("a", "b"):
        response = post(app, **{"x-api-key": "shared", "cookie": f"session={session}"})
        assert not is_replay(response)
        assert response.headers["x-receipt"] == {"a": "1", "b": "2"}[session]
    assert is_replay(post(app, **{"x-api-key": "shared", "cookie": "session=a"}))


def test_only_named_cookies_identify_the_caller(open_app):
    app = open_app(cookies=["session"])
    post(app, cookie="session=a; csrf=1; _ga=2")
    assert is_replay(post(app, cookie="_ga=3; csrf=4; session=a"))
    assert not is_replay(post(app, cookie="session=b; csrf=1"))
    assert not is_replay(post(app, cookie="session=a", authorization="Bearer x"))
    assert len(app.effects) == 3


def test_cookies_that_identify_no_caller_are_ignored_when_the_application_says_so(open_app):
    app = open_app(cookies=())
    post(app, cookie="_ga=1", **CALLER)
    assert is_replay(post(app, cookie="_ga=2", **CALLER))
    assert post(app, cookie="session=a").status_code == 400


def test_cookies_are_a_configuration_error_until_the_application_names_them(open_app):
    app = open_app()
    assert post(app, cookie="session=a", **CALLER).status_code == 500
    assert app.effects == []

    async def never(*_):
        pytest.fail("the application was called, or a response was sent")

    async def main():
        headers = [(b"idempotency-key", b"k"), (b"Cookie", b"session=a")]
        async with backstay.Backstay("memory://") as stay:
            guarded = backstay.IdempotencyMiddleware(never, stay=stay)
            with pytest.raises(backstay.ConfigError, match="cookies="):
                await guarded({"type": "http", "method": "POST", "path": "/", "headers": headers}, never, never)

    asyncio.run(main())


def test_a_request_without_credentials_needs_the_principal_option(open_app):
    app = open_app()
    refused = httpx.post(app.base + "/charge", content=b"5 EUR", headers={"idempotency-key": "k1"})
    assert refused.status_code == 400
    assert "principal=" in refused.json()["detail"]
    assert app.effects == []
    anonymous = open_app(principal=lambda _: "anyone")
    assert httpx.post(anonymous.base + "/charge", headers={"idempotency-key": "k1"}).status_code == 201


@pytest.mark.parametrize("nothing", [None, ""])
def test_a_principal_that_identifies_no_caller_is_refused(open_app, nothing):
    app = open_app(principal=lambda _: nothing)
    assert post(app).status_code == 400
    assert app.effects == []


def test_a_cookie_that_the_application_sets_is_never_stored(open_app, shared_url, namespace):
    post(open_app())
    scope = {"headers": [(name.encode(), value.encode()) for name, value in CALLER.items()]}
    caller = by_credentials(scope)
    route = "POST\0\0/charge\0"
    name, about = f"http:{_digest((route + caller).encode())}:k1", _digest(f"{route}\0".encode() + b"5 EUR")

    def fail():
        pytest.fail("the response was not stored")

    with backstay.sync.Backstay(shared_url, namespace=namespace) as stay:
        stored = stay.idempotency.run(name, fail, fingerprint=about, codec=BytesCodec())
    assert b"x-receipt" in stored
    assert b"cookie" not in stored.lower()


def test_a_streamed_response_is_forwarded_in_chunks_and_replayed_whole(open_app):
    app = open_app()
    app.proceed.clear()
    headers = {"idempotency-key": "k1", **CALLER}
    with httpx.stream("POST", app.base + "/stream", headers=headers, timeout=30) as response:
        chunks = response.iter_raw()
        assert next(chunks) == b"first,"
        assert post(app, "/stream", content=b"").status_code == 409  # the first request is still in flight
        app.proceed.set()
        assert b"".join(chunks) == b"second"
    again = post(app, "/stream", content=b"")
    assert again.content == b"first,second"
    assert again.headers["content-type"] == response.headers["content-type"]
    assert is_replay(again)
    assert len(app.effects) == 1


def test_a_request_over_the_cap_is_refused(open_app):
    app = open_app(max_body=100)
    refused = post(app, content=b"x" * 101)
    assert refused.status_code == 413
    assert refused.json()["limit"] == 100
    assert post(app, content=b"x" * 100).status_code == 201
    assert len(app.effects) == 1


def test_a_response_over_the_cap_is_sent_once_and_the_request_is_not_run_again(open_app):
    app = open_app(max_response=1000)
    assert post(app, "/large").content == b"x" * 5000
    again = post(app, "/large")
    assert again.status_code == 409
    assert "too large" in again.json()["detail"]
    assert len(app.effects) == 1


@pytest.mark.parametrize("status", [200, 400, 404])
def test_final_responses_are_recorded_including_client_errors(open_app, status):
    app = open_app()
    app.status = status
    assert post(app).status_code == status
    again = post(app)
    assert again.status_code == status
    assert is_replay(again)
    assert len(app.effects) == 1


@pytest.mark.parametrize("status", [429, 500, 503])
def test_retryable_responses_are_not_recorded(open_app, status):
    app = open_app()
    app.status = status
    assert post(app).status_code == status
    assert not is_replay(post(app))
    assert len(app.effects) == 2


def test_a_request_runs_again_after_the_application_raised(open_app):
    """Also after an EngineUnavailable that the application itself raised, since it may use Backstay."""
    app = open_app()
    assert post(app, "/broken").status_code == 500
    assert post(app, "/broken").status_code == 500
    assert post(app, "/broken").json() == {"done": 3}
    assert post(app, "/broken").json() == {"done": 3}


def test_only_one_of_many_concurrent_requests_runs(open_app):
    apps = [open_app(wait=20), open_app(wait=20)]
    with ThreadPoolExecutor(20) as pool:
        responses = list(pool.map(lambda i: post(apps[i % 2]), range(20)))
    assert len({repr(visible_parts(answer)) for answer in responses}) == 1
    assert sum(len(app.effects) for app in apps) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"ttl": 0},
        {"wait": -1},
        {"lease": "long"},
        {"on_unavailable": "deny"},
        {"max_response": 8 << 20},
        {"cookies": "session"},
        {"cookies": ["session"], "principal": str},
    ],
)
def test_invalid_options_are_refused_before_the_first_request(options):
    async def main():
        async with backstay.Backstay("memory://") as stay:
            with pytest.raises(backstay.ConfigError):
                backstay.IdempotencyMiddleware(None, stay=stay, **options)

    asyncio.run(main())


def test_a_blocking_backstay_is_refused():
    with backstay.sync.Backstay("memory://") as stay, pytest.raises(backstay.ConfigError, match="async"):
        backstay.IdempotencyMiddleware(None, stay=stay)
