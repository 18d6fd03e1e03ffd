"""Every bad request gets a problem response, never a stack trace or a 500."""

from __future__ import annotations

import json
import socket

import pytest
from route_names import name, path_of

from backstay.server.routes.table import TABLE
from backstay.server.settings import ServerSettings
from backstay.sync import Backstay
from backstay.testing.waiting import eventually
from support.server.site import serving

POSTS = [route for route in TABLE if route.body is not None and route.consumes == "application/json"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    url = f"sqlite:///{tmp_path_factory.mktemp('bad') / 'backstay.db'}?synchronous=normal"
    settings = ServerSettings(access_log=False, head_timeout=1.0, body_timeout=1.0, max_body=10_000)
    with serving(url, settings=settings) as running:
        yield running


def is_problem(response, status):
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body["status"] == status
    assert body["title"]
    assert body["detail"]
    assert "Traceback" not in response.text


@pytest.mark.parametrize("route", POSTS, ids=name)
def test_an_invalid_json_body_is_refused(shared, route):
    headers = {"content-type": "application/json"}
    for raw in (b"{", b"nope", b"[1,", b'{"a":', b"\xff\xfe", b'"\xff"', b"[" * 5000, b"\x00"):
        response = shared.http.request(route.method, path_of(route), content=raw, headers=headers)
        assert response.status_code in (400, 422), response.text
        is_problem(response, response.status_code)


@pytest.mark.parametrize("route", POSTS, ids=name)
def test_a_body_that_violates_the_schema_is_refused(shared, route):
    for body in ([], 5, "x", {"no_such_field": 1}, True):
        is_problem(shared.http.request(route.method, path_of(route), json=body), 422)


@pytest.mark.parametrize("route", POSTS, ids=name)
def test_a_content_type_other_than_json_is_refused(shared, route):
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/xml", "multipart/form-data"):
        response = shared.http.request(route.method, path_of(route), content=b'{"a":1}', headers={"content-type": kind})
        is_problem(response, 415)
    is_problem(shared.http.request(route.method, path_of(route), content=b'{"a":1}'), 415)


def test_a_large_body_is_refused_before_it_is_read(shared):
    body = json.dumps({"type": "x", "args": {"a": "x" * 20_000}}).encode()
    headers = {"content-type": "application/json"}
    is_problem(shared.http.post("/api/jobs", content=body, headers=headers), 413)
    is_problem(shared.http.post("/api/jobs", content=iter([body[:9000], body[9000:]]), headers=headers), 413)


@pytest.mark.parametrize(
    "path",
    [
        "//",
        "/api",
        "/api/",
        "/api/jobs/",
        "/api//jobs",
        "/api/workflows/x/../../jobs",
        "/api/%2e%2e/healthz",
        "/api/jobs%2f",
        "/healthz/",
        "/healthz%00",
        "/HEALTHZ",
        "/etc/passwd",
        "/../../etc/passwd",
        "/static/../../etc/passwd",
        "/.git/config",
        "/%c0%af",
        "/api/jobs/a/b/c/d/e",
    ],
)
def test_an_unknown_path_is_not_found(shared, path):
    response = raw(shared, f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
    assert response.split(b" ")[1] in (b"404", b"400"), response
    assert b"application/problem+json" in response


def test_a_wrong_method_is_refused_with_the_allowed_methods(shared):
    response = shared.http.patch("/api/jobs", json={})
    is_problem(response, 405)
    assert response.headers["allow"] == "GET, POST"
    is_problem(shared.http.options("/api/jobs"), 405)
    is_problem(shared.http.delete("/healthz"), 405)


def test_head_answers_without_a_body(shared):
    response = shared.http.head("/healthz")
    assert response.status_code == 200
    assert response.content == b""


def test_an_invalid_query_is_refused(shared):
    for query in ("limit=0", "limit=x", "limit=5&limit=6", "nope=1", "state=odd", "limit=100000", "limit=-1"):
        is_problem(shared.get(f"/api/jobs?{query}"), 422)
    is_problem(shared.get("/api/jobs?limit"), 400)
    is_problem(shared.get("/api/jobs?queue=%ff"), 400)
    is_problem(shared.get("/api/queues?x=1"), 422)
    is_problem(shared.get("/api/jobs?queue=" + "x" * 9000), 414)


def test_an_unknown_job_run_or_workflow_is_not_found(shared):
    for path in ("/api/jobs/0-00", "/api/jobs/zz", "/api/runs/0-00", "/api/runs/zz", "/api/workflows/none/status"):
        is_problem(shared.get(path), 404)
    for path in ("/api/workflows/none/run", "/api/workflows/none/cancel", "/api/jobs/zz/retry", "/api/runs/zz/cancel"):
        is_problem(shared.post(path), 404)
    for path in ("/api/workflows/-/jobs/zz/logs", "/api/workflows/-/jobs/zz/logs/stream", "/api/jobs/-/zz/cancelled"):
        is_problem(shared.get(path), 404)


def raw(site, sent, *, more=b"", wait=10):
    """Send bytes; return what the server sends until it closes the connection."""
    with socket.create_connection(("127.0.0.1", site.port), timeout=wait) as sock:
        sock.sendall(sent)
        if more:
            sock.sendall(more)
        got = b""
        try:
            while piece := sock.recv(65536):
                got += piece
        except ConnectionResetError:  # the server closed the connection before reading everything
            got = got or b"reset"
        return got


UPGRADE = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade, close\r\n\r\n"


def test_bytes_that_are_not_http_get_a_problem_response(shared):
    for sent in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"NONSENSE\r\n\r\n"):
        response = raw(shared, sent)
        assert response.startswith(b"HTTP/1.1 4")
        assert b"application/problem+json" in response


def test_malformed_requests_log_nothing(shared, caplog):
    raw(shared, b"NONSENSE\r\n\r\n")
    raw(shared, UPGRADE)
    assert [record.getMessage() for record in caplog.records if record.name.startswith("uvicorn")] == []


def test_an_unfinished_request_head_times_out(shared):
    response = raw(shared, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-slow: ")
    assert b" 408 " in response
    assert raw(shared, b"") == b""


def test_an_oversized_request_head_is_refused(shared):
    response = raw(shared, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-long: " + b"a" * 300_000)
    assert b" 431 " in response or b" 400 " in response or response == b"reset"
    many = b"".join(b"x-%d: %s\r\n" % (n, b"v" * 500) for n in range(100))
    response = raw(shared, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n" + many + b"\r\n")
    assert b" 431 " in response


def test_an_unfinished_request_body_times_out(shared):
    head = b"POST /api/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n"
    response = raw(shared, head + b'{"type"')
    assert b" 408 " in response
    assert b"application/problem+json" in response


def test_conflicting_body_lengths_are_refused(shared):
    head = b"POST /api/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n"
    for lengths in (
        b"content-length: 5\r\ncontent-length: 6\r\n",
        b"content-length: -5\r\n",
        b"content-length: 5\r\ntransfer-encoding: chunked\r\n",
        b"transfer-encoding: gzip\r\n",
    ):
        response = raw(shared, head + lengths + b"\r\n{}")
        assert response.startswith(b"HTTP/1.1 4"), response


def test_a_websocket_is_refused(shared):
    sent = (
        b"GET /api/events HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade, close\r\n"
        b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", shared.port), timeout=10) as sock:
        sock.sendall(sent)
        assert b"101" not in sock.recv(100)


def test_requests_above_the_rate_are_refused(tmp_path):
    settings = ServerSettings(access_log=False, rate="10/minute")
    with serving(f"sqlite:///{tmp_path / 'backstay.db'}", settings=settings) as site:
        responses = [site.get("/api/queues") for _ in range(12)]
        assert [response.status_code for response in responses] == [200] * 10 + [429] * 2
        is_problem(responses[-1], 429)
        assert int(responses[-1].headers["retry-after"]) >= 1
        assert site.get("/healthz").status_code == 200


def test_only_configured_origins_get_cors_headers(shared, tmp_path):
    response = shared.get("/api/queues", headers={"origin": "https://evil.example.org"})
    assert "access-control-allow-origin" not in response.headers
    settings = ServerSettings(access_log=False, cors=("https://ops.example.org",))
    with serving(f"sqlite:///{tmp_path / 'backstay.db'}", settings=settings) as site:
        ours = {"origin": "https://ops.example.org"}
        preflight = {**ours, "access-control-request-method": "POST"}
        assert site.get("/api/queues", headers=ours).headers["access-control-allow-origin"] == ours["origin"]
        assert site.http.options("/api/jobs", headers=preflight).status_code == 204
        theirs = {"origin": "https://evil.example.org"}
        assert "access-control-allow-origin" not in site.get("/api/queues", headers=theirs).headers


def test_an_unavailable_engine_is_503_without_details(tmp_path):
    from backstay.errors import EngineUnavailable

    with serving(f"sqlite:///{tmp_path / 'backstay.db'}") as site:

        def away(*_, **__):
            raise EngineUnavailable("secret-host.internal refused")

        before = site.server.store.queues
        site.server.store.queues = away
        try:
            response = site.get("/api/queues")
        finally:
            site.server.store.queues = before
        is_problem(response, 503)
        assert "secret-host" not in response.text
        assert eventually(lambda: site.get("/api/queues").status_code == 200)


def test_a_job_with_arguments_outside_json_is_listed_and_claimed(tmp_path):
    url = f"sqlite:///{tmp_path / 'backstay.db'}?synchronous=normal"
    with serving(url, settings=ServerSettings(access_log=False)) as running, Backstay(url) as stay:
        odd = stay.jobs.enqueue("odd", {"pairs": {(1, 2): {None: float("nan")}}, "raw": b"\xff"})
        response = running.http.get("/api/jobs")
        assert response.status_code == 200, response.text
        assert {job["id"]: job["args"] for job in response.json()}[odd.id] == {
            "pairs": {"(1, 2)": {"None": None}},
            "raw": "/w==",
        }
        claimed = running.http.post("/api/jobs/claim", json={"worker_id": "w", "queues": ["default"]})
        assert claimed.status_code == 200, claimed.text
        assert claimed.json()["job"]["args"]["raw"] == "/w=="


@pytest.mark.parametrize("queue", ["backstay", "backstay.commands", "backstay.other"])
def test_enqueueing_into_a_reserved_queue_is_refused(shared, queue):
    response = shared.post("/api/jobs", {"type": "work", "queue": queue})
    assert response.status_code == 422
    assert "is reserved" in response.json()["detail"]
    assert queue not in [one["name"] for one in shared.get("/api/queues").json()]
