"""IdempotencyMiddleware under faults: disconnects, superseded requests, damaged records and engine outages."""

from __future__ import annotations

import asyncio
import secrets
import socket
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from idempotent_app import CALLER, IdempotentApp, is_replay, post
from starlette.middleware.base import BaseHTTPMiddleware

import backstay
import backstay.sync
from backstay.http.idempotency import _digest, by_credentials
from backstay.http.response_recorder import BytesCodec
from backstay.testing.proxy import FaultProxy
from backstay.testing.servers import RedisServer
from backstay.testing.servers.ports import reserve_port
from backstay.testing.waiting import WITHIN, eventually, soon
from support.servers import running

HEADERS = [(b"idempotency-key", b"k"), *((name.encode(), value.encode()) for name, value in CALLER.items())]


def record_name(path):
    """Return the key under which the response to a request of CALLER is stored."""
    caller = by_credentials({"headers": HEADERS})
    return f"http:{_digest(f'POST{chr(0)}{chr(0)}{path}{chr(0)}{caller}'.encode())}:k1"


class PassThroughMiddleware(BaseHTTPMiddleware):
    """Ends a stream normally when the client disconnects; that must not be recorded as the complete response."""

    async def dispatch(self, request, call_next):
        return await call_next(request)


@pytest.mark.parametrize("inner", [(), (PassThroughMiddleware,)], ids=["plain", "wrapped"])
def test_a_client_that_disconnects_from_a_stream_gets_the_whole_response_on_retry(open_app, inner):
    app = open_app(inner=inner, wait=20)
    with socket.create_connection(("127.0.0.1", app.port)) as line:
        head = [
            b"POST /ticker HTTP/1.1",
            b"Host: x",
            b"Content-Length: 0",
            b"Idempotency-Key: k1",
            b"Authorization: Bearer one",
        ]
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
        scope = {"type": "http", "method": "POST", "path": "/", "headers": HEADERS}
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
        sent, scope = [], {"type": "http", "method": "POST", "path": "/", "headers": HEADERS}

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


@pytest.mark.parametrize("kept", [b"\x94\x63\xcc\xc8\x90\xc4\x00", b"\xc1", b""], ids=["later", "damaged", "empty"])
def test_an_unreadable_recorded_response_is_a_503_and_not_replayed(open_app, shared_url, namespace, kept):
    about = _digest(b"POST\0\0/charge\0\0" + b"5 EUR")
    name = record_name("/charge")
    with backstay.sync.Backstay(shared_url, namespace=namespace) as stay:
        stay.idempotency.run(name, lambda: kept, fingerprint=about, codec=BytesCodec())
    app = open_app()
    assert post(app).status_code == 503
    assert app.effects == []


def forget_request(url, namespace, path):
    """Remove the record of a request in flight, as an operator can: the request is superseded."""
    with backstay.sync.Backstay(url, namespace=namespace) as stay:
        assert stay.idempotency.forget(record_name(path))


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
    with httpx.stream(
        "POST", app.base + "/stream", headers={"idempotency-key": "k1", **CALLER}, timeout=30
    ) as response:
        chunks = response.iter_raw()
        assert next(chunks) == b"first,"
        forget_request(shared_url, namespace, "/stream")
        app.proceed.set()
        with pytest.raises(httpx.RemoteProtocolError):
            list(chunks)


@pytest.fixture
def own_redis():
    with running(RedisServer(port=reserve_port())) as server:
        yield server


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
        sent, scope = [], {"type": "http", "method": "POST", "path": "/", "headers": HEADERS}

        async def record(message):
            sent.append(message)

        async with backstay.Backstay(proxy.url, namespace=namespace) as stay:
            await stay.idempotency.run("before", lambda: 1)  # loads the scripts into Redis
            guarded = backstay.IdempotencyMiddleware(app, stay=stay)
            call = asyncio.create_task(guarded(scope, request, record))
            await asyncio.wait_for(begun.wait(), WITHIN)
            proxy.rule("delay", b"EVALSHA", seconds=1.5)
            proceed.set()
            assert await soon(lambda: asyncio.sleep(0, proxy.applied["delay"]))
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
