"""The primitives on a real `backstay serve`, in the real engines."""

from __future__ import annotations

import time
import uuid
from urllib.parse import quote

import httpx
import pytest
from lab.runner import calling, chain, node

from backstay.n8n.primitives import over_http as drawn
from backstay.testing.servers.ports import reserve_port
from backstay.testing.waiting import WITHIN, eventually

TEN = {"acquired", "count", "scope", "lock_id", "key", "meta_key", "workflow_id", "workflow_name"}
TEN |= {"execution_id", "locked_at"}


@pytest.fixture
def server(backstay_server):
    """Posts to the same Backstay server directly, without n8n."""
    url, token = backstay_server
    with httpx.Client(base_url=url, timeout=30, headers={"authorization": f"Bearer {token}"}) as client:

        def post(path, **body):
            return client.post(path, json=body)

        yield post


def at(scope, verb):
    return f"/api/locks/{quote(scope, safe='')}/{verb}"


def holds(server, scope, **body):
    assert server(at(scope, "acquire"), **{"lock_id": "theirs", "ttl_seconds": 60, **body}).status_code == 200


def is_held(server, scope, by):
    """Return whether this lock_id holds the lock: a renewal succeeds."""
    return server(at(scope, "renew"), lock_id=by, ttl_seconds=60).status_code == 200


def test_a_free_lock_is_granted_and_awaits_confirmation(over_http, server, scope):
    asked = {"lock_id": "mine", "execution_id": "42", "workflow_id": "wf", "workflow_name": "Billing"}
    done = over_http.call("lock_acquisition", scope=scope, ttl_seconds=600, **asked)
    (got,) = done.items
    assert set(got) == TEN | {"fence", "expires_at"}
    assert (got["acquired"], got["count"], got["scope"]) == (True, 1, scope)
    assert {field: got[field] for field in asked} == asked
    assert int(got["fence"]) > 0
    confirmed = server(at(scope, "confirm"), lock_id="mine", ttl_seconds=600).json()
    assert confirmed["expires_at"] > got["expires_at"]


def test_an_unconfirmed_grant_expires(over_http, server, scope, monkeypatch):
    monkeypatch.setattr(drawn, "CONFIRM_SECONDS", 1)
    assert over_http.call("lock_acquisition", scope=scope, lock_id="mine", ttl_seconds=600).items[0]["acquired"]
    holds(server, scope, max_wait_seconds=20)
    assert not is_held(server, scope, "mine")


def test_omitted_http_inputs_have_the_documented_defaults(over_http, scope):
    done = over_http.call("lock_acquisition", scope=scope)
    (got,) = done.items
    assert uuid.UUID(got["lock_id"]).version == 4
    (acquiring,) = done.of("lock_acquisition")
    assert got["execution_id"] == acquiring.id


def test_a_call_without_wait_fails_at_once_and_names_the_holder(over_http, server, scope):
    holds(server, scope, workflow_name="Payroll")
    done = over_http.call("lock_acquisition", scope=scope, wait_till_lock_released=False)
    assert done.status == "error"
    assert done.message.startswith(f'Lock "{scope}" is held (count 1): ')
    assert "Payroll" in done.message


def test_a_waiter_gets_the_lock_at_the_release(over_http, server, scope):
    holds(server, scope)
    waiting = over_http.begin("lock_acquisition", scope=scope, lock_id="second")
    assert eventually(lambda: queued(over_http, scope) == 1)
    begun = time.monotonic()
    server(at(scope, "release"), lock_id="theirs")
    (got,) = waiting.result(30).items
    assert (got["acquired"], got["lock_id"]) == (True, "second")
    assert time.monotonic() - begun < 10


def queued(runner, scope):
    """Return the number of waiters, from the error of a call without wait."""
    message = runner.call("lock_acquisition", scope=scope, wait_till_lock_released=False).message
    return int(message.partition("(count ")[2].partition(")")[0]) - 1


def test_a_waiter_keeps_its_queue_position_between_polls(over_http, server, scope, monkeypatch):
    monkeypatch.setattr(drawn, "POLL_SECONDS", 0.3)
    holds(server, scope)
    first = over_http.begin("lock_acquisition", scope=scope, lock_id="first")
    assert eventually(lambda: queued(over_http, scope) == 1)
    second = over_http.begin("lock_acquisition", scope=scope, lock_id="second")
    assert eventually(lambda: queued(over_http, scope) == 2)
    assert eventually(lambda: first.reached("Wait Before Poll") and second.reached("Wait Before Poll"))
    server(at(scope, "release"), lock_id="theirs")
    assert eventually(lambda: first.done or second.done, 30)
    done = first.result(1)
    (acquiring,) = done.of("lock_acquisition")
    assert len(acquiring.runs["Long Poll Acquire"]) > 1
    assert not second.done
    server(at(scope, "release"), lock_id="first")
    assert second.result(30).items[0]["lock_id"] == "second"


@pytest.mark.parametrize("wait", [0, 1.2])
def test_an_http_wait_ends_after_max_wait(over_http, server, scope, wait):
    holds(server, scope, workflow_name="Payroll")
    begun = time.monotonic()
    done = over_http.call("lock_acquisition", scope=scope, max_wait_seconds=wait)
    assert wait <= time.monotonic() - begun < wait + 20
    assert done.message.startswith(f'Lock "{scope}" was not free within {wait} s (count 1): ')
    assert "Payroll" in done.message


def test_a_grant_to_a_stopped_waiting_execution_expires(over_http, server, scope, monkeypatch):
    """n8n lets the sub-workflow keep waiting; the grant it gets is never confirmed."""
    monkeypatch.setattr(drawn, "CONFIRM_SECONDS", 1)
    holds(server, scope)
    waiting = over_http.begin("lock_acquisition", scope=scope, lock_id="stopped", ttl_seconds=86_400)
    assert eventually(lambda: queued(over_http, scope) == 1)
    waiting.stop()
    waiting.result(WITHIN)
    server(at(scope, "release"), lock_id="theirs")
    holds(server, scope, lock_id="next", max_wait_seconds=20)


# ── release ──


def test_a_second_release_is_idempotent(over_http, server, scope):
    holds(server, scope, lock_id="mine")
    done = [over_http.call("lock_release", scope=scope, lock_id="mine").items for _ in range(2)]
    assert done == [
        [{"released": True, "idempotent": again, "scope": scope, "lock_id": "mine"}] for again in (False, True)
    ]


def test_releasing_a_foreign_lock_over_http_fails_and_names_the_holder(over_http, server, scope):
    holds(server, scope, workflow_name="Payroll", execution_id="17")
    done = over_http.call("lock_release", scope=scope, lock_id="mine")
    assert done.message.startswith("LOGIC ERROR:")
    for part in ("Payroll", "17"):
        assert part in done.message
    assert is_held(server, scope, "theirs")


# ── clean-up ──

STOP = node("Fail", "stopAndError", 1, {"errorMessage": "the body failed"})


def test_a_failed_executions_locks_are_released_without_a_list_of_scopes(over_http, server, scope):
    other = f"{scope}-other"
    holds(server, other, execution_id="1")
    inputs = {"scope": scope, "execution_id": "={{ $execution.id }}", "lock_id": "mine"}
    done = over_http.run(
        chain("w", calling("Acquire", "lock_acquisition", inputs), STOP, errorWorkflow="error_handler_lo")
    )
    assert done.message == "the body failed"
    (cleaning,) = done.of("error_handler_lock_cleanup")
    (got,) = cleaning.items
    assert set(got) == {"cleaned", "cleaned_count", "scopes", "reason"}
    assert (got["cleaned"], got["cleaned_count"], got["scopes"]) == (True, 1, [scope])
    assert not is_held(server, scope, "mine")
    assert is_held(server, other, "theirs")


def test_clean_up_of_an_execution_without_locks_releases_nothing(over_http):
    done = over_http.run(chain("w", STOP, errorWorkflow="error_handler_lo"))
    (cleaning,) = done.of("error_handler_lock_cleanup")
    (got,) = cleaning.items
    assert (got["cleaned"], got["cleaned_count"], got["scopes"]) == (False, 0, [])
    assert got["reason"]


# ── limits ──


def test_a_limit_counts(over_http, scope):
    inputs = {"scope": scope, "limit": 2, "windowSeconds": 10_000_000}
    got = [over_http.call("rate_limit_check", **inputs).items[0] for _ in range(3)]
    assert [one["allowed"] for one in got] == [True, True, False]
    assert [one["count"] for one in got[:2]] == [1, 2]
    assert all(set(one) == {"allowed", "scope", "count", "limit"} for one in got)
    assert {(one["scope"], one["limit"]) for one in got} == {(scope, 2)}


# ── bad input, bad servers ──


@pytest.mark.parametrize(
    ("key", "given"),
    [
        ("lock_acquisition", {"scope": ""}),
        ("lock_acquisition", {"scope": "a", "ttl_seconds": 0}),
        ("lock_acquisition", {"scope": "a", "ttl_seconds": -1}),
        ("lock_acquisition", {"scope": "a", "max_wait_seconds": "long"}),
        ("lock_release", {"scope": "a"}),
        ("rate_limit_check", {"scope": "a", "limit": "many", "windowSeconds": 60}),
        ("rate_limit_check", {"scope": "a", "limit": 2, "windowSeconds": 0}),
    ],
)
def test_invalid_inputs_are_refused(over_http, key, given):
    assert over_http.call(key, **given).message.startswith("Bad input: ")


@pytest.mark.parametrize("key", ["lock_acquisition", "lock_release", "rate_limit_check"])
def test_a_wrong_token_is_reported(over_http, scope, key):
    over_http.credentials[0]["data"]["value"] = "Bearer nonsense"
    inputs = {"scope": scope, "lock_id": "mine", "limit": 1, "windowSeconds": 60}
    names = {"lock_acquisition": ("scope",), "lock_release": ("scope", "lock_id")}
    done = over_http.call(key, **{name: inputs[name] for name in names.get(key, ("scope", "limit", "windowSeconds"))})
    assert done.message.startswith("Backstay answered 401: ")


def test_an_acquire_retries_an_unreachable_server_until_max_wait(over_http, scope, monkeypatch):
    monkeypatch.setattr(drawn, "RETRY_SECONDS", 0.1)
    over_http.url = f"http://127.0.0.1:{reserve_port()}"
    done = over_http.call("lock_acquisition", scope=scope, max_wait_seconds=1)
    assert done.message.startswith(f'Lock "{scope}" was not free within 1 s')
    (acquiring,) = done.of("lock_acquisition")
    assert len(acquiring.runs["Long Poll Acquire"]) > 1
    done = over_http.call("lock_acquisition", scope=scope, wait_till_lock_released=False)
    assert done.message.startswith("Backstay answered nothing: ")
    (acquiring,) = done.of("lock_acquisition")
    assert len(acquiring.runs["Long Poll Acquire"]) == drawn.TRIES


def test_a_release_retries_an_unreachable_server(over_http, scope, monkeypatch):
    monkeypatch.setattr(drawn, "RETRY_SECONDS", 0.1)
    over_http.url = f"http://127.0.0.1:{reserve_port()}"
    done = over_http.call("lock_release", scope=scope, lock_id="mine")
    assert done.message.startswith("Backstay answered nothing: ")
    (releasing,) = done.of("lock_release")
    assert len(releasing.runs["Release Lock"]) == drawn.TRIES


@pytest.mark.parametrize("name", [".", ".."])
def test_a_scope_that_cannot_be_a_path_segment_is_refused(over_http, name):
    for key in ("lock_acquisition", "lock_release"):
        done = over_http.call(key, scope=name, lock_id="mine")
        assert (done.status, done.message) == (
            "error",
            f'Bad input: scope is "{name}", which cannot be part of a URL path',
        )
    assert over_http.call("rate_limit_check", scope=name, limit=9, windowSeconds=60).items[0]["scope"] == name


def test_a_scope_with_url_characters_is_escaped(over_http, server, scope):
    name = f"../{scope}/./%2e?a#b"
    assert over_http.call("lock_acquisition", scope=name, lock_id="mine").items[0]["scope"] == name
    assert is_held(server, name, "mine")
    assert over_http.call("lock_release", scope=name, lock_id="mine").items[0]["idempotent"] is False
