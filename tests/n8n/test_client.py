"""The client when n8n is down, busy, too old, or something else: what is asked again, what is not, and what is said."""

from __future__ import annotations

import socket

import pytest
from n8n_api import HTML, KEY, N8nApi
from test_n8n_api import actions, called

from backstay import ConfigError, N8nRefused, N8nUnreachable, WorkspaceError
from backstay.n8n.sync import doctor, sync
from backstay.n8n.sync.client import Client
from backstay.n8n.sync.state import Known, State
from backstay.n8n.sync.transport import Answer
from backstay.testing.ports import lasting_port


@pytest.fixture
def api():
    with N8nApi() as running:
        yield running


@pytest.fixture
def naps():
    return []


@pytest.fixture
def client(api, naps):
    return Client(api.url, KEY, sleep=naps.append)


def test_nobody_there_is_unreachable_after_some_attempts(naps):
    client = Client(f"http://127.0.0.1:{lasting_port()}", KEY, retries=3, sleep=naps.append)
    with pytest.raises(N8nUnreachable, match="no n8n answers at http://127"):
        client.create(called().data)  # also what must not happen twice: nothing can have arrived
    assert len(naps) == 3
    assert naps[0] < naps[2]
    assert [check.name for check in doctor.examine(client, {}, State())] == ["reachable"]


@pytest.mark.parametrize(
    ("status", "name"), [(401, "api key"), (403, "api key"), (404, "n8n"), (429, "n8n"), (500, "n8n"), (503, "n8n")]
)
def test_the_doctor_blames_the_key_only_where_n8n_does(api, client, status, name):
    api.say(status, {"message": "no"}, times=9)
    assert [(check.name, check.level) for check in doctor.examine(client, {}, State())] == [(name, "error")]


def test_a_name_that_is_nobodys_is_unreachable():
    with pytest.raises(N8nUnreachable):
        Client("http://nowhere.invalid", KEY, retries=0).probe()


def test_a_silent_server_is_unreachable_in_time():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        client = Client(
            f"http://127.0.0.1:{silent.getsockname()[1]}", KEY, timeout=0.1, retries=1, sleep=lambda _: None
        )
        with pytest.raises(N8nUnreachable):
            client.probe()


def test_too_many_requests_are_asked_again_when_n8n_says(api, client, naps):
    api.say(429, {"message": "slow down"}, times=2, retry_after=7)
    made = client.create(called().data)  # a 429 did nothing, so also a create
    assert naps == [7.0, 7.0]
    assert list(api.workflows) == [made.id]


def test_too_many_requests_for_long_are_a_refusal(api, client, naps):
    api.say(429, {"message": "slow down"}, retry_after=3600)
    with pytest.raises(N8nRefused, match="fewer requests") as caught:
        client.probe()
    assert caught.value.status == 429
    assert naps == []


def test_a_gateway_that_fails_is_asked_again_for_what_may_happen_twice(api, client, naps):
    made = client.create(called().data)
    api.say(503, HTML, times=2)
    assert client.update(made.id, {**called().data, "name": "B"}).name == "B"
    assert len(naps) == 2
    api.say(502, HTML)
    with pytest.raises(N8nRefused, match="502"):
        client.create(called("C").data)
    assert len(api.workflows) == 1


def test_a_create_whose_answer_is_lost_is_not_sent_again(api, client, naps):
    api.say(0, after=True)
    with pytest.raises(N8nUnreachable, match="look there whether it happened"):
        client.create(called().data)
    assert len(api.workflows) == 1
    assert naps == []


def test_a_push_that_fails_on_the_way_says_what_was_done(api, client):
    state = State()
    built = {"a": called("A"), "b": called("B")}
    api.say(200, {"data": [], "nextCursor": None})  # the probe, and the version
    api.say(404, HTML)
    api.say(500, {"message": "broken"}, after=True)
    with pytest.raises(N8nRefused, match="500"):
        sync.push(client, built, state)
    assert state.workflows == {}
    assert len(api.workflows) == 1


def test_an_update_whose_answer_is_lost_is_sent_again(api, client):
    made = client.create(called().data)
    api.say(0, after=True)
    assert client.update(made.id, {**called().data, "name": "B"}).name == "B"


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (401, {"message": "unauthorized"}, "Settings, n8n API"),
        (403, {"message": "Forbidden"}, "scopes"),
        (404, HTML, "too old"),
        (404, {"message": "Not Found"}, "no such thing"),
        (302, "", "address of n8n itself"),
        (500, {"message": "boom"}, "log"),
        (200, HTML, "is it an n8n"),
        (200, [1], "is it an n8n"),
        (200, {"data": "no"}, "is it an n8n"),
    ],
)
def test_every_refusal_names_the_way_out(api, naps, status, body, message):
    api.say(status, body, times=9)
    with pytest.raises(N8nRefused, match=message):
        list(Client(api.url, KEY, sleep=naps.append).workflows())


def test_the_key_is_not_carried_elsewhere(api, client):
    with N8nApi() as other:
        api.say(302, "", location=f"{other.url}/api/v1/workflows")
        with pytest.raises(N8nRefused):
            client.probe()
        assert other.asked == []


def test_a_proxy_before_n8n_may_have_a_path(api, naps):
    asked = []

    def transport(method, url, headers, body, timeout):
        asked.append(url)
        return Answer(200, b'{"data": [], "nextCursor": null}')

    Client("https://example.org/n8n/", KEY, transport=transport).probe()
    Client("https://example.org/n8n/api/v1", KEY, transport=transport).probe()
    assert set(asked) == {"https://example.org/n8n/api/v1/workflows?limit=1"}


def test_a_server_without_an_end_is_not_listed_for_ever(monkeypatch):
    monkeypatch.setattr("backstay.n8n.sync.client.MOST_PAGES", 3)

    def transport(*_):
        return Answer(200, b'{"data": [], "nextCursor": "again"}')

    with pytest.raises(N8nRefused, match="no end"):
        list(Client("http://127.0.0.1", KEY, transport=transport).workflows())


@pytest.mark.parametrize("key", ["", "with space", "line\nbreak", "schlüssel"])
def test_a_key_that_cannot_be_one_is_refused_without_being_shown(key):
    with pytest.raises(ConfigError) as caught:
        Client("http://127.0.0.1", key)
    assert not key or key not in str(caught.value)


# ── n8n 2 ──


@pytest.mark.parametrize("tells", [True, False])
def test_what_others_call_is_published_on_n8n_2_and_left_alone_on_1(tells):
    for major, expected in ((1, "create"), (2, "publish")):
        with N8nApi(major=major, tells_version=tells) as api:
            client, state = Client(api.url, KEY), State()
            built = {"a": called("A"), "hook": webhook()}
            assert actions(sync.push(client, built, state)) == {"a": expected, "hook": "create"}
            found = {w["name"]: w["active"] for w in api.workflows.values()}
            assert found == {"A": major == 2, "Hook": False}  # a workflow with triggers of its own is the operator's
            assert actions(sync.push(client, built, state)) == {"a": "same", "hook": "same"}
            assert client.major() == (major if tells else 0)
            if tells and major == 1:
                assert not any(path.endswith("/activate") for _, path in api.asked)


def test_a_change_is_published_again():
    with N8nApi(major=2, tells_version=True) as api:
        client, state, built = Client(api.url, KEY), State(), {"a": called("A")}
        sync.push(client, built, state)
        built["a"].data["name"] = "B"
        (change,) = sync.push(client, built, state)
        assert change.action == "publish"
        assert client.workflow(change.id).published
        api.edit(change.id, settings={"executionOrder": "v1"})
        levels = {check.level for check in doctor.examine(client, built, state) if check.name == "workflow a"}
        assert "error" in levels


def webhook():
    found = called("Hook")
    found.data["nodes"][0]["type"] = "n8n-nodes-base.webhook"
    return found


# ── the state ──


def test_a_state_is_read_as_it_was_written():
    state = State({"a": Known("1", "l", "r")}, "http://127.0.0.1")
    assert State.parse(state.text()) == state
    assert State.parse("") == State()


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"version": 1}', '{"version": 1, "workflows": {"a": 1}}', "null"])
def test_a_state_that_cannot_be_read_is_said_so(text):
    with pytest.raises(WorkspaceError, match="cannot be read"):
        State.parse(text)


def test_a_state_of_a_newer_backstay_is_left_alone():
    with pytest.raises(WorkspaceError, match="version 2"):
        State.parse('{"version": 2, "workflows": {}}')
