"""Quotas of low roles, slow bodies, forwarded requests, damaged records, and what reaches the log."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sqlite3
from contextlib import ExitStack

import msgspec
import pytest

from backstay.cli.logs import SafeFormatter
from backstay.engine.base import Ping
from backstay.job.flows import send
from backstay.server.http.auth import new_token
from backstay.server.http.deadlines import DeadlineExceeded
from backstay.server.http.problem import Refusal
from backstay.server.http.request import Request
from backstay.server.routes import operations
from backstay.server.settings import ServerSettings
from support.server.site import serving

HOSTILE = "a\x1b[31m\x9b2J\u2028\x7f\nforged"


@pytest.fixture
def with_roles(tmp_path):
    """Start a server with settings; returns its site and the headers of each role."""
    with ExitStack() as stack:

        def start(**settings):
            tokens = {role: new_token(role) for role in ("submit", "worker", "admin")}

            async def prepare(server):
                await server.stay.open()
                for _, record in tokens.values():
                    await send(server.core, server.store.put_token(record))

            url = f"sqlite:///{tmp_path / 'backstay.db'}?synchronous=normal"
            site = stack.enter_context(
                serving(url, prepare=prepare, settings=ServerSettings(access_log=False, **settings))
            )
            return site, {role: {"authorization": f"Bearer {token}"} for role, (token, _) in tokens.items()}

        yield start


# ── quotas ──


def test_a_low_role_adds_no_job_to_a_full_queue(with_roles, monkeypatch):
    monkeypatch.setattr("backstay.server.quotas.LENGTHS_AGE", 3600.0)
    site, roles = with_roles(max_queue=3)
    body = {"type": "t", "queue": "q"}
    statuses = [site.post("/api/jobs", body, headers=roles["submit"]).status_code for _ in range(5)]
    assert statuses == [201, 201, 201, 429, 429]
    assert site.post("/api/jobs", body, headers=roles["admin"]).status_code == 201
    assert site.post("/api/jobs", {"type": "t", "queue": "other"}, headers=roles["submit"]).status_code == 201


def test_many_queues_do_not_evade_the_quota(with_roles):
    site, roles = with_roles(max_queue=2)
    statuses = [
        site.post("/api/jobs", {"type": "t", "queue": f"q{n}"}, headers=roles["submit"]).status_code for n in range(22)
    ]
    assert statuses == [201] * 20 + [429] * 2


def test_the_length_of_a_queue_is_read_anew_after_a_while(with_roles, monkeypatch):
    monkeypatch.setattr("backstay.server.quotas.LENGTHS_AGE", 0.0)
    site, roles = with_roles(max_queue=1)
    body = {"type": "t", "queue": "q"}
    assert site.post("/api/jobs", body, headers=roles["submit"]).status_code == 201
    assert site.post("/api/jobs", body, headers=roles["submit"]).status_code == 429
    claimed = site.post("/api/jobs/claim", {"worker_id": "w", "queues": ["q"]}, headers=roles["worker"]).json()
    assert claimed["job"]
    assert site.post("/api/jobs", body, headers=roles["submit"]).status_code == 201


def test_a_low_role_asks_for_no_endless_lease(with_roles):
    site, roles = with_roles(max_lease=60, max_ttl=100)
    asked = (
        ("/api/jobs/claim", {"worker_id": "w", "lease_ttl_secs": 61}, "worker"),
        ("/api/locks/a/acquire", {"ttl_seconds": 101}, "worker"),
        ("/api/idempotency/k/begin", {"lease_seconds": 101}, "submit"),
    )
    for path, body, role in asked:
        response = site.post(path, body, headers=roles[role])
        assert response.status_code == 422, path
        assert "admin" in response.json()["detail"]
        assert site.post(path, body, headers=roles["admin"]).status_code == 200


def test_the_log_of_a_job_ends_at_its_limit(tmp_path):
    settings = ServerSettings(access_log=False, max_job_log=10_000)
    with serving(f"sqlite:///{tmp_path / 'backstay.db'}", settings=settings) as site:
        job = site.enqueue()
        lease = site.claim()["lease"]["lease_id"]
        for start in range(0, 40, 10):
            chunks = [{"data": "x" * 1000, "sequence": start + n} for n in range(10)]
            assert site.post(f"/api/jobs/{lease}/logs", {"chunks": chunks}).status_code == 200
        lines = [one["data"] for one in site.get(f"/api/workflows/-/jobs/{job}/logs").json()]
        assert sum(map(len, lines)) <= 10_200
        assert lines[-1] == "the log of this job is larger than 10000 characters: the rest is not stored"
        # A server that does not know the lease finds out how large the log is.
        site.server.job_logs._numberings.clear()
        site.post(f"/api/jobs/{lease}/logs", {"chunks": [{"data": "late", "sequence": 99}]})
        assert len(site.get(f"/api/workflows/-/jobs/{job}/logs").json()) == len(lines)


def test_empty_chunks_use_up_the_log_too(tmp_path):
    settings = ServerSettings(access_log=False, max_job_log=1000)
    with serving(f"sqlite:///{tmp_path / 'backstay.db'}", settings=settings) as site:
        job = site.enqueue()
        lease = site.claim()["lease"]["lease_id"]
        site.post(f"/api/jobs/{lease}/logs", {"chunks": [{"data": ""}] * 1000})
        assert len(site.get(f"/api/workflows/-/jobs/{job}/logs").json()) < 30


def test_the_artifacts_of_a_job_are_bounded(tmp_path):
    settings = ServerSettings(access_log=False, max_artifacts=3, max_artifact_bytes=1000)
    with serving(f"sqlite:///{tmp_path / 'backstay.db'}", settings=settings) as site:
        site.enqueue()
        lease = site.claim()["lease"]["lease_id"]

        def put(name, size):
            path = f"/api/jobs/{lease}/artifacts/{name}"
            headers = {"content-type": "application/octet-stream"}
            return site.http.put(path, content=b"x" * size, headers=headers).status_code

        assert [put("a", 600), put("b", 401), put("b", 400)] == [200, 413, 200]
        assert put("a", 600) == 200, "replacing a file does not count it twice"
        assert [put("c", 0), put("d", 0)] == [200, 413]


# ── slow bodies ──


class SlowClient:
    """Receives one byte of a body per second of a clock of its own."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr("backstay.server.http.request.steady", lambda: self.now)

    async def run_within(self, seconds, function):
        if seconds <= 0:
            raise DeadlineExceeded
        return await function()

    async def receive(self):
        self.now += 1.0
        return {"type": "http.request", "body": b"x", "more_body": True}


def test_a_body_that_arrives_byte_by_byte_has_a_total_deadline(monkeypatch):
    client = SlowClient(monkeypatch)

    class Stub:
        settings = ServerSettings(body_timeout=30, min_body_rate=1000)
        deadlines = client

    request = Request(Stub(), {"headers": []}, client.receive, {})

    async def read():
        return [piece async for piece in request.chunks(10**9)]

    with pytest.raises(Refusal) as caught:
        asyncio.run(read())
    assert caught.value.status == 408
    assert 30 <= client.now <= 32


def test_a_413_after_a_complete_body_is_answered_at_once(site):
    site.enqueue()
    lease = site.claim()["lease"]["lease_id"]
    drained = []
    real = site.server.deadlines.run_within

    async def run_within(seconds, function):
        drained.append(seconds)
        return await real(seconds, function)

    site.server.deadlines.run_within = run_within
    response = site.post(f"/api/jobs/{lease}/complete", {"result": "x" * 1_500_000})
    assert response.status_code == 413
    assert min(drained) > 2.5, "no wait for a rest of the body"


# ── forwarded requests ──


FORWARDED = ({"x-forwarded-for": "203.0.113.9"}, {"x-forwarded-host": "x"}, {"forwarded": "for=203.0.113.9"})


@pytest.mark.parametrize("headers", FORWARDED)
def test_a_server_without_tokens_refuses_forwarded_requests(site, headers):
    response = site.get("/api/jobs", headers=headers)
    assert response.status_code == 403
    assert "--trusted-proxies" in response.json()["detail"]
    assert site.get("/healthz", headers=headers).status_code == 200


def test_forwarded_requests_are_accepted_with_tokens_or_trusted_proxies(with_roles, tmp_path):
    site, roles = with_roles()
    assert site.get("/api/jobs", headers={**roles["admin"], **FORWARDED[0]}).status_code == 200
    settings = ServerSettings(access_log=False, trusted_proxies=("127.0.0.1",), rate="2/minute")
    with serving(f"sqlite:///{tmp_path / 'other.db'}", settings=settings) as proxied:

        def ask(address):
            return proxied.get("/api/jobs", headers={"x-forwarded-for": address}).status_code

        assert [ask("203.0.113.9") for _ in range(3)] == [200, 200, 429]
        assert ask("203.0.113.10") == 200, "each client of the proxy has its own rate"


# ── readiness ──


def test_readiness_asks_the_engine_once_a_second(site, monkeypatch):
    monkeypatch.setattr(operations, "PROBE_AGE", 3600.0)
    asked = []
    port = site.server.core.port
    real = port.apply

    def apply(op):
        if isinstance(op, Ping):
            asked.append(op)
        return real(op)

    monkeypatch.setattr(port, "apply", apply)
    site.server.readiness = operations.Readiness(site.server.core)
    assert {site.get("/readyz").status_code for _ in range(20)} == {200}
    assert len(asked) == 1
    monkeypatch.setattr(operations, "PROBE_AGE", 0.0)
    site.get("/readyz")
    assert len(asked) == 2


# ── damaged records ──


def test_a_damaged_record_is_503_and_named(tmp_path):
    path = tmp_path / "backstay.db"
    with serving(f"sqlite:///{path}") as site:
        text = "name: w\njobs: {a: {run: x}}"
        site.http.post("/api/workflows", content=text, headers={"content-type": "application/yaml"})
        run = site.post("/api/workflows/w/run").json()["run_id"]
        with sqlite3.connect(path) as db:
            db.execute("UPDATE backstay_run_doc SET doc = ?", (b"\xc1\xc1",))
        response = site.get(f"/api/runs/{run}")
        assert response.status_code == 503
        assert response.json()["error"] == "CorruptRecord"
        assert "run" in response.json()["detail"]
        assert "retry-after" not in response.headers


def test_a_record_that_cannot_be_decoded_is_503_not_500(site, monkeypatch):
    async def broken(*_, **__):
        return msgspec.msgpack.decode(b"\xc1")

    monkeypatch.setattr(site.server.run_lookup, "get_run", broken)
    response = site.get("/api/runs/0-1")
    assert response.status_code == 503
    assert response.json()["error"] == "CorruptRecord"
    assert "/api/runs/0-1" in response.json()["detail"]


# ── logs ──


def test_control_characters_of_a_path_do_not_reach_the_access_log(tmp_path, caplog):
    request = b"GET /a%1b%5b31m%c2%9b2J%e2%80%a8%7f%0aforged HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    with serving(f"sqlite:///{tmp_path / 'backstay.db'}", settings=ServerSettings()) as site:
        caplog.set_level(logging.INFO, logger="backstay.access")
        with socket.create_connection(("127.0.0.1", site.port)) as client:
            client.sendall(request)
            while client.recv(4096):
                pass
        (line,) = [record.getMessage() for record in caplog.records if record.name == "backstay.access"]
        assert line.isprintable()
        assert json.loads(line)["path"] == f"/{HOSTILE}"


def test_a_log_line_cannot_be_forged_or_control_the_terminal():
    record = logging.LogRecord("x", logging.WARNING, "", 0, "job %s failed", (HOSTILE,), None)
    first, *further = SafeFormatter("%(levelname)s %(message)s").format(record).split("\n")
    assert first.isprintable()
    assert all(line.startswith("  ") and line.isprintable() for line in further)
