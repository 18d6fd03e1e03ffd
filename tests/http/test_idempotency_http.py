"""IdempotencyMiddleware through a real uvicorn and httpx."""

from __future__ import annotations

import asyncio
import secrets
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

httpx = pytest.importorskip("httpx", reason="httpx speaks to the server under test")
pytest.importorskip("uvicorn", reason="uvicorn is the server under test")

from idempotent_app import IdempotentApp  # noqa: E402 - after it is known that it can be imported
from starlette.middleware.base import BaseHTTPMiddleware  # noqa: E402

import backstay  # noqa: E402
import backstay.sync  # noqa: E402
from backstay.http.idempotency import _digest  # noqa: E402
from backstay.http.response_recorder import BytesCodec  # noqa: E402
from backstay.testing.plugin import started_or_skip  # noqa: E402
from backstay.testing.proxy import FaultProxy  # noqa: E402
from backstay.testing.servers import RedisServer  # noqa: E402
from backstay.testing.servers.ports import lasting_port  # noqa: E402
from backstay.testing.waiting import WITHIN, eventually, soon  # noqa: E402

#: Headers that differ between a response and its replay: the server's date, and the replay marker.
VARYING_HEADERS = {"date", "idempotent-replayed"}


@pytest.fixture
def open_app(shared_url, namespace):
    opened = []

    def opener(**options):
        app = IdempotentApp(shared_url, namespace=namespace, **options).__enter__()
        opened.append(app)
        return app

    yield opener
    for app in opened:
        app.__exit__()


def post(app, path="/charge", *, key="k1", content=b"5 EUR", **headers):
    named = {"idempotency-key": key} if key is not None else {}
    return httpx.post(app.base + path, content=content, headers={**named, **headers}, timeout=30)


def is_replay(response):
    return response.headers.get("idempotent-replayed") == "true"


def visible_parts(response):
    """Return the parts of a response that must be equal in its replay."""
    headers = [(name, value) for name, value in response.headers.multi_items() if name not in VARYING_HEADERS]
    return response.status_code, headers, response.content


def test_a_replayed_response_is_identical_to_the_first_one(open_app):
    app = open_app()
    first, again = post(app), post(app)
    assert first.status_code == 201
    assert first.content == b"\x00\xff receipt 1 5 EUR"
    assert not is_replay(first)
    assert is_replay(again)
    assert visible_parts(again) == visible_parts(first)
    assert again.headers.get_list("set-cookie") == ["seen=1", "second=1"]
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
    answers = []
    assert eventually(lambda: answers.append(post(app)) or answers[-1].status_code != 409)
    return answers[-1]


def test_the_wait_option_waits_for_the_request_in_flight(open_app):
    app = open_app(wait=20)
    app.proceed.clear()
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(post, app) for _ in range(8)]
        assert eventually(lambda: app.effects)
        app.proceed.set()
        answers = [call.result() for call in calls]
    assert len({repr(visible_parts(answer)) for answer in answers}) == 1
    assert sum(map(is_replay, answers)) == 7
    assert len(app.effects) == 1


def test_a_key_is_separate_for_each_caller_and_route(open_app):
    app = open_app()
    by_token = [{"authorization": "Bearer a"}, {"authorization": "Bearer b"}]
    for headers in ({}, *by_token, {"x-api-key": "a"}, {"cookie": "a"}):
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


def test_a_streamed_response_is_forwarded_in_chunks_and_replayed_whole(open_app):
    app = open_app()
    app.proceed.clear()
    with httpx.stream("POST", app.base + "/stream", headers={"idempotency-key": "k1"}, timeout=30) as response:
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


class PassThroughMiddleware(BaseHTTPMiddleware):
    """Ends a stream normally when the client disconnects; that must not be recorded as the complete response."""

    async def dispatch(self, request, call_next):
        return await call_next(request)


@pytest.mark.parametrize("inner", [(), (PassThroughMiddleware,)], ids=["plain", "wrapped"])
def test_a_client_that_disconnects_from_a_stream_gets_the_whole_response_on_retry(open_app, inner):
    app = open_app(inner=inner, wait=20)
    with socket.create_connection(("127.0.0.1", app.port)) as line:
        head = [b"POST /ticker HTTP/1.1", b"Host: x", b"Content-Length: 0", b"Idempotency-Key: k1"]
        line.sendall(b"\r\n".join([*head, b"", b""]))
        while b"tick" not in line.recv(65536):
            pass
    again = post(app, "/ticker", content=b"")
    assert again.content == b"tick," * 100 + b"end"
    assert is_replay(again)
    assert len(app.effects) == 1


def test_a_disconnect_before_the_request_is_complete_runs_and_sends_nothing():
    messages = [{"type": "http.request", "body": b"half", "more_body": True}, {"type": "http.disconnect"}]

    async def receive():
        return messages.pop(0)

    async def never(*_):
        pytest.fail("the application was called, or a response was sent")

    async def main():
        scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"idempotency-key", b"k")]}
        async with backstay.Backstay("memory://") as stay:
            await backstay.IdempotencyMiddleware(never, stay=stay)(scope, receive, never)

    asyncio.run(main())
    assert messages == []


def test_a_send_that_fails_after_a_disconnect_still_records_the_response():
    """Since ASGI 2.4, `send` raises OSError after a disconnect."""

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for part in (b"a", b"b"):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"c"})

    async def gone(message):
        raise OSError("gone")

    async def main():
        sent, scope = [], {"type": "http", "method": "POST", "path": "/", "headers": [(b"idempotency-key", b"k")]}

        async def request():
            return {"type": "http.request", "body": b"", "more_body": False}

        async def record(message):
            sent.append(message)

        async with backstay.Backstay("memory://") as stay:
            guarded = backstay.IdempotencyMiddleware(app, stay=stay)
            await guarded(scope, request, gone)
            await guarded(scope, request, record)
        return sent

    start, body = asyncio.run(main())
    assert (b"idempotent-replayed", b"true") in start["headers"]
    assert body["body"] == b"abc"


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


@pytest.mark.parametrize("kept", [b"\x94\x63\xcc\xc8\x90\xc4\x00", b"\xc1", b""], ids=["later", "damaged", "empty"])
def test_an_unreadable_recorded_response_is_a_503_and_not_replayed(open_app, shared_url, namespace, kept):
    route = b"POST\0\0/charge\0"
    name, about = f"http:{_digest(route)}:k1", _digest(route + b"\0" + b"5 EUR")
    with backstay.sync.Backstay(shared_url, namespace=namespace) as stay:
        stay.idempotency.run(name, lambda: kept, fingerprint=about, codec=BytesCodec())
    app = open_app()
    assert post(app).status_code == 503
    assert app.effects == []


def forget_request(url, namespace, path):
    """Remove the record of a request in flight, as an operator can: the request is superseded."""
    with backstay.sync.Backstay(url, namespace=namespace) as stay:
        assert stay.idempotency.forget(f"http:{_digest(f'POST{chr(0)}{chr(0)}{path}{chr(0)}'.encode())}:k1")


def test_the_response_of_a_superseded_request_is_not_sent(open_app, shared_url, namespace):
    app = open_app()
    app.proceed.clear()
    with ThreadPoolExecutor() as pool:
        call = pool.submit(post, app)
        assert eventually(lambda: app.effects)
        forget_request(shared_url, namespace, "/charge")
        app.proceed.set()
        assert call.result().status_code == 503
        assert "taken over" in call.result().json()["detail"]
    assert eventually(lambda: app.background == [1])  # the application still runs to its end
    assert not is_replay(post(app))


def test_the_stream_of_a_superseded_request_is_cut_off(open_app, shared_url, namespace):
    app = open_app()
    app.proceed.clear()
    with httpx.stream("POST", app.base + "/stream", headers={"idempotency-key": "k1"}, timeout=30) as response:
        chunks = response.iter_raw()
        assert next(chunks) == b"first,"
        forget_request(shared_url, namespace, "/stream")
        app.proceed.set()
        with pytest.raises(httpx.RemoteProtocolError):
            list(chunks)


def test_only_one_of_many_concurrent_requests_runs(open_app):
    apps = [open_app(wait=20), open_app(wait=20)]
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda i: post(apps[i % 2]), range(20)))
    assert len({repr(visible_parts(answer)) for answer in answers}) == 1
    assert sum(len(app.effects) for app in apps) == 1


@pytest.fixture
def own_redis():
    server = RedisServer(port=lasting_port())
    try:
        yield started_or_skip(server)
    finally:
        server.stop()


@pytest.mark.redis
@pytest.mark.chaos
@pytest.mark.parametrize(
    ("profile", "status"),
    [(backstay.BALANCED, 503), (backstay.MAX_SAFETY, 503), (backstay.MAX_AVAILABILITY, 201)],
    ids=["balanced", "safety", "availability"],
)
def test_the_profile_decides_what_happens_to_requests_during_an_engine_outage(own_redis, profile, status):
    with IdempotentApp(own_redis.url, namespace=secrets.token_hex(4), profile=profile) as app:
        assert post(app, key="before").status_code == 201
        own_redis.kill()
        answer = post(app)
        assert answer.status_code == status
        assert len(app.effects) == (1 if status == 503 else 2)
        if status == 503:
            assert answer.headers["retry-after"] == "1"
        assert post(app, key=None).status_code == 201  # requests without a key are not affected


@pytest.mark.redis
@pytest.mark.chaos
def test_a_response_that_could_not_be_recorded_is_not_sent(own_redis):
    with IdempotentApp(own_redis.url, namespace=secrets.token_hex(4)) as app, ThreadPoolExecutor() as pool:
        app.proceed.clear()
        call = pool.submit(post, app)
        assert eventually(lambda: app.effects)
        own_redis.kill()
        app.proceed.set()
        assert call.result().status_code == 503


@pytest.mark.parametrize(
    "options", [{"ttl": 0}, {"wait": -1}, {"lease": "long"}, {"on_unavailable": "deny"}, {"max_response": 8 << 20}]
)
def test_invalid_options_are_refused_before_the_first_request(options):
    async def main():
        async with backstay.Backstay("memory://") as stay:
            with pytest.raises(backstay.ConfigError):
                backstay.IdempotencyMiddleware(None, stay=stay, **options)

    asyncio.run(main())


@pytest.mark.redis
def test_a_request_cancelled_while_recording_ends_the_application_and_keeps_the_response(backstay_redis, namespace):
    """A server that shuts down cancels requests; the response is recorded nevertheless."""
    ended = []
    begun, proceed = asyncio.Event(), asyncio.Event()

    async def app(scope, receive, send):
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            begun.set()
            await proceed.wait()
            await send({"type": "http.response.body", "body": b"x"})
        finally:
            ended.append(True)

    async def request():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def main(proxy):
        sent, scope = [], {"type": "http", "method": "POST", "path": "/", "headers": [(b"idempotency-key", b"k")]}

        async def record(message):
            sent.append(message)

        async with backstay.Backstay(proxy.url, namespace=namespace) as stay:
            await stay.idempotency.run("before", lambda: 1)  # loads the scripts into Redis
            guarded = backstay.IdempotencyMiddleware(app, stay=stay)
            call = asyncio.create_task(guarded(scope, request, record))
            await asyncio.wait_for(begun.wait(), WITHIN)
            proxy.rule("delay", b"EVALSHA", seconds=1.5)
            proceed.set()
            assert await soon(lambda: asyncio.sleep(0, proxy.struck["delay"]))
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert len(ended) == 1
            proxy.heal()
            assert sent == []
            await guarded(scope, request, record)
        return sent

    with FaultProxy(backstay_redis.port) as proxy:
        sent = asyncio.run(main(proxy))
    assert len(ended) == 1
    assert (b"idempotent-replayed", b"true") in sent[0]["headers"]


def test_a_blocking_backstay_is_refused():
    with backstay.sync.Backstay("memory://") as stay, pytest.raises(backstay.ConfigError, match="async"):
        backstay.IdempotencyMiddleware(None, stay=stay)
