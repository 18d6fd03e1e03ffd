"""Locks over HTTP with long polls and queue positions, on every engine."""

from __future__ import annotations

import threading
import time
from urllib.parse import quote

import pytest

from backstay.testing.waiting import eventually

GRANT_FIELDS = (
    "acquired",
    "count",
    "scope",
    "lock_id",
    "key",
    "meta_key",
    "workflow_id",
    "workflow_name",
    "execution_id",
    "locked_at",
)


def acquire(site, name="invoice", **body):
    return site.post(f"/api/locks/{name}/acquire", body)


def test_a_grant_has_the_ten_fields_and_a_fence(any_site):
    body = {"execution_id": "e1", "workflow_id": "wf", "workflow_name": "Billing", "lock_id": "mine"}
    response = acquire(any_site, **body)
    assert response.status_code == 200
    got = response.json()
    assert set(GRANT_FIELDS) <= set(got)
    assert (got["acquired"], got["count"], got["scope"], got["lock_id"]) == (True, 1, "invoice", "mine")
    assert (got["execution_id"], got["workflow_id"], got["workflow_name"]) == ("e1", "wf", "Billing")
    assert int(got["fence"]) > 0
    assert got["locked_at"] < got["expires_at"]


def test_an_acquire_that_does_not_wait_names_the_holder(any_site):
    acquire(any_site, lock_id="mine", workflow_name="Billing")
    response = acquire(any_site, wait_till_lock_released=False)
    assert response.status_code == 409
    reply = response.json()
    assert (reply["acquired"], reply["count"], reply["reason"]) == (False, 1, "held")
    assert "Billing" in reply["detail"]
    assert set(GRANT_FIELDS) <= set(reply)


@pytest.mark.timed
def test_a_request_keeps_its_queue_position_between_polls(any_site):
    acquire(any_site, lock_id="first")
    early = acquire(any_site, request_id="early", poll_seconds=0.1)
    assert early.status_code == 202
    assert (early.json()["state"], early.json()["position"], early.json()["count"]) == ("waiting", 0, 2)
    late = acquire(any_site, request_id="late", poll_seconds=0.1)
    assert late.json()["position"] == 1
    again = acquire(any_site, request_id="early", poll_seconds=0.1)
    assert again.json()["position"] == 0
    assert any_site.post("/api/locks/invoice/release", {"lock_id": "first"}).json()["released"]
    assert acquire(any_site, request_id="late", poll_seconds=0.1).status_code == 202  # the queue is FIFO
    assert acquire(any_site, request_id="early", poll_seconds=5).json()["acquired"]


def test_a_long_poll_is_answered_at_the_release(any_site):
    acquire(any_site, lock_id="first")
    responses = []
    waiting = threading.Thread(target=lambda: responses.append(acquire(any_site, request_id="r", poll_seconds=30)))
    waiting.start()
    assert eventually(lambda: any_site.server.waiting == 1)
    began = time.monotonic()
    any_site.post("/api/locks/invoice/release", {"lock_id": "first"})
    waiting.join(30)
    assert responses[0].json()["acquired"]
    assert time.monotonic() - began < 10


def test_a_grant_whose_response_was_lost_is_returned_again(any_site):
    first = acquire(any_site, request_id="r").json()
    again = acquire(any_site, request_id="r").json()
    assert again["acquired"]
    assert again["fence"] == first["fence"]
    assert again["lock_id"] == first["lock_id"]


def test_the_wait_is_over_after_max_wait_since_the_first_poll(any_site):
    acquire(any_site, lock_id="first", ttl_seconds=60)
    began = time.monotonic()
    statuses = []
    while (response := acquire(any_site, request_id="r", max_wait_seconds=1.5, poll_seconds=0.4)).status_code == 202:
        statuses.append(response.status_code)
    assert response.status_code == 409
    assert response.json()["reason"] == "timeout"
    assert time.monotonic() - began < 20
    assert statuses
    assert any_site.get("/api/locks/invoice").json()["queue"] == []


def test_another_server_counts_max_wait_from_the_first_poll(any_site):
    acquire(any_site, lock_id="first", ttl_seconds=60)
    assert acquire(any_site, request_id="r", max_wait_seconds=60, poll_seconds=1).status_code == 202
    any_site.server.lock_waits._first_polls.clear()
    assert acquire(any_site, request_id="r", max_wait_seconds=0.5, poll_seconds=0).status_code == 409


def test_a_newer_poll_replaces_the_older_one_of_the_same_request(any_site):
    acquire(any_site, lock_id="first")
    responses = []
    old = threading.Thread(target=lambda: responses.append(acquire(any_site, request_id="r", poll_seconds=30)))
    old.start()
    assert eventually(lambda: any_site.server.waiting == 1)
    assert acquire(any_site, request_id="r", poll_seconds=0.1).status_code == 202
    old.join(30)
    assert responses[0].status_code == 409
    assert any_site.get("/api/locks/invoice").json()["queue"][0]["position"] == 0


def test_a_grant_that_is_not_confirmed_lapses(any_site):
    got = acquire(any_site, lock_id="mine", ttl_seconds=60, confirm_seconds=0.5).json()
    assert got["confirmed"] is False
    assert acquire(any_site, lock_id="other", poll_seconds=20).json()["lock_id"] == "other"
    assert any_site.post("/api/locks/invoice/confirm", {"lock_id": "mine", "ttl_seconds": 60}).status_code == 409


def test_a_confirmed_grant_lives_for_its_ttl(any_site):
    acquire(any_site, lock_id="mine", ttl_seconds=60, confirm_seconds=20)
    kept = any_site.post("/api/locks/invoice/confirm", {"lock_id": "mine", "ttl_seconds": 60}).json()
    assert kept["confirmed"]
    before = any_site.get("/api/locks/invoice").json()["holders"][0]["expires_at"]
    longer = any_site.post("/api/locks/invoice/renew", {"lock_id": "mine", "ttl_seconds": 600}).json()
    assert longer["expires_at"] > before


def test_only_the_holder_renews_or_releases_a_lock(any_site):
    acquire(any_site, lock_id="mine", workflow_name="Billing")
    assert any_site.post("/api/locks/invoice/renew", {"lock_id": "other"}).status_code == 409
    response = any_site.post("/api/locks/invoice/release", {"lock_id": "other"})
    assert response.status_code == 409
    assert response.json()["detail"].startswith("LOGIC ERROR:")
    assert "Billing" in response.json()["detail"]
    gone = any_site.post("/api/locks/nobodys/release", {"lock_id": "mine"}).json()
    assert gone == {"released": True, "idempotent": True, "scope": "nobodys", "lock_id": "mine"}


def test_cleanup_releases_the_locks_of_an_execution(any_site):
    acquire(any_site, "a", execution_id="e1", lock_id="1")
    acquire(any_site, "b", execution_id="e1", lock_id="2")
    acquire(any_site, "c", execution_id="e2", lock_id="3")
    done = any_site.post("/api/locks/cleanup", {"execution_id": "e1"}).json()
    assert done["cleaned"]
    assert (done["cleaned_count"], sorted(done["scopes"])) == (2, ["a", "b"])
    nothing = any_site.post("/api/locks/cleanup", {"execution_id": "e2", "scopes": []}).json()
    assert (nothing["cleaned"], nothing["cleaned_count"]) == (False, 0)
    assert nothing["reason"]
    assert [lock["name"] for lock in any_site.get("/api/locks").json()] == ["c"]


@pytest.mark.parametrize("name", ["a/b", "a b", "ü{1}", "...", "a%2Fb", "x:y", "acquire"])
def test_any_name_can_be_locked(site, name):
    path = f"/api/locks/{quote(name, safe='')}"
    assert site.post(f"{path}/acquire", {"lock_id": "m"}).json()["scope"] == name
    assert site.get(path).json()["holders"][0]["lock_id"] == "m"


def test_a_semaphore_refuses_a_different_number_of_permits(any_site):
    for n in range(2):
        assert acquire(any_site, permits=2, lock_id=f"{n}").json()["acquired"]
    assert acquire(any_site, permits=2, wait_till_lock_released=False).status_code == 409
    response = acquire(any_site, permits=3, wait_till_lock_released=False)
    assert response.status_code == 422
    assert "permits" in response.json()["detail"]


def test_python_and_http_exclude_one_another(any_site):
    acquire(any_site, lock_id="web", workflow_name="Web")

    async def try_lock():
        return await any_site.stay.lock("invoice").try_acquire()

    assert any_site.do(try_lock()) is None
    any_site.post("/api/locks/invoice/release", {"lock_id": "web"})
    lease = any_site.do(try_lock())
    assert acquire(any_site, wait_till_lock_released=False).status_code == 409
    any_site.do(lease.release())


def test_force_release_removes_the_holder_and_raises_the_fence(site):
    acquire(site, lock_id="mine")
    before = int(site.get("/api/locks/invoice").json()["fence"])
    gone = site.post("/api/locks/invoice/force-release").json()
    assert gone["holders"] == []
    assert int(gone["fence"]) > before
