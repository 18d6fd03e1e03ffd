"""IdempotencyMiddleware through a real uvicorn and httpx."""

from __future__ import annotations

import asyncio
import secrets
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

httpx = pytest.importorskip("httpx", reason="httpx speaks to the server under test")
pytest.importorskip("uvicorn", reason="uvicorn is the server under test")

from shop import Shop  # noqa: E402 - after it is known that it can be imported
from starlette.middleware.base import BaseHTTPMiddleware  # noqa: E402

import backstay  # noqa: E402
import backstay.sync  # noqa: E402
from backstay.http.exchange import Raw  # noqa: E402
from backstay.http.idempotency import _digest  # noqa: E402
from backstay.testing.plugin import started_or_skip  # noqa: E402
from backstay.testing.ports import lasting_port  # noqa: E402
from backstay.testing.proxy import FaultProxy  # noqa: E402
from backstay.testing.servers import RedisServer  # noqa: E402
from backstay.testing.waiting import WITHIN, eventually, soon  # noqa: E402

#: The server's own, different in every answer; and the one that tells a replay.
APART = {"date", "idempotent-replayed"}


@pytest.fixture
def open_shop(shared_url, namespace):
    opened = []

    def opener(**options):
        shop = Shop(shared_url, namespace=namespace, **options).__enter__()
        opened.append(shop)
        return shop

    yield opener
    for shop in opened:
        shop.__exit__()


def post(shop, path="/charge", *, key="k1", content=b"5 EUR", **headers):
    named = {"idempotency-key": key} if key is not None else {}
    return httpx.post(shop.base + path, content=content, headers={**named, **headers}, timeout=30)


def is_replay(response):
    return response.headers.get("idempotent-replayed") == "true"


def told(response):
    """Everything that a client sees of an answer."""
    headers = [(name, value) for name, value in response.headers.multi_items() if name not in APART]
    return response.status_code, headers, response.content


def test_a_replay_is_the_same_to_the_byte(open_shop):
    shop = open_shop()
    first, again = post(shop), post(shop)
    assert first.status_code == 201
    assert first.content == b"\x00\xff receipt 1 5 EUR"
    assert not is_replay(first)
    assert is_replay(again)
    assert told(again) == told(first)
    assert again.headers.get_list("set-cookie") == ["seen=1", "second=1"]
    assert len(shop.effects) == 1
    assert eventually(lambda: shop.background == [1])  # what follows an answer follows it once


def test_an_answer_outlives_the_server_that_made_it(open_shop):
    first = post(open_shop())
    other = open_shop()
    assert told(post(other)) == told(first)
    assert other.effects == []


def test_requests_without_a_key_and_safe_methods_pass(open_shop):
    shop = open_shop()
    for _ in range(2):
        assert post(shop, key=None).status_code == 201
        assert httpx.get(shop.base + "/charge", headers={"idempotency-key": "k1"}).status_code == 201
    assert len(shop.effects) == 4


def test_a_missing_key_is_refused_where_it_is_required(open_shop):
    shop = open_shop(required=lambda scope: scope["path"] == "/charge")
    refused = post(shop, key=None)
    assert refused.status_code == 400
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["status"] == 400
    assert "Idempotency-Key" in refused.json()["detail"]
    assert shop.effects == []
    assert post(shop, "/refund", key=None).status_code == 201


@pytest.mark.parametrize(
    "key",
    [b"", b"  ", b"x" * 256, b"a\tb", "ключ".encode(), b"\xff"],
    ids=["empty", "blank", "long", "control", "unicode", "byte"],
)
def test_a_key_is_short_printable_text(open_shop, key):
    shop = open_shop()
    head = [b"POST /charge HTTP/1.1", b"Host: x", b"Connection: close", b"Content-Length: 0"]
    with socket.create_connection(("127.0.0.1", shop.port)) as line:
        line.sendall(b"\r\n".join([*head, b"Idempotency-Key: " + key, b"", b""]))
        answer = b"".join(iter(lambda: line.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"printable ASCII" in answer
    assert shop.effects == []


def test_two_keys_are_refused(open_shop):
    shop = open_shop()
    refused = httpx.post(shop.base + "/charge", headers=[("idempotency-key", "a"), ("idempotency-key", "b")])
    assert refused.status_code == 400
    assert shop.effects == []


def test_another_request_with_the_same_key_is_refused(open_shop):
    shop = open_shop()
    post(shop)
    for other in (post(shop, content=b"6 EUR"), post(shop, "/charge?currency=USD")):
        assert other.status_code == 422
        assert other.json()["title"].startswith("Unprocessable")
    assert len(shop.effects) == 1


def test_a_request_in_flight_is_a_conflict_with_a_time_to_come_back(open_shop):
    shop = open_shop()
    shop.door.clear()
    with ThreadPoolExecutor() as pool:
        first = pool.submit(post, shop)
        assert eventually(lambda: shop.effects)
        refused = post(shop)
        assert refused.status_code == 409
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["since"]
        shop.door.set()
        assert told(post_until_done(shop)) == told(first.result())
    assert len(shop.effects) == 1


def post_until_done(shop):
    """As a patient client does."""
    answers = []
    assert eventually(lambda: answers.append(post(shop)) or answers[-1].status_code != 409)
    return answers[-1]


def test_a_request_in_flight_is_waited_for_when_asked(open_shop):
    shop = open_shop(wait=20)
    shop.door.clear()
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(post, shop) for _ in range(8)]
        assert eventually(lambda: shop.effects)
        shop.door.set()
        answers = [call.result() for call in calls]
    assert len({repr(told(answer)) for answer in answers}) == 1
    assert sum(map(is_replay, answers)) == 7
    assert len(shop.effects) == 1


def test_callers_and_routes_do_not_meet(open_shop):
    shop = open_shop()
    by_token = [{"authorization": "Bearer a"}, {"authorization": "Bearer b"}]
    for headers in ({}, *by_token, {"x-api-key": "a"}, {"cookie": "a"}):
        for path in ("/charge", "/refund"):
            before = len(shop.effects)
            assert not is_replay(post(shop, path, **headers))
            assert is_replay(post(shop, path, **headers))
            assert len(shop.effects) == before + 1


def test_a_principal_of_ones_own(open_shop):
    async def tenant(scope):
        return dict(scope["headers"]).get(b"x-tenant", b"").decode()

    shop = open_shop(principal=tenant)
    post(shop, **{"x-tenant": "a", "authorization": "Bearer old"})
    assert is_replay(post(shop, **{"x-tenant": "a", "authorization": "Bearer new"}))
    assert not is_replay(post(shop, **{"x-tenant": "b"}))


def test_a_stream_is_passed_on_as_it_comes_and_replayed_whole(open_shop):
    shop = open_shop()
    shop.door.clear()
    with httpx.stream("POST", shop.base + "/stream", headers={"idempotency-key": "k1"}, timeout=30) as response:
        chunks = response.iter_raw()
        assert next(chunks) == b"first,"
        assert post(shop, "/stream", content=b"").status_code == 409  # it is not complete
        shop.door.set()
        assert b"".join(chunks) == b"second"
    again = post(shop, "/stream", content=b"")
    assert again.content == b"first,second"
    assert again.headers["content-type"] == response.headers["content-type"]
    assert is_replay(again)
    assert len(shop.effects) == 1


class Passing(BaseHTTPMiddleware):
    """Ends a stream in good order when the client has gone: it must not look like an answer."""

    async def dispatch(self, request, call_next):
        return await call_next(request)


@pytest.mark.parametrize("inner", [(), (Passing,)], ids=["plain", "wrapped"])
def test_a_client_that_leaves_a_stream_gets_the_whole_answer_when_it_comes_again(open_shop, inner):
    shop = open_shop(inner=inner, wait=20)
    with socket.create_connection(("127.0.0.1", shop.port)) as line:
        head = [b"POST /ticker HTTP/1.1", b"Host: x", b"Content-Length: 0", b"Idempotency-Key: k1"]
        line.sendall(b"\r\n".join([*head, b"", b""]))
        while b"tick" not in line.recv(65536):
            pass
    again = post(shop, "/ticker", content=b"")
    assert again.content == b"tick," * 100 + b"end"
    assert is_replay(again)
    assert len(shop.effects) == 1


def test_a_client_that_leaves_before_its_request_is_complete_is_no_trouble():
    messages = [{"type": "http.request", "body": b"half", "more_body": True}, {"type": "http.disconnect"}]

    async def receive():
        return messages.pop(0)

    async def never(*_):
        pytest.fail("the application was called, or somebody answered")

    async def play():
        scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"idempotency-key", b"k")]}
        async with backstay.Backstay("memory://") as stay:
            await backstay.IdempotencyMiddleware(never, backstay=stay)(scope, receive, never)

    asyncio.run(play())
    assert messages == []


def test_a_server_that_refuses_to_send_to_a_client_that_left_changes_nothing():
    """As ASGI 2.4 has it: `send` raises OSError."""

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for part in (b"a", b"b"):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"c"})

    async def gone(message):
        raise OSError("gone")

    async def play():
        sent, scope = [], {"type": "http", "method": "POST", "path": "/", "headers": [(b"idempotency-key", b"k")]}

        async def request():
            return {"type": "http.request", "body": b"", "more_body": False}

        async def note(message):
            sent.append(message)

        async with backstay.Backstay("memory://") as stay:
            guarded = backstay.IdempotencyMiddleware(app, backstay=stay)
            await guarded(scope, request, gone)
            await guarded(scope, request, note)
        return sent

    start, body = asyncio.run(play())
    assert (b"idempotent-replayed", b"true") in start["headers"]
    assert body["body"] == b"abc"


def test_a_request_over_the_cap_is_refused(open_shop):
    shop = open_shop(max_body=100)
    refused = post(shop, content=b"x" * 101)
    assert refused.status_code == 413
    assert refused.json()["limit"] == 100
    assert post(shop, content=b"x" * 100).status_code == 201
    assert len(shop.effects) == 1


def test_an_answer_over_the_cap_is_sent_once_and_the_request_not_carried_out_again(open_shop):
    shop = open_shop(max_response=1000)
    assert post(shop, "/large").content == b"x" * 5000
    again = post(shop, "/large")
    assert again.status_code == 409
    assert "too large" in again.json()["detail"]
    assert len(shop.effects) == 1


@pytest.mark.parametrize("status", [200, 400, 404])
def test_answers_are_kept_also_those_that_refuse(open_shop, status):
    shop = open_shop()
    shop.status = status
    assert post(shop).status_code == status
    again = post(shop)
    assert again.status_code == status
    assert is_replay(again)
    assert len(shop.effects) == 1


@pytest.mark.parametrize("status", [429, 500, 503])
def test_answers_that_ask_to_try_again_are_not_kept(open_shop, status):
    shop = open_shop()
    shop.status = status
    assert post(shop).status_code == status
    assert not is_replay(post(shop))
    assert len(shop.effects) == 2


def test_after_an_exception_of_the_application_the_next_request_runs(open_shop):
    """Also after one that looks like ours: the application may use Backstay itself."""
    shop = open_shop()
    assert post(shop, "/broken").status_code == 500
    assert post(shop, "/broken").status_code == 500
    assert post(shop, "/broken").json() == {"done": 3}
    assert post(shop, "/broken").json() == {"done": 3}


@pytest.mark.parametrize("kept", [b"\x94\x63\xcc\xc8\x90\xc4\x00", b"\xc1", b""], ids=["later", "damaged", "empty"])
def test_an_answer_of_another_version_is_not_taken_for_one(open_shop, shared_url, namespace, kept):
    route = b"POST\0\0/charge\0"
    name, about = f"http:{_digest(route)}:k1", _digest(route + b"\0" + b"5 EUR")
    with backstay.sync.Backstay(shared_url, namespace=namespace) as stay:
        stay.idempotency.run(name, lambda: kept, fingerprint=about, codec=Raw())
    shop = open_shop()
    assert post(shop).status_code == 503
    assert shop.effects == []


def take_away(url, namespace, path):
    """What an operator does, or a successor: the request in flight is no longer the one that counts."""
    with backstay.sync.Backstay(url, namespace=namespace) as stay:
        assert stay.idempotency.forget(f"http:{_digest(f'POST{chr(0)}{chr(0)}{path}{chr(0)}'.encode())}:k1")


def test_an_answer_that_counts_no_more_is_not_sent(open_shop, shared_url, namespace):
    shop = open_shop()
    shop.door.clear()
    with ThreadPoolExecutor() as pool:
        call = pool.submit(post, shop)
        assert eventually(lambda: shop.effects)
        take_away(shared_url, namespace, "/charge")
        shop.door.set()
        assert call.result().status_code == 503
        assert "taken over" in call.result().json()["detail"]
    assert eventually(lambda: shop.background == [1])  # the application goes on to its end
    assert not is_replay(post(shop))


def test_a_stream_that_counts_no_more_has_no_end(open_shop, shared_url, namespace):
    shop = open_shop()
    shop.door.clear()
    with httpx.stream("POST", shop.base + "/stream", headers={"idempotency-key": "k1"}, timeout=30) as response:
        chunks = response.iter_raw()
        assert next(chunks) == b"first,"
        take_away(shared_url, namespace, "/stream")
        shop.door.set()
        with pytest.raises(httpx.RemoteProtocolError):
            list(chunks)


def test_of_many_requests_at_once_one_is_carried_out(open_shop):
    shops = [open_shop(wait=20), open_shop(wait=20)]
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda i: post(shops[i % 2]), range(20)))
    assert len({repr(told(answer)) for answer in answers}) == 1
    assert sum(len(shop.effects) for shop in shops) == 1


@pytest.fixture
def mortal_redis():
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
def test_without_its_engine_requests_are_refused_or_carried_out_as_the_profile_says(mortal_redis, profile, status):
    with Shop(mortal_redis.url, namespace=secrets.token_hex(4), profile=profile) as shop:
        assert post(shop, key="before").status_code == 201
        mortal_redis.kill()
        answer = post(shop)
        assert answer.status_code == status
        assert len(shop.effects) == (1 if status == 503 else 2)
        if status == 503:
            assert answer.headers["retry-after"] == "1"
        assert post(shop, key=None).status_code == 201  # who does not ask for it is not held up


@pytest.mark.redis
@pytest.mark.chaos
def test_an_answer_that_could_not_be_kept_is_not_sent(mortal_redis):
    with Shop(mortal_redis.url, namespace=secrets.token_hex(4)) as shop, ThreadPoolExecutor() as pool:
        shop.door.clear()
        call = pool.submit(post, shop)
        assert eventually(lambda: shop.effects)
        mortal_redis.kill()
        shop.door.set()
        assert call.result().status_code == 503


@pytest.mark.parametrize(
    "options", [{"ttl": 0}, {"wait": -1}, {"lease": "long"}, {"on_unavailable": "deny"}, {"max_response": 8 << 20}]
)
def test_settings_that_cannot_work_are_refused_before_the_first_request(options):
    async def main():
        async with backstay.Backstay("memory://") as stay:
            with pytest.raises(backstay.ConfigError):
                backstay.IdempotencyMiddleware(None, backstay=stay, **options)

    asyncio.run(main())


@pytest.mark.redis
def test_a_request_that_is_cancelled_while_its_answer_is_kept_ends_its_application(backstay_redis, namespace):
    """A server that stops cancels requests. The answer is kept all the same."""
    ended = []
    begun, door = asyncio.Event(), asyncio.Event()

    async def app(scope, receive, send):
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            begun.set()
            await door.wait()
            await send({"type": "http.response.body", "body": b"x"})
        finally:
            ended.append(True)

    async def request():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def play(proxy):
        sent, scope = [], {"type": "http", "method": "POST", "path": "/", "headers": [(b"idempotency-key", b"k")]}

        async def note(message):
            sent.append(message)

        async with backstay.Backstay(proxy.url, namespace=namespace) as stay:
            await stay.idempotency.run("before", lambda: 1)  # the server knows the scripts
            guarded = backstay.IdempotencyMiddleware(app, backstay=stay)
            call = asyncio.create_task(guarded(scope, request, note))
            await asyncio.wait_for(begun.wait(), WITHIN)
            proxy.rule("delay", b"EVALSHA", seconds=1.5)
            door.set()
            assert await soon(lambda: asyncio.sleep(0, proxy.struck["delay"]))
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert len(ended) == 1
            proxy.heal()
            assert sent == []
            await guarded(scope, request, note)
        return sent

    with FaultProxy(backstay_redis.port) as proxy:
        sent = asyncio.run(play(proxy))
    assert len(ended) == 1
    assert (b"idempotent-replayed", b"true") in sent[0]["headers"]


def test_a_blocking_backstay_is_refused():
    with backstay.sync.Backstay("memory://") as stay, pytest.raises(backstay.ConfigError, match="async"):
        backstay.IdempotencyMiddleware(None, backstay=stay)
