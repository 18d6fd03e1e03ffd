"""The client when n8n is down, busy, too old or another program: which requests it retries, and its error messages."""

from __future__ import annotations

import socket

import pytest
from test_n8n_api import actions, called

from backstay import ConfigError, N8nRefused, N8nUnreachable, WorkspaceError
from backstay.n8n.sync import doctor, sync
from backstay.n8n.sync.client import N8nClient
from backstay.n8n.sync.state import LastSync, SyncState
from backstay.n8n.sync.transport import HttpResponse
from backstay.testing.servers.ports import reserve_port
from support.n8n.api import HTML, KEY, N8nApi


@pytest.fixture
def api():
    with N8nApi() as running:
        yield running


@pytest.fixture
def delays():
    return []


@pytest.fixture
def client(api, delays):
    return N8nClient(api.url, KEY, sleep=delays.append)


def test_a_refused_connection_is_unreachable_after_the_retries(delays):
    client = N8nClient(f"http://127.0.0.1:{reserve_port()}", KEY, retries=3, sleep=delays.append)
    with pytest.raises(N8nUnreachable, match="no n8n responds at http://127"):
        client.create(called().data)  # a create is retried as well: no connection, so no effect
    assert len(delays) == 3
    assert delays[0] < delays[2]
    assert [check.name for check in doctor.examine(client, {}, SyncState())] == ["reachable"]


@pytest.mark.parametrize(
    ("status", "name"), [(401, "api key"), (403, "api key"), (404, "n8n"), (429, "n8n"), (500, "n8n"), (503, "n8n")]
)
def test_the_doctor_reports_the_api_key_only_for_401_and_403(api, client, status, name):
    api.respond(status, {"message": "no"}, times=9)
    assert [(check.name, check.level) for check in doctor.examine(client, {}, SyncState())] == [(name, "error")]


def test_an_unresolvable_host_is_unreachable():
    with pytest.raises(N8nUnreachable):
        N8nClient("http://nowhere.invalid", KEY, retries=0).probe()


def test_a_silent_server_is_unreachable_after_the_timeout():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        client = N8nClient(
            f"http://127.0.0.1:{silent.getsockname()[1]}", KEY, timeout=0.1, retries=1, sleep=lambda _: None
        )
        with pytest.raises(N8nUnreachable):
            client.probe()


def test_a_429_is_retried_after_retry_after(api, client, delays):
    api.respond(429, {"message": "slow down"}, times=2, retry_after=7)
    made = client.create(called().data)  # a 429 has no effect, so a create is retried as well
    assert delays == [7.0, 7.0]
    assert list(api.workflows) == [made.id]


def test_a_429_with_a_long_retry_after_is_a_refusal(api, client, delays):
    api.respond(429, {"message": "slow down"}, retry_after=3600)
    with pytest.raises(N8nRefused, match="limits the request rate") as caught:
        client.probe()
    assert caught.value.status == 429
    assert delays == []


def test_a_gateway_error_is_retried_only_for_idempotent_requests(api, client, delays):
    made = client.create(called().data)
    api.respond(503, HTML, times=2)
    assert client.update(made.id, {**called().data, "name": "B"}).name == "B"
    assert len(delays) == 2
    api.respond(502, HTML)
    with pytest.raises(N8nRefused, match="502"):
        client.create(called("C").data)
    assert len(api.workflows) == 1


def test_a_create_whose_reply_is_lost_is_not_resent(api, client, delays):
    api.respond(0, after=True)
    with pytest.raises(N8nUnreachable, match="check whether it took effect"):
        client.create(called().data)
    assert len(api.workflows) == 1
    assert delays == []


def test_a_push_that_fails_midway_records_no_unfinished_workflow(api, client):
    state = SyncState()
    built = {"a": called("A"), "b": called("B")}
    api.respond(200, {"data": [], "nextCursor": None})  # the probe; the version follows
    api.respond(404, HTML)
    api.respond(500, {"message": "broken"}, after=True)
    with pytest.raises(N8nRefused, match="500"):
        sync.push(client, built, state)
    assert state.workflows == {}
    assert len(api.workflows) == 1


def test_an_update_whose_reply_is_lost_is_resent(api, client):
    made = client.create(called().data)
    api.respond(0, after=True)
    assert client.update(made.id, {**called().data, "name": "B"}).name == "B"


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (401, {"message": "unauthorized"}, "Settings, n8n API"),
        (403, {"message": "Forbidden"}, "scopes"),
        (404, HTML, "older than"),
        (404, {"message": "Not Found"}, "does not have it"),
        (302, "", "URL of n8n itself"),
        (500, {"message": "boom"}, "log"),
        (200, HTML, "is this an n8n"),
        (200, [1], "is this an n8n"),
        (200, {"data": "no"}, "is this an n8n"),
    ],
)
def test_every_refusal_names_a_remedy(api, delays, status, body, message):
    api.respond(status, body, times=9)
    with pytest.raises(N8nRefused, match=message):
        list(N8nClient(api.url, KEY, sleep=delays.append).workflows())


def test_the_api_key_is_not_sent_to_a_redirect_target(api, client):
    with N8nApi() as other:
        api.respond(302, "", location=f"{other.url}/api/v1/workflows")
        with pytest.raises(N8nRefused):
            client.probe()
        assert other.requests == []


def test_the_url_of_n8n_may_have_a_path_prefix(api, delays):
    asked = []

    def transport(method, url, headers, body, timeout):
        asked.append(url)
        return HttpResponse(200, b'{"data": [], "nextCursor": null}')

    N8nClient("https://example.org/n8n/", KEY, transport=transport).probe()
    N8nClient("https://example.org/n8n/api/v1", KEY, transport=transport).probe()
    assert set(asked) == {"https://example.org/n8n/api/v1/workflows?limit=1"}


def test_an_endless_listing_is_refused_after_the_page_limit(monkeypatch):
    monkeypatch.setattr("backstay.n8n.sync.client.MOST_PAGES", 3)

    def transport(*_):
        return HttpResponse(200, b'{"data": [], "nextCursor": "again"}')

    with pytest.raises(N8nRefused, match="without an end"):
        list(N8nClient("http://127.0.0.1", KEY, transport=transport).workflows())


@pytest.mark.parametrize("key", ["", "with space", "line\nbreak", "schlüssel"])
def test_an_invalid_api_key_is_refused_without_being_shown(key):
    with pytest.raises(ConfigError) as caught:
        N8nClient("http://127.0.0.1", key)
    assert not key or key not in str(caught.value)


# ── n8n 2 ──


@pytest.mark.parametrize("reports_version", [True, False])
def test_sub_workflows_are_published_on_n8n_2_and_not_on_1(reports_version):
    for major, expected in ((1, "create"), (2, "publish")):
        with N8nApi(major=major, reports_version=reports_version) as api:
            client, state = N8nClient(api.url, KEY), SyncState()
            built = {"a": called("A"), "hook": webhook()}
            assert actions(sync.push(client, built, state)) == {"a": expected, "hook": "create"}
            found = {w["name"]: w["active"] for w in api.workflows.values()}
            assert found == {
                "A": major == 2,
                "Hook": False,
            }  # publishing a workflow with triggers is up to the operator
            assert actions(sync.push(client, built, state)) == {"a": "same", "hook": "same"}
            assert client.major_version() == (major if reports_version else 0)
            if reports_version and major == 1:
                assert not any(path.endswith("/activate") for _, path in api.requests)


def test_a_changed_sub_workflow_is_published_again():
    with N8nApi(major=2, reports_version=True) as api:
        client, state, built = N8nClient(api.url, KEY), SyncState(), {"a": called("A")}
        sync.push(client, built, state)
        built["a"].data["name"] = "B"
        (change,) = sync.push(client, built, state)
        assert change.action == "publish"
        assert client.workflow(change.id).is_published
        api.edit(change.id, settings={"executionOrder": "v1"})
        levels = {check.level for check in doctor.examine(client, built, state) if check.name == "workflow a"}
        assert "error" in levels


def webhook():
    found = called("Hook")
    found.data["nodes"][0]["type"] = "n8n-nodes-base.webhook"
    return found


# ── the state ──


def test_a_sync_state_round_trips():
    state = SyncState({"a": LastSync("1", "l", "r")}, "http://127.0.0.1")
    assert SyncState.parse(state.text()) == state
    assert SyncState.parse("") == SyncState()


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"version": 1}', '{"version": 1, "workflows": {"a": 1}}', "null"])
def test_an_unreadable_sync_state_is_refused(text):
    with pytest.raises(WorkspaceError, match="cannot be read"):
        SyncState.parse(text)


def test_a_sync_state_of_a_newer_version_is_refused():
    with pytest.raises(WorkspaceError, match="version 2"):
        SyncState.parse('{"version": 2, "workflows": {}}')
