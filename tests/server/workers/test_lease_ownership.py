"""A lease belongs to the owner of the token that claimed the job, and a worker id to the owner that registered it."""

from __future__ import annotations

import pytest

from backstay.engine.base import steady
from backstay.job.flows import send
from backstay.job.ids import lease_id
from backstay.job.model import WorkerRecord
from backstay.job.worker import heartbeat
from backstay.server.workers import heartbeats
from backstay.server.workers.lease_names import KEY_NAME
from support.server.principals import SETTINGS, serving_clients
from support.server.site import serving

ROLES = {
    "alice": "worker",
    "mallory": "worker",
    "root": "admin",
    "one": ("worker", "fleet"),
    "two": ("worker", "fleet"),
    "submit": "submit",
}
VERBS = (
    ("heartbeat", {}),
    ("logs", {"chunks": [{"data": "x"}]}),
    ("complete", {}),
    ("fail", {"retryable": False}),
    ("release", {}),
)


@pytest.fixture
def clients(shared_url, namespace):
    with serving_clients(shared_url, ROLES, namespace=namespace) as (site, found):
        found["site"] = site
        yield found


@pytest.fixture
def other(clients, shared_url, namespace):
    """A second server on the same engine."""
    with serving(shared_url, namespace=namespace, settings=SETTINGS) as site:
        yield site


def claim(client, worker="w", **body):
    return client.post("/api/jobs/claim", {"worker_id": worker, "queues": ["default"], **body})


def lease_of(clients, name="alice", **options):
    """Enqueue a job and claim it. Returns the job's id and the name of the lease."""
    job = clients["submit"].post("/api/jobs", {"type": "work", **options}).json()["id"]
    found = claim(clients[name], name).json()
    assert found["job"]["uid"] == job
    return job, found["lease"]["lease_id"]


def status_of(clients, job):
    return clients["submit"].get(f"/api/jobs/{job}").json()["status"]


def test_only_the_owner_that_claimed_a_job_uses_its_lease(clients):
    job, lease = lease_of(clients)
    for name in ("mallory", "root", "one"):
        for verb, body in VERBS:
            response = clients[name].post(f"/api/jobs/{lease}/{verb}", body)
            assert response.status_code == 409, (name, verb)
            assert "not current" in response.json()["detail"]
        assert clients[name].put(f"/api/jobs/{lease}/artifacts/a", b"x").status_code == 409
    assert status_of(clients, job) == "running"
    for verb, body in VERBS[:3]:
        assert clients["alice"].post(f"/api/jobs/{lease}/{verb}", body).status_code == 200
    assert status_of(clients, job) == "success"


def test_job_and_fence_do_not_suffice_to_name_a_lease(clients):
    job, lease = lease_of(clients)
    fence = int(lease.rpartition(".")[2])
    _, millis, mac, _ = lease.split(".")
    names = [
        lease_id(job, fence),
        f"{job}.{millis}.{fence}",
        f"{job}.{millis}.{'0' * len(mac)}.{fence}",
        f"{job}.{millis}..{fence}",
        f"{job}.{int(millis) * 2}.{mac}.{fence}",
        f"{job}.{millis}.{mac}.{fence + 1}",
        f"{job}.{millis}.{mac}0.{fence}",
        f"{job}.{millis}.{mac[:-1]}é.{fence}",
        f"{job}.{millis}.{mac}.{fence}.{fence}",
    ]
    stale = clients["alice"].post("/api/jobs/0-gone.30000.00.1/complete").json()["detail"]
    for name in names:
        response = clients["alice"].post(f"/api/jobs/{name}/complete")
        assert response.status_code == 409, name
        assert response.json()["detail"].partition(" is ")[2] == stale.partition(" is ")[2]
    assert status_of(clients, job) == "running"


def test_the_mac_of_one_job_is_worthless_for_another(clients):
    _, mine = lease_of(clients, "mallory")
    job, lease = lease_of(clients)
    forged = ".".join([job, *mine.split(".")[1:3], lease.rpartition(".")[2]])
    assert clients["mallory"].post(f"/api/jobs/{forged}/complete").status_code == 409


def test_tokens_of_one_owner_share_their_leases(clients):
    job, lease = lease_of(clients, "one")
    assert clients["two"].post(f"/api/jobs/{lease}/heartbeat").status_code == 200
    assert clients["two"].post(f"/api/jobs/{lease}/complete").status_code == 200
    assert status_of(clients, job) == "success"


@pytest.mark.parametrize("ttl", [30, 7.5])
@pytest.mark.parametrize("verb", ["complete", "fail", "release"])
def test_a_repeat_at_another_server_gets_the_first_answer(clients, other, verb, ttl):
    clients["submit"].post("/api/jobs", {"type": "work", "retries": 0})
    lease = claim(clients["alice"], lease_ttl_secs=ttl).json()["lease"]["lease_id"]
    there = clients["alice"].at(other)
    assert there.post(f"/api/jobs/{lease}/heartbeat").status_code == 200
    first = clients["alice"].post(f"/api/jobs/{lease}/{verb}")
    assert first.status_code == 200
    again = there.post(f"/api/jobs/{lease}/{verb}")
    assert (again.status_code, again.json()) == (200, first.json())
    assert clients["mallory"].at(other).post(f"/api/jobs/{lease}/{verb}").status_code == 409
    assert clients["mallory"].post(f"/api/jobs/{lease}/{verb}").status_code == 409


def test_a_repeated_failure_keeps_its_answer_after_the_retry_has_succeeded(clients):
    _, lease = lease_of(clients, retries=3)
    failed = clients["alice"].post(f"/api/jobs/{lease}/fail", {"delay_secs": 0})
    again = claim(clients["alice"], wait_secs=20).json()["lease"]["lease_id"]
    assert clients["alice"].post(f"/api/jobs/{again}/complete").json()["status"] == "success"
    assert clients["alice"].post(f"/api/jobs/{lease}/fail", {"delay_secs": 0}).json() == failed.json()


def test_servers_share_the_key_that_signs_names(clients, other):
    _, lease = lease_of(clients)
    server = clients["site"].server
    here = clients["site"].do(send(server.core, server.store.put_secret(KEY_NAME, b"other")))
    assert len(here) == 32
    assert clients["alice"].at(other).post(f"/api/jobs/{lease}/complete").status_code == 200


def test_a_server_whose_key_was_lost_by_the_engine_accepts_the_leases_of_others(clients, other, monkeypatch):
    _, lease = lease_of(clients)
    there = clients["alice"].at(other)
    other.server.claims.names._key = b"k" * 32  # made before the engine lost its data
    assert there.post(f"/api/jobs/{lease}/complete").status_code == 200


def test_a_worker_id_belongs_to_the_token_that_registered_it(clients, other):
    body = {"worker_id": "w", "labels": ["gpu"]}
    assert clients["alice"].post("/api/workers/register", body).status_code == 200
    for site in (clients["site"], other):
        mallory = clients["mallory"].at(site)
        assert mallory.post("/api/workers/register", {"worker_id": "w"}).status_code == 409
        assert mallory.post("/api/workers/w/heartbeat").status_code == 409
        assert mallory.delete("/api/workers/w").status_code == 409
        assert claim(mallory).status_code == 409
        alice = clients["alice"].at(site)
        assert alice.post("/api/workers/w/heartbeat").status_code == 200
        assert claim(alice).status_code == 200
    (found,) = clients["submit"].get("/api/workers").json()
    assert found["labels"] == ["gpu"]
    assert clients["root"].delete("/api/workers/w").status_code == 204
    assert clients["mallory"].post("/api/workers/register", {"worker_id": "w"}).status_code == 200


def test_a_worker_id_belongs_to_the_token_that_claimed_with_it_first(clients):
    claim(clients["alice"])
    assert claim(clients["mallory"]).status_code == 409
    assert clients["mallory"].post("/api/workers/register", {"worker_id": "w"}).status_code == 409


def test_tokens_of_one_owner_share_their_worker_ids(clients, other):
    clients["one"].post("/api/workers/register", {"worker_id": "w"})
    assert claim(clients["two"]).status_code == 200
    assert claim(clients["two"].at(other)).status_code == 200


def test_the_id_of_an_offline_worker_is_free(clients, monkeypatch):
    clients["alice"].post("/api/workers/register", {"worker_id": "w"})
    assert claim(clients["mallory"]).status_code == 409
    monkeypatch.setattr(heartbeat, "MISSED", -1)
    assert claim(clients["mallory"]).status_code == 200
    monkeypatch.undo()
    monkeypatch.setattr(heartbeats, "steady", lambda: steady() + heartbeat.BEAT * heartbeat.MISSED)
    assert claim(clients["alice"]).status_code == 409


def test_a_python_workers_id_is_out_of_reach(clients):
    site = clients["site"]
    site.do(send(site.server.core, site.server.store.heartbeat(WorkerRecord(id="python", pid=5))))
    assert claim(clients["mallory"], "python").status_code == 409
    assert clients["mallory"].delete("/api/workers/python").status_code == 409
