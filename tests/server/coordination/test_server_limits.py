"""Limits and idempotency over HTTP, on every engine."""

from __future__ import annotations

import threading

from backstay.testing.waiting import eventually


def hit(site, name="api", **body):
    return site.post(f"/api/limits/{name}/hit", body)


def test_a_limit_admits_and_denies(any_site):
    for n in range(2):
        reply = hit(any_site, scope="user:7", rates=["2/hour"]).json()
        assert (reply["allowed"], reply["count"], reply["limit"], reply["scope"]) == (True, n + 1, 2, "user:7")
    reply = hit(any_site, scope="user:7", rates=["2/hour"])
    assert reply.status_code == 200
    assert reply.json()["allowed"] is False
    assert reply.json()["retry_after"] > 0
    assert hit(any_site, scope="user:8", rates=["2/hour"]).json()["allowed"]


def test_a_hit_accepts_the_fields_limit_and_window_seconds(any_site):
    reply = hit(any_site, scope="s", limit=1, windowSeconds=3600).json()
    assert (reply["allowed"], reply["limit"], reply["window_seconds"]) == (True, 1, 3600)
    assert hit(any_site, scope="s", limit=1, windowSeconds=3600).json()["allowed"] is False


def test_an_invalid_limit_is_refused(site):
    for body in (
        {},
        {"rates": []},
        {"rates": ["lots"]},
        {"limit": 5},
        {"limit": 0, "windowSeconds": 1},
        {"limit": 5, "windowSeconds": -1},
        {"rates": ["1/hour"], "cost": 2},
        {"rates": ["1/hour"], "limit": 1, "windowSeconds": 1},
        {"rates": ["1/hour"], "scope": ""},
        {"rates": ["1/hour"], "burst": 5},
    ):
        response = hit(site, **body)
        assert response.status_code == 422, body
        assert response.json()["detail"]


def begin(site, key="charge:42", **body):
    return site.post(f"/api/idempotency/{key}/begin", body)


def settle(site, how, begun, key="charge:42", **body):
    call = {"request_id": begun["request_id"], "fence": begun["fence"], **body}
    return site.post(f"/api/idempotency/{key}/{how}", call)


def test_a_call_happens_once_and_is_replayed(any_site):
    begun = begin(any_site, fingerprint={"amount": 5}).json()
    assert begun["state"] == "begun"
    running = begin(any_site, fingerprint={"amount": 5})
    assert running.status_code == 409
    assert running.headers["retry-after"] == "1"
    assert settle(any_site, "complete", begun, result={"receipt": [1, 2]}).json()["state"] == "completed"
    assert settle(any_site, "complete", begun, result="other").json()["state"] == "completed"
    again = begin(any_site, fingerprint={"amount": 5}).json()
    assert (again["state"], again["result"]) == ("completed", {"receipt": [1, 2]})
    assert begin(any_site, fingerprint={"amount": 6}).status_code == 422


def test_a_repeated_begin_with_the_same_request_id_keeps_its_fence(any_site):
    first = begin(any_site, request_id="r").json()
    again = begin(any_site, request_id="r").json()
    assert (again["state"], again["fence"]) == ("begun", first["fence"])


def test_a_waiting_begin_returns_the_outcome(any_site):
    begun = begin(any_site).json()
    responses = []
    waiting = threading.Thread(target=lambda: responses.append(begin(any_site, wait_seconds=30).json()))
    waiting.start()
    assert eventually(lambda: any_site.server.waiting == 1)
    settle(any_site, "complete", begun, result=7)
    waiting.join(30)
    assert responses[0]["result"] == 7


def test_a_failure_is_forgotten_or_replayed(any_site):
    begun = begin(any_site).json()
    assert settle(any_site, "fail", begun, error="no money").json()["state"] == "forgotten"
    begun = begin(any_site).json()
    assert begun["state"] == "begun"
    assert settle(any_site, "fail", begun, error="no money", replay=True).json()["state"] == "failed"
    reply = begin(any_site).json()
    assert reply["state"] == "failed"
    assert "no money" in reply["error"]


def test_completing_a_call_that_was_taken_over_is_refused(any_site):
    begun = begin(any_site, lease_seconds=0.2).json()
    taken = begin(any_site, wait_seconds=20).json()
    assert taken["state"] == "begun"
    assert settle(any_site, "complete", begun, result="stale").status_code == 409
    assert settle(any_site, "complete", taken, result="fresh").status_code == 200
    assert begin(any_site).json()["result"] == "fresh"


def test_python_replays_a_result_stored_over_http(any_site):
    begun = begin(any_site).json()
    settle(any_site, "complete", begun, result={"n": 1})

    async def never():
        raise AssertionError

    assert any_site.do(any_site.stay.idempotency.run("charge:42", never)) == {"n": 1}


def test_a_fence_that_is_not_a_number_is_refused(site):
    begin(site, request_id="r")
    for fence in ("x", "-1", "1.5", "9" * 30, ""):
        response = site.post("/api/idempotency/charge:42/complete", {"request_id": "r", "fence": fence})
        assert response.status_code == 422
