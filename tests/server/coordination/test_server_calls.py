"""The server's own idempotent calls are out of reach of its clients."""

from __future__ import annotations

import hashlib

import pytest

from backstay.idempotency.api import Idempotency
from backstay.idempotency.machine import SERVER_CALLS
from support.server.principals import serving_clients


@pytest.fixture
def clients(engine_url, namespace):
    roles = {"alice": "submit", "bob": "submit", "worker": "worker"}
    with serving_clients(engine_url, roles, namespace=namespace) as (site, found):
        found["site"] = site
        yield found


def forge(client, key, result):
    """Complete the idempotent call `key` with a result of the client's choice."""
    begun = client.post(f"/api/idempotency/{key}/begin", {"request_id": "r"}).json()
    body = {"request_id": "r", "fence": begun["fence"], "result": result}
    assert client.post(f"/api/idempotency/{key}/complete", body).status_code == 200


def run_key(client, workflow, request_id):
    owner = client.token.split("_")[1]
    return "run:" + hashlib.sha256(f"{owner}\0{workflow}\0{request_id}".encode()).hexdigest()


def define(clients, name="build"):
    clients["alice"].post("/api/workflows", {"name": name, "jobs": {"one": {"run": "true"}}})


def test_a_client_cannot_complete_the_choice_of_a_run_id(clients):
    define(clients)
    key = run_key(clients["alice"], "build", "r1")
    old = "http-run:" + hashlib.sha256(b"build\0r1").hexdigest()
    for known in (key, old):
        for result in ("0-forged", 5, None, "zz"):
            forge(clients["worker"], f"{known}{result}", result)
        forge(clients["worker"], known, "0-forged")
    started = clients["alice"].post("/api/workflows/build/run", {"request_id": "r1"})
    assert started.status_code == 202
    assert started.json()["run_id"] != "0-forged"
    again = clients["alice"].post("/api/workflows/build/run", {"request_id": "r1"})
    assert again.json()["run_id"] == started.json()["run_id"]


def test_another_owners_repeated_request_id_starts_a_run_of_its_own(clients):
    define(clients)
    runs = {
        name: clients[name].post("/api/workflows/build/run", {"request_id": "r"}).json()["run_id"]
        for name in ("alice", "bob")
    }
    assert runs["alice"] != runs["bob"]


def test_a_client_cannot_break_the_numbering_of_a_log(clients):
    site, worker = clients["site"], clients["worker"]
    job = clients["alice"].post("/api/jobs", {"type": "work"}).json()["id"]
    found = worker.post("/api/jobs/claim", {"worker_id": "w", "queues": ["default"]}).json()
    lease = found["lease"]["lease_id"]
    fence = lease.rpartition(".")[2]
    for key in (f"log:{job}:{fence}", f"http-log:{lease}"):
        forge(worker, key, "not a number")
    chunks = {"chunks": [{"sequence": 0, "data": "a\n"}, {"sequence": 1, "data": "b\n"}]}
    for _ in range(2):
        assert worker.post(f"/api/jobs/{lease}/logs", chunks).json() == {"accepted": 2}
    lines = clients["alice"].get(f"/api/workflows/-/jobs/{job}/logs").json()
    assert [line["data"] for line in lines] == ["a\n", "b\n"]
    assert site.get("/healthz").status_code == 200


@pytest.mark.parametrize("stored", ["zz", "", 7, -1])
def test_a_run_id_that_is_none_is_not_used(clients, stored):
    define(clients)
    site, key = clients["site"], run_key(clients["alice"], "build", "r")
    calls = Idempotency(site.server.core, SERVER_CALLS)
    about = {"workflow": "build", "inputs": {}}
    site.do(calls.run(key, lambda: stored, fingerprint=about))
    response = clients["alice"].post("/api/workflows/build/run", {"request_id": "r"})
    assert response.status_code == 503
    assert clients["alice"].get("/api/runs").json() == []


@pytest.mark.parametrize("stored", ["text", -1])
def test_a_line_number_that_is_none_is_not_used(clients, stored):
    site, worker = clients["site"], clients["worker"]
    clients["alice"].post("/api/jobs", {"type": "work"})
    found = worker.post("/api/jobs/claim", {"worker_id": "w", "queues": ["default"]}).json()
    lease, job = found["lease"]["lease_id"], found["job"]["uid"]
    calls = Idempotency(site.server.core, SERVER_CALLS)
    site.do(calls.run(f"log:{job}:{lease.rpartition('.')[2]}", lambda: stored))
    assert worker.post(f"/api/jobs/{lease}/logs", {"chunks": [{"data": "a"}]}).status_code == 503


def test_the_keys_of_the_middleware_are_refused(clients):
    for verb, body in (
        ("begin", {}),
        ("complete", {"request_id": "r", "fence": "1"}),
        ("fail", {"request_id": "r", "fence": "1"}),
    ):
        assert clients["worker"].post(f"/api/idempotency/http:abc:k1/{verb}", body).status_code == 422
