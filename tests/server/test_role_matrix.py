"""Who may see and do what: every principal against every object and verb that belongs to an owner.

A cell of the matrix is the outcome of one request: its status, or a word where the status alone says too little. Each
cell gets a new object. A route that is not in the matrix must be in ROLE_ONLY: there, only the token's role counts.
"""

from __future__ import annotations

import itertools
from typing import ClassVar

import pytest

from backstay.server.routes.table import TABLE
from support.server.principals import Client, serving_clients

PRINCIPALS = {
    "owner": ("worker", "team"),
    "second": ("worker", "team"),  # another token of the same owner, as after a rotation
    "colleague": ("submit", "team"),  # the same owner with another role
    "stranger": "worker",
    "outsider": "submit",
    "root": "admin",
}
NOBODY = "nobody"  # a client without a token

numbers = itertools.count()


@pytest.fixture(scope="module")
def clients(tmp_path_factory):
    url = f"sqlite:///{tmp_path_factory.mktemp('roles') / 'backstay.db'}?synchronous=normal"
    with serving_clients(url, PRINCIPALS) as (site, found):
        nobody = Client(site.url, "")
        del nobody.http.headers["authorization"]
        found[NOBODY], found["site"] = nobody, site
        yield found
        nobody.http.close()


def row(**outcomes):
    """Build a row of the matrix: the outcome of each principal. Without a token, every request ends with 401."""
    rest = outcomes.pop("rest", None)
    return {NOBODY: 401, **{name: outcomes.get(name, rest) for name in PRINCIPALS}}


#: Rows of requests that only the owner's tokens may send, those of admins too, and those of admins alone.
SAME_OWNER = row(owner=200, second=200, colleague=200, rest=409)
SAME_OWNER_OR_ADMIN = row(owner=200, second=200, colleague=200, root=200, rest=409)
ADMIN = row(root=200, rest=409)
#: Rows of the worker protocol, whose routes need the role worker.
WORKERS = {"colleague": 403, "outsider": 403}
LEASE = row(owner=200, second=200, stranger=409, root=409, **WORKERS)


class Lock:
    """A lock that the owner holds."""

    rows: ClassVar = {
        "acquire": SAME_OWNER,
        "renew": SAME_OWNER_OR_ADMIN,
        "confirm": SAME_OWNER_OR_ADMIN,
        "release": SAME_OWNER_OR_ADMIN,
        "clean up": row(owner="cleaned", second="cleaned", colleague="cleaned", rest="nothing"),
        "clean up by scope": row(owner="cleaned", second="cleaned", colleague="cleaned", rest="nothing"),
        "force-release": row(root=200, rest=403),
        "see": row(colleague="lock_id", outsider="holder", root="lock_id", rest=403),
        "list": row(colleague="lock_id", outsider="holder", root="lock_id", rest=403),
        "see in a refusal": row(owner="lock_id", second="lock_id", colleague="lock_id", root="lock_id", rest="holder"),
    }
    routes = ("acquire_lock", "renew_lock", "confirm_lock", "release_lock", "cleanup_locks", "force_release_lock")
    routes += ("get_lock", "list_locks")

    def __init__(self, clients):
        self.name = f"lock{next(numbers)}"
        self.path = f"/api/locks/{self.name}"
        self.execution = f"execution{self.name}"
        self.request = {"request_id": "r", "wait_till_lock_released": False}
        self.body = {"lock_id": self.take(clients)}

    def take(self, clients):
        taken = clients["owner"].post(
            f"{self.path}/acquire", {**self.request, "workflow_name": "Billing", "execution_id": self.execution}
        )
        return taken.json()["lock_id"]

    def do(self, verb, client):
        match verb:
            case "acquire":
                return client.post(f"{self.path}/acquire", self.request).status_code
            case "clean up" | "clean up by scope":
                scopes = {"scopes": [self.name]} if verb == "clean up by scope" else {}
                done = client.post("/api/locks/cleanup", {"execution_id": self.execution, **scopes})
                return ("cleaned" if done.json()["cleaned"] else "nothing") if done.is_success else done.status_code
            case "see":
                return self.what_is_shown(client.get(self.path))
            case "list":
                return self.what_is_shown(client.get(f"/api/locks?prefix={self.name}"))
            case "see in a refusal":
                return self.what_is_shown(client.post(f"{self.path}/acquire", {**self.request, "request_id": "other"}))
            case _:
                return client.post(f"{self.path}/{verb}", {} if verb == "force-release" else self.body).status_code

    def what_is_shown(self, response):
        if response.status_code in (401, 403):
            return response.status_code
        assert "Billing" in response.text
        assert self.execution in response.text
        return "lock_id" if self.body["lock_id"] in response.text else "holder"


class PythonLock(Lock):
    """A lock that a Python program holds: it belongs to no token."""

    rows: ClassVar = {
        "acquire": row(rest=409),
        "renew": ADMIN,
        "confirm": ADMIN,
        "release": ADMIN,
        "clean up": row(rest="nothing"),
        "clean up by scope": row(rest="nothing"),
        "see": row(colleague="holder", outsider="holder", root="lock_id", rest=403),
        "see in a refusal": row(root="lock_id", rest="holder"),
    }
    routes = ()

    def take(self, clients):
        site = clients["site"]

        async def acquire():
            lock = site.stay.lock(self.name, ttl=60, renew=False)
            return await lock.acquire(wait=0, execution_id=self.execution, workflow_name="Billing")

        return site.do(acquire()).id


class Call:
    """An idempotent call that the owner has begun."""

    rows: ClassVar = {"begin": SAME_OWNER, "complete": SAME_OWNER, "fail": SAME_OWNER, "forget": SAME_OWNER}
    routes = ("begin_call", "complete_call", "fail_call")

    def __init__(self, clients):
        self.path = f"/api/idempotency/call{next(numbers)}"
        self.owner = clients["owner"]
        begun = self.owner.post(f"{self.path}/begin", {"request_id": "r"}).json()
        self.body = {"request_id": "r", "fence": begun["fence"]}

    def do(self, verb, client):
        if verb == "begin":
            return client.post(f"{self.path}/begin", {"request_id": "r"}).status_code
        if verb != "forget":
            replay = {"replay": True} if verb == "fail" else {}
            return client.post(f"{self.path}/{verb}", {**self.body, **replay}).status_code
        done = client.post(f"{self.path}/fail", self.body)
        if not done.is_success:
            return done.status_code
        again = self.owner.post(f"{self.path}/begin", {"request_id": "new"})  # 409 while the first call still runs
        return 200 if again.status_code == 200 else 409


class Lease:
    """The lease of a job that the owner has claimed."""

    rows: ClassVar = dict.fromkeys(("heartbeat", "logs", "artifact", "complete", "fail", "release"), LEASE)
    routes = ("beat_lease", "append_logs", "put_artifact", "complete_job", "fail_job", "release_job")

    def __init__(self, clients):
        queue = f"queue{next(numbers)}"
        clients["colleague"].post("/api/jobs", {"type": "work", "queue": queue})
        found = clients["owner"].post("/api/jobs/claim", {"worker_id": "matrix", "queues": [queue]}).json()
        self.path = f"/api/jobs/{found['lease']['lease_id']}"

    def do(self, verb, client):
        if verb == "artifact":
            return client.put(f"{self.path}/artifacts/a", b"x").status_code
        body = {"chunks": [{"data": "x"}]} if verb == "logs" else {}
        return client.post(f"{self.path}/{verb}", body).status_code


class WorkerId:
    """The id of a worker that the owner has registered."""

    rows: ClassVar = {
        "register": LEASE,
        "heartbeat": LEASE,
        "claim": LEASE,
        "remove": row(owner=204, second=204, root=204, stranger=409, **WORKERS),
    }
    routes = ("register_worker", "beat_worker", "claim_job", "remove_worker")

    def __init__(self, clients):
        self.body = {"worker_id": f"worker{next(numbers)}"}
        clients["owner"].post("/api/workers/register", self.body)

    def do(self, verb, client):
        match verb:
            case "register":
                return client.post("/api/workers/register", self.body).status_code
            case "claim":
                return client.post("/api/jobs/claim", {**self.body, "queues": ["empty"]}).status_code
            case "remove":
                return client.delete(f"/api/workers/{self.body['worker_id']}").status_code
            case _:
                return client.post(f"/api/workers/{self.body['worker_id']}/heartbeat").status_code


class RunRequest:
    """A run that a token of the owner has started with a request id."""

    rows: ClassVar = {"run": row(colleague="same", outsider="another", root="another", rest=403)}
    routes = ("run_workflow",)

    def __init__(self, clients):
        self.path = "/api/workflows/matrix/run"
        self.body = {"request_id": f"r{next(numbers)}"}
        clients["colleague"].post("/api/workflows", {"name": "matrix", "jobs": {"one": {"run": "true"}}})
        self.run = clients["colleague"].post(self.path, self.body).json()["run_id"]

    def do(self, _, client):
        started = client.post(self.path, self.body)
        if not started.is_success:
            return started.status_code
        return "same" if started.json()["run_id"] == self.run else "another"


OBJECTS = (Lock, PythonLock, Call, Lease, WorkerId, RunRequest)
CELLS = [
    pytest.param(kind, verb, name, outcome, id=f"{name}-{kind.__name__}-{verb}".replace(" ", "_"))
    for kind in OBJECTS
    for verb, outcomes in kind.rows.items()
    for name, outcome in outcomes.items()
]
#: Routes whose objects belong to no owner: a token's role decides alone (tests/server/http/test_server_auth.py).
ROLE_ONLY = {
    "metrics",
    "openapi_document",
    "list_workflows",
    "create_workflow",
    "get_workflow",
    "workflow_status",
    "cancel_workflow",
    "job_cancelled",
    "list_workers",
    "read_logs",
    "stream_logs",
    "list_artifacts",
    "get_artifact",
    "list_runs",
    "get_run",
    "cancel_run",
    "rerun_failed",
    "retry_run_job",
    "read_events",
    "stream_run_events",
    "stream_events",
    "list_jobs",
    "enqueue_job",
    "list_dead",
    "retry_dead",
    "purge_dead",
    "get_job",
    "retry_job",
    "cancel_job",
    "list_queues",
    "pause_queue",
    "resume_queue",
    "hit_limit",
}


@pytest.mark.parametrize(("kind", "verb", "name", "outcome"), CELLS)
def test_a_principal_sees_and_does_what_the_matrix_says(clients, kind, verb, name, outcome):
    assert kind(clients).do(verb, clients[name]) == outcome


def test_every_guarded_route_is_in_the_matrix_or_depends_on_the_role_alone():
    covered = {handler for kind in OBJECTS for handler in kind.routes}
    assert {route.name for route in TABLE if route.roles} == covered | ROLE_ONLY
    assert not covered & ROLE_ONLY


@pytest.mark.parametrize("kind", OBJECTS, ids=lambda kind: kind.__name__)
def test_every_row_has_an_outcome_for_every_principal(kind):
    for verb, outcomes in kind.rows.items():
        assert set(outcomes) == {NOBODY, *PRINCIPALS}, verb
        assert None not in outcomes.values(), verb
