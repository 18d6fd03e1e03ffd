"""A lock taken over HTTP belongs to the owner of the token that took it."""

from __future__ import annotations

import json

import pytest
from redis import Redis

from backstay.interop.n8n_wire import keys
from support.n8n.nodes import Nodes
from support.server.principals import serving_clients
from support.server.site import serving

ROLES = {
    "alice": "submit",
    "bob": "submit",
    "carol": "worker",
    "root": "admin",
    "shared": ("submit", "n8n"),
    "rotated": ("worker", "n8n"),
}
PATH = "/api/locks/invoice"


@pytest.fixture
def clients(engine_url, namespace):
    with serving_clients(engine_url, ROLES, namespace=namespace) as (site, found):
        found["site"] = site
        yield found


def acquire(client, path=PATH, **body):
    return client.post(f"{path}/acquire", {"wait_till_lock_released": False, **body})


def hold(client, **body):
    response = acquire(client, workflow_name="Billing", execution_id="7", **body)
    assert response.status_code == 200, response.text
    return response.json()["lock_id"]


def holders(client, path=PATH):
    return client.get(path).json()["holders"]


@pytest.mark.parametrize("chosen", ["", "mine"], ids=["made", "chosen"])
@pytest.mark.parametrize("verb", ["renew", "confirm", "release"])
def test_the_lock_id_alone_gives_no_other_owner_power_over_a_lock(clients, verb, chosen):
    lock_id = hold(clients["alice"], lock_id=chosen)
    for name in ("bob", "carol", "shared"):
        response = clients[name].post(f"{PATH}/{verb}", {"lock_id": lock_id})
        assert response.status_code == 409, name
        assert "Billing" in response.text
    assert acquire(clients["bob"]).status_code == 409
    assert clients["alice"].post(f"{PATH}/{verb}", {"lock_id": lock_id}).status_code == 200


@pytest.mark.parametrize("verb", ["renew", "confirm", "release"])
def test_an_admin_has_power_over_every_lock(clients, verb):
    lock_id = hold(clients["alice"])
    assert clients["root"].post(f"{PATH}/{verb}", {"lock_id": lock_id}).status_code == 200


def test_tokens_of_one_owner_share_their_locks(clients):
    lock_id = hold(clients["shared"], request_id="r")
    assert clients["rotated"].post(f"{PATH}/renew", {"lock_id": lock_id}).status_code == 200
    assert acquire(clients["rotated"], request_id="r").json()["lock_id"] == lock_id
    assert holders(clients["shared"])[0]["lock_id"] == lock_id
    assert clients["rotated"].post(f"{PATH}/release", {"lock_id": lock_id}).json()["released"]
    assert holders(clients["root"]) == []


def test_others_see_workflow_execution_and_times_but_never_the_lock_id(clients):
    lock_id = hold(clients["alice"], lock_id="secret-id")
    waiting = {"request_id": "w", "lock_id": "secret-waiter", "poll_seconds": 0}
    assert clients["alice"].post(f"{PATH}/acquire", waiting).status_code == 202
    shown = []
    for client in (clients["bob"], clients["carol"], clients["shared"]):
        shown += [
            acquire(client),
            client.post(f"{PATH}/acquire", {"poll_seconds": 0.1, "max_wait_seconds": 0.1}),
            client.post(f"{PATH}/acquire", {"poll_seconds": 0}),
            client.post(f"{PATH}/release", {"lock_id": "wrong"}),
            client.post(f"{PATH}/renew", {"lock_id": "wrong"}),
            client.post(f"{PATH}/confirm", {"lock_id": "wrong"}),
            client.post("/api/locks/cleanup", {"execution_id": "7"}),
        ]
    shown += [clients["bob"].get(PATH), clients["bob"].get("/api/locks")]
    assert [response.text for response in shown if "secret" in response.text] == []
    (holder,) = holders(clients["bob"])
    assert (holder["lock_id"], holder["workflow_name"], holder["execution_id"]) == ("", "Billing", "7")
    assert holder["locked_at"] < holder["expires_at"]
    for name in ("alice", "root"):
        seen = clients[name].get(PATH).json()
        assert (seen["holders"][0]["lock_id"], seen["queue"][0]["lock_id"]) == (lock_id, "secret-waiter")
        assert lock_id in clients[name].get("/api/locks").text


def test_another_owners_repeated_request_id_gets_no_grant(clients):
    granted = acquire(clients["alice"], request_id="r", lock_id="mine").json()
    assert acquire(clients["alice"], request_id="r", lock_id="mine").json()["fence"] == granted["fence"]
    for name in ("bob", "carol", "root"):
        assert acquire(clients[name], request_id="r", lock_id="mine").status_code == 409


def test_another_owners_repeated_request_id_does_not_take_over_a_wait(clients):
    lock_id = hold(clients["alice"])
    assert clients["bob"].post(f"{PATH}/acquire", {"request_id": "r", "poll_seconds": 0}).status_code == 202
    assert clients["carol"].post(f"{PATH}/acquire", {"request_id": "r", "poll_seconds": 0}).status_code == 202
    assert len(clients["root"].get(PATH).json()["queue"]) == 2
    clients["alice"].post(f"{PATH}/release", {"lock_id": lock_id})
    assert clients["carol"].post(f"{PATH}/acquire", {"request_id": "r", "poll_seconds": 0}).status_code == 202
    assert clients["bob"].post(f"{PATH}/acquire", {"request_id": "r", "poll_seconds": 5}).status_code == 200


def test_a_clean_up_touches_the_callers_own_locks_only(clients):
    hold(clients["alice"])
    for scopes in (None, ["invoice"]):
        body = {"execution_id": "7", "scopes": scopes}
        for name in ("bob", "carol", "root"):
            assert clients[name].post("/api/locks/cleanup", body).json()["cleaned_count"] == 0
        assert len(holders(clients["root"])) == 1
    # The clean-ups of others did not remove the lock from the list of the execution's locks.
    done = clients["alice"].post("/api/locks/cleanup", {"execution_id": "7"}).json()
    assert (done["cleaned_count"], done["scopes"]) == (1, ["invoice"])
    assert holders(clients["root"]) == []


def test_two_owners_may_use_the_same_execution_id(clients):
    acquire(clients["alice"], "/api/locks/a", execution_id="7")
    acquire(clients["bob"], "/api/locks/b", execution_id="7")
    assert clients["bob"].post("/api/locks/cleanup", {"execution_id": "7"}).json()["scopes"] == ["b"]
    assert clients["alice"].post("/api/locks/cleanup", {"execution_id": "7"}).json()["scopes"] == ["a"]


def test_owners_who_share_a_semaphore_and_a_lock_id_release_their_own_permit(clients):
    for name in ("alice", "bob"):
        assert acquire(clients[name], permits=2, lock_id="same", workflow_name=name).status_code == 200
    assert clients["bob"].post(f"{PATH}/release", {"lock_id": "same"}).json()["released"]
    assert [holder["workflow_name"] for holder in holders(clients["root"])] == ["alice"]


def test_a_python_programs_lock_is_out_of_reach_of_low_roles(clients):
    site = clients["site"]

    async def take():
        return await site.stay.lock("invoice", ttl=60).acquire(wait=0, execution_id="7")

    lease = site.do(take())
    for name in ("alice", "carol"):
        client = clients[name]
        assert lease.id not in acquire(client).text
        assert lease.id not in client.post(f"{PATH}/release", {"lock_id": "wrong"}).text
        for verb in ("renew", "confirm", "release"):
            assert client.post(f"{PATH}/{verb}", {"lock_id": lease.id}).status_code == 409
        clean_up = {"execution_id": "7", "scopes": ["invoice"]}
        assert client.post("/api/locks/cleanup", clean_up).json()["cleaned"] is False
    assert holders(clients["alice"])[0]["lock_id"] == ""
    assert not lease.is_lost
    assert clients["root"].post(f"{PATH}/release", {"lock_id": lease.id}).json()["released"]


def test_a_python_program_cleans_up_locks_of_every_owner(clients):
    hold(clients["alice"])
    done = clients["site"].do(clients["site"].stay.locks.cleanup("7"))
    assert done.scopes == ("invoice",)


def test_without_tokens_all_callers_are_one_principal(engine_url, namespace):
    with serving(engine_url, namespace=namespace) as site:
        lock_id = site.post(f"{PATH}/acquire", {"execution_id": "7"}).json()["lock_id"]
        assert site.get(PATH).json()["holders"][0]["lock_id"] == lock_id
        assert lock_id in site.post(f"{PATH}/acquire", {"wait_till_lock_released": False}).text
        assert site.post("/api/locks/cleanup", {"execution_id": "7"}).json()["cleaned_count"] == 1


def test_an_idempotent_call_belongs_to_the_owner_that_began_it(clients):
    path = "/api/idempotency/charge"
    begun = clients["alice"].post(f"{path}/begin", {"request_id": "r"}).json()
    assert begun["state"] == "begun"
    outcome = {"request_id": "r", "fence": begun["fence"], "result": "forged"}
    for name in ("bob", "carol", "root"):
        client = clients[name]
        assert client.post(f"{path}/begin", {"request_id": "r"}).status_code == 409
        assert client.post(f"{path}/complete", outcome).status_code == 409
        client.post(f"{path}/fail", {"request_id": "r", "fence": begun["fence"]})
        client.post(f"{path}/fail", {"request_id": "r", "fence": begun["fence"], "replay": True})
    assert clients["alice"].post(f"{path}/complete", {**outcome, "result": 5}).status_code == 200
    assert clients["bob"].post(f"{path}/begin").json()["result"] == 5


def test_a_fence_that_was_never_granted_is_refused_and_not_stored(clients):
    path = "/api/idempotency/charge"
    far = {"request_id": "r", "fence": "9000000000000000000"}
    assert clients["bob"].post(f"{path}/complete", far).status_code == 409
    assert clients["bob"].post(f"{path}/fail", far).status_code == 409
    assert int(clients["alice"].post(f"{path}/begin").json()["fence"]) < 2**53


@pytest.mark.redis
class TestN8nWire:
    @pytest.fixture
    def clients(self, backstay_redis, namespace):
        with serving_clients(backstay_redis.url, ROLES, namespace=namespace) as (_, found):
            yield found

    @pytest.fixture
    def path(self, namespace):
        return f"/api/locks/{namespace}"

    @pytest.fixture
    def redis(self, backstay_redis):
        with Redis.from_url(backstay_redis.url, decode_responses=True) as client:
            yield client

    @staticmethod
    def take(client, path, **body):
        return acquire(client, path, wire="n8n", **body)

    def test_the_server_binds_what_it_granted_to_the_owner(self, clients, path, namespace):
        lock_id = self.take(clients["alice"], path, execution_id="7", lock_id="secret-id").json()["lock_id"]
        body = {"lock_id": lock_id, "wire": "n8n"}
        clean_up = {"execution_id": "7", "scopes": [namespace], "wire": "n8n"}
        for name in ("bob", "carol", "shared"):
            client = clients[name]
            for verb in ("renew", "confirm", "release"):
                assert client.post(f"{path}/{verb}", body).status_code == 409
                wrong = client.post(f"{path}/{verb}", {"lock_id": "wrong", "wire": "n8n"})
                assert (wrong.status_code, "secret" in wrong.text) == (409, False)
            assert client.post("/api/locks/cleanup", clean_up).json()["cleaned"] is False
            assert "secret" not in self.take(client, path).text
            assert self.take(client, path, lock_id=lock_id).status_code == 409
        assert clients["bob"].get(f"{path}?wire=n8n").json()["holders"][0]["lock_id"] == ""
        assert clients["alice"].get(f"{path}?wire=n8n").json()["holders"][0]["lock_id"] == lock_id
        assert clients["alice"].post(f"{path}/renew", body).status_code == 200
        assert clients["alice"].post("/api/locks/cleanup", clean_up).json()["cleaned_count"] == 1

    def test_another_owners_repeated_request_gets_no_grant(self, clients, path):
        body = {"request_id": "r", "lock_id": "mine", "execution_id": "7"}
        assert self.take(clients["alice"], path, **body).status_code == 200
        assert self.take(clients["alice"], path, **body).status_code == 200
        assert self.take(clients["bob"], path, **body).status_code == 409

    def test_an_admin_and_tokens_of_one_owner_release_it(self, clients, path):
        for taker, releaser in (("alice", "root"), ("shared", "rotated")):
            lock_id = self.take(clients[taker], path).json()["lock_id"]
            body = {"lock_id": lock_id, "wire": "n8n"}
            assert clients[releaser].post(f"{path}/release", body).json()["idempotent"] is False

    def test_a_lock_that_n8ns_nodes_took_has_no_owner_and_needs_an_admin(
        self, clients, path, namespace, backstay_redis
    ):
        nodes = Nodes(backstay_redis.url, execution_id="77", workflow_name="Invoices")
        try:
            lock_id = nodes.acquire(namespace)
            body = {"lock_id": lock_id, "wire": "n8n"}
            clean_up = {"execution_id": "77", "scopes": [namespace], "wire": "n8n"}
            for name in ("alice", "carol", "root"):
                assert clients[name].post("/api/locks/cleanup", clean_up).json()["cleaned"] is False
            for name in ("alice", "carol"):
                assert clients[name].post(f"{path}/release", body).status_code == 409
                assert lock_id not in self.take(clients[name], path).text
            assert clients["root"].post(f"{path}/release", body).json()["released"]
        finally:
            nodes.redis.close()

    def test_n8ns_nodes_release_a_lock_that_the_server_granted(self, clients, path, namespace, backstay_redis, redis):
        lock_id = self.take(clients["alice"], path, execution_id="7").json()["lock_id"]
        meta = json.loads(redis.get(keys.meta_key(namespace)))
        assert set(meta) == {*keys.IDENTITY, keys.OWNER}
        nodes = Nodes(backstay_redis.url, execution_id="7", workflow_name="Invoices")
        try:
            nodes.release(namespace, lock_id)
        finally:
            nodes.redis.close()
        assert not redis.exists(keys.lock_key(namespace))
