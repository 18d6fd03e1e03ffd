"""`wire: n8n` over HTTP uses the same Redis keys as n8n's own nodes."""

from __future__ import annotations

import json
import threading

import pytest
from redis import Redis

from backstay.interop.n8n_wire import keys
from backstay.testing.waiting import WITHIN
from support.n8n.nodes import Nodes
from support.server.site import serving


@pytest.fixture
def redis_site(backstay_redis, namespace):
    with serving(backstay_redis.url, namespace=namespace) as running:
        yield running


@pytest.fixture
def redis(backstay_redis):
    with Redis.from_url(backstay_redis.url, decode_responses=True) as client:
        yield client


@pytest.fixture
def nodes(backstay_redis):
    made = Nodes(backstay_redis.url, execution_id="77", workflow_name="Invoices")
    yield made
    made.redis.close()


def acquire(site, scope, **body):
    return site.post(f"/api/locks/{scope}/acquire", {"wire": "n8n", **body})


@pytest.mark.redis
class TestOnRedis:
    def test_a_grant_writes_the_keys_that_n8n_reads(self, redis_site, namespace, redis):
        got = acquire(redis_site, namespace, lock_id="mine", execution_id="e1", workflow_id="w").json()
        assert (got["acquired"], got["count"], got["lock_id"], got["fence"]) == (True, 1, "mine", "")
        assert (got["key"], got["meta_key"]) == (f"n8n-lock-{namespace}", f"n8n-lock-{namespace}:meta")
        meta = json.loads(redis.get(got["meta_key"]))
        assert meta == {name: got[name] for name in keys.IDENTITY}
        assert redis.ttl(got["key"]) > 86_000
        done = redis_site.post(f"/api/locks/{namespace}/release", {"lock_id": "mine", "wire": "n8n"}).json()
        assert (done["released"], done["idempotent"]) == (True, False)
        again = redis_site.post(f"/api/locks/{namespace}/release", {"lock_id": "mine", "wire": "n8n"}).json()
        assert again["idempotent"] is True

    def test_an_acquire_that_does_not_wait_names_the_holder(self, redis_site, namespace, nodes):
        taken = nodes.acquire(namespace)
        response = acquire(redis_site, namespace, wait_till_lock_released=False)
        assert response.status_code == 409
        reply = response.json()
        assert (reply["acquired"], reply["count"], reply["reason"]) == (False, 1, "held")
        assert "Invoices" in reply["detail"]
        response = redis_site.post(f"/api/locks/{namespace}/release", {"lock_id": "other", "wire": "n8n"})
        assert response.status_code == 409
        assert "LOGIC ERROR" in response.json()["detail"]
        assert taken in response.json()["detail"]

    def test_a_repeated_poll_gets_the_lock_after_the_release(self, redis_site, namespace, nodes):
        taken = nodes.acquire(namespace)
        waiting = acquire(redis_site, namespace, request_id="r", poll_seconds=0.1)
        assert (waiting.status_code, waiting.json()["state"]) == (202, "waiting")
        got = []
        poll = threading.Thread(
            target=lambda: got.append(acquire(redis_site, namespace, request_id="r", poll_seconds=20))
        )
        poll.start()
        nodes.release(namespace, taken)
        poll.join(WITHIN)
        assert got[0].status_code == 200
        # If the response was lost, the same request gets the same grant again; another request does not.
        again = acquire(redis_site, namespace, request_id="r").json()
        assert again["lock_id"] == got[0].json()["lock_id"]
        assert acquire(redis_site, namespace, request_id="s", wait_till_lock_released=False).status_code == 409

    def test_a_wait_ends_at_max_wait(self, redis_site, namespace, nodes):
        nodes.acquire(namespace)
        response = acquire(redis_site, namespace, max_wait_seconds=0.2)
        assert response.status_code == 409
        assert response.json()["reason"] == "timeout"

    def test_a_grant_is_confirmed_and_renewed(self, redis_site, namespace, redis):
        got = acquire(redis_site, namespace, confirm_seconds=5, ttl_seconds=500).json()
        assert got["confirmed"] is False
        assert redis.ttl(got["key"]) <= 5
        hold = {"lock_id": got["lock_id"], "ttl_seconds": 500, "wire": "n8n"}
        kept = redis_site.post(f"/api/locks/{namespace}/confirm", hold).json()
        assert (kept["confirmed"], kept["locked_at"]) == (True, got["locked_at"])
        assert redis.ttl(got["key"]) > 400
        redis.delete(got["key"], got["meta_key"])
        assert redis_site.post(f"/api/locks/{namespace}/renew", hold).status_code == 409

    def test_n8n_locks_are_shown_cleaned_up_and_force_released(self, redis_site, namespace, nodes, redis):
        nodes.acquire(namespace)
        seen = redis_site.get(f"/api/locks/{namespace}?wire=n8n").json()
        assert seen["holders"][0]["execution_id"] == "77"
        assert redis_site.get(f"/api/locks/{namespace}").json()["holders"] == []
        body = {"execution_id": "77", "scopes": [namespace], "wire": "n8n"}
        assert redis_site.post("/api/locks/cleanup", body).json()["cleaned_count"] == 1
        assert redis_site.post("/api/locks/cleanup", {"execution_id": "77", "wire": "n8n"}).status_code == 422
        redis.incr(keys.lock_key(namespace))
        assert redis_site.post(f"/api/locks/{namespace}/force-release?wire=n8n").json()["holders"] == []
        assert not redis.exists(keys.lock_key(namespace))

    def test_a_limit_shares_its_counter_with_n8n(self, redis_site, namespace, nodes, redis):
        reply = redis_site.post(
            "/api/limits/any/hit", {"scope": namespace, "limit": 2, "windowSeconds": 10_000_000, "wire": "n8n"}
        ).json()
        assert (reply["allowed"], reply["scope"], reply["count"], reply["limit"]) == (True, namespace, 1, 2)
        (key,) = redis.keys(f"n8n-ratelimit-{namespace}-*")
        assert nodes.incr(key, 10_000_000) == 2
        body = {"scope": namespace, "rates": ["2/10000000s"], "wire": "n8n"}
        reply = redis_site.post("/api/limits/any/hit", body).json()
        assert (reply["allowed"], reply["count"]) == (False, 3)

    def test_a_blank_scope_is_refused_as_n8ns_primitives_refuse_it(self, redis_site, redis):
        assert acquire(redis_site, "%20").status_code == 422
        response = redis_site.post("/api/limits/any/hit", {"scope": " ", "rates": ["2/60s"], "wire": "n8n"})
        assert response.status_code == 422
        assert not redis.exists(keys.lock_key(" "))

    def test_permits_are_refused_on_the_n8n_wire(self, redis_site, namespace):
        assert acquire(redis_site, namespace, permits=2).status_code == 422


def test_the_n8n_wire_is_refused_on_other_engines(site):
    for path, body in (
        ("locks/x/acquire", {}),
        ("locks/x/renew", {"lock_id": "a"}),
        ("locks/x/release", {"lock_id": "a"}),
        ("locks/cleanup", {"execution_id": "1", "scopes": ["x"]}),
        ("limits/x/hit", {"rates": ["1/s"]}),
    ):
        response = site.post(f"/api/{path}", {"wire": "n8n", **body})
        assert response.status_code == 400, path
        assert "Redis" in response.json()["detail"]
    assert site.get("/api/locks/x?wire=n8n").status_code == 400
    assert site.post("/api/locks/x/acquire", {"wire": "other"}).status_code == 422
