"""What Backstay relies on in n8n's public API, checked against the fake API and, with `make test-n8n-server`, against a
real server.
"""

from __future__ import annotations

import pytest
from full_server import MAJORS

from backstay import ConfigError, N8nRefused, WorkspaceError
from backstay.n8n.model import N8nWorkflow
from backstay.n8n.sync import doctor, sync
from backstay.n8n.sync.client import FIELDS, N8nClient
from backstay.n8n.sync.create_placeholders import create_placeholders
from backstay.n8n.sync.state import SyncState
from support.n8n.api import KEY, N8nApi

STAND_INS = [("stand-in", major) for major in MAJORS]
SERVERS = [pytest.param(("server", major), marks=pytest.mark.n8n_server) for major in MAJORS]


@pytest.fixture(params=[*STAND_INS, *SERVERS], ids="-".join)
def client(request):
    kind, major = request.param
    if kind == "stand-in":
        with N8nApi(int(major)) as api:
            yield N8nClient(api.url, KEY)
        return
    server = request.getfixturevalue("n8n_servers")(major)
    real = N8nClient(server.url, server.key)
    yield real
    for left in list(real.workflows()):
        real.delete(left.id)


def called(name="Called", **settings):
    """Return a sub-workflow. Its second node has no id, so that n8n assigns one."""
    trigger = {
        "id": "11111111-1111-4111-8111-111111111111",
        "name": "Start",
        "type": "n8n-nodes-base.executeWorkflowTrigger",
        "typeVersion": 1.1,
        "position": [0, 0],
        "parameters": {"workflowInputs": {"values": [{"name": "scope"}]}},
    }
    step = {"name": "Step", "type": "n8n-nodes-base.noOp", "typeVersion": 1, "position": [200, 0], "parameters": {}}
    lines = {"Start": {"main": [[{"node": "Step", "type": "main", "index": 0}]]}}
    data = {
        "name": name,
        "nodes": [trigger, step],
        "connections": lines,
        "settings": {"executionOrder": "v1", **settings},
    }
    return N8nWorkflow({**data, "meta": {"backstay": {"primitive": "x"}}})


def actions(changes):
    return {change.key: change.action for change in changes}


# ── the API ──


def test_a_created_workflow_is_read_back_with_the_fields_n8n_adds(client):
    made = client.create(called().data)
    assert 0 < len(made.id) <= 16
    assert made.version_id
    assert not made.active
    assert not made.is_published
    found = client.workflow(made.id)
    assert found.data["settings"] == {
        "executionOrder": "v1",
        "callerPolicy": "workflowsFromSameOwner",
        "availableInMCP": False,
    }
    assert found.data["nodes"][1]["id"]
    assert found.data["meta"] is None
    assert client.workflow("nosuch") is None
    client.delete(made.id)
    client.delete(made.id)
    assert client.workflow(made.id) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": {"foo": 1}}, "settings must NOT have additional properties"),
        ({"nodes": [{"name": "A", "type": "t", "extra": 1}]}, "nodes/0 must NOT have additional properties"),
    ],
)
def test_unsupported_fields_are_named_in_the_refusal(client, change, message):
    with pytest.raises(N8nRefused, match=f"{message}.*remove"):
        client.create({**called().data, **change})
    assert list(client.workflows()) == []


def test_a_listing_follows_all_pages(client, monkeypatch):
    monkeypatch.setattr("backstay.n8n.sync.client.PAGE", 2)
    made = {client.create(called(f"W{n}").data).id for n in range(5)}
    assert {found.id for found in client.workflows()} == made
    assert [found.name for found in client.workflows(name="W3")] == ["W3"]


def test_a_sub_workflow_is_not_activated_on_n8n_1(client):
    made = client.create(called().data)
    with pytest.raises(N8nRefused, match="no node to start") as caught:
        client.publish(made.id)
    assert caught.value.status == 400
    assert not client.workflow(made.id).active


def test_a_credential_is_created_by_its_schema_and_deleted(client):
    schema = client.credential_schema("redis")
    assert schema["properties"]["port"]["type"] == "number"
    made = client.create_credential("redis", "redis", {"host": "127.0.0.1", "port": 6379, "ssl": False})
    client.delete_credential(made)
    client.delete_credential(made)
    with pytest.raises(N8nRefused) as caught:
        client.create_credential("redis", "redis", {"host": "127.0.0.1", "port": "6379", "password": "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_a_wrong_key_is_reported_without_the_key(client):
    with pytest.raises(N8nRefused, match="rejects this API key") as caught:
        N8nClient(client.url, "wrong-key-12345").probe()
    assert caught.value.status == 401
    assert "wrong-key-12345" not in str(caught.value)
    assert "wrong-key-12345" not in repr(N8nClient(client.url, "wrong-key-12345"))


# ── push, pull, diff, status ──


def test_a_push_creates_updates_and_then_changes_nothing(client):
    built, state = {"a": called("A"), "b": called("B", timezone="Europe/Berlin")}, SyncState()
    assert actions(sync.status(client, built, state)) == {"a": "missing", "b": "missing"}
    first = sync.push(client, built, state)
    assert actions(first) == {"a": "create", "b": "create"}
    assert all(client.workflow(change.id).name == change.name for change in first)
    state = SyncState.parse(state.text())
    assert actions(sync.push(client, built, state)) == {"a": "same", "b": "same"}
    assert sync.diff(client, built, state) == []
    built["a"].data["name"] = "A, renamed"
    (change,) = sync.diff(client, built, state)
    assert (change.key, change.action) == ("a", "local")
    assert '-  "name": "A",' in change.diff
    assert '+  "name": "A, renamed",' in change.diff
    assert actions(sync.push(client, built, state, dry_run=True)) == {"a": "update", "b": "same"}
    assert client.workflow(change.id).name == "A"
    assert actions(sync.push(client, built, state)) == {"a": "update", "b": "same"}
    assert client.workflow(change.id).name == "A, renamed"
    assert len(list(client.workflows())) == 2


def edit(client, workflow_id, **fields):
    """Change a workflow in n8n, as a user of its editor does."""
    found = client.workflow(workflow_id)
    data = {field: found.data[field] for field in FIELDS}
    data["settings"] = {"executionOrder": "v1"}
    client.update(workflow_id, {**data, **fields})


def test_an_edit_in_n8n_is_not_overwritten(client):
    built, state = {"a": called("A"), "b": called("B")}, SyncState()
    (first, _) = sync.push(client, built, state)
    edit(client, first.id, name="edited in n8n")
    assert actions(sync.status(client, built, state)) == {"a": "remote", "b": "same"}
    built["b"].data["name"] = "B2"
    before = state.text()
    with pytest.raises(WorkspaceError, match="a: changed in n8n"):
        sync.push(client, built, state)
    assert state.text() == before
    assert {found.name for found in client.workflows()} == {"edited in n8n", "B"}  # b was not pushed either
    built["a"].data["name"] = "edited here"
    assert actions(sync.status(client, built, state))["a"] == "conflict"
    with pytest.raises(WorkspaceError, match=r"changed in both|in the workspace and in n8n"):
        sync.pull(client, built, state)
    assert actions(sync.push(client, built, state, dry_run=True))["a"] == "conflict"
    assert actions(sync.push(client, built, state, force=True)) == {"a": "update", "b": "update"}
    assert client.workflow(first.id).name == "edited here"


def test_a_pull_takes_an_edit_from_n8n_and_keeps_fields_only_in_the_file(client):
    built, state = {"a": called("A")}, SyncState()
    (first,) = sync.push(client, built, state)
    edit(client, first.id, name="edited in n8n")
    (change,) = sync.pull(client, built, state, dry_run=True)
    assert (change.action, change.workflow.name) == ("write", "edited in n8n")
    assert actions(sync.status(client, built, state)) == {"a": "remote"}  # the dry run changed nothing
    (change,) = sync.pull(client, built, state)
    built["a"] = change.workflow
    assert built["a"].data["meta"] == {"backstay": {"primitive": "x"}}
    assert actions(sync.status(client, built, state)) == {"a": "same"}
    assert actions(sync.pull(client, built, state)) == {"a": "same"}
    (new,) = sync.pull(client, {}, SyncState(), more={"found": first.id})
    assert (new.key, new.action, new.workflow.name) == ("found", "write", "edited in n8n")


def test_a_workflow_deleted_in_n8n_is_recreated_only_by_force(client):
    built, state = {"a": called("A")}, SyncState()
    (first,) = sync.push(client, built, state)
    client.delete(first.id)
    with pytest.raises(WorkspaceError, match="no longer has it"):
        sync.push(client, built, state)
    (again,) = sync.push(client, built, state, force=True)
    assert again.action == "create"
    assert again.id != first.id
    assert state.workflows["a"].id == again.id


def test_a_placeholder_gets_its_id_before_the_content_is_pushed(client):
    state = SyncState()
    (minted,) = create_placeholders(client, {"a": called("A")}, state)
    assert [one["name"] for one in client.workflow(minted.id).data["nodes"]] == ["Being Pushed"]
    assert actions(create_placeholders(client, {"a": called("A")}, state)) == {"a": "same"}
    (pushed,) = sync.push(client, {"a": called("A")}, state)
    assert (pushed.action, pushed.id) == ("update", minted.id)
    assert len(client.workflow(minted.id).data["nodes"]) == 2


def test_a_placeholder_whose_creation_was_not_recorded_is_found_again(client):
    state, kept = SyncState(), []
    (minted,) = create_placeholders(client, {"a": called("A")}, state, keep=lambda: kept.append(state.text()))
    (intent,) = kept  # the state on disk after a kill before n8n's reply
    (again,) = create_placeholders(client, {"a": called("A")}, found := SyncState.parse(intent))
    assert again.id == minted.id
    assert not found.begun
    assert len(list(client.workflows())) == 1


def test_an_update_that_was_not_recorded_is_no_conflict(client):
    """Even though n8n has assigned an id to the node without one."""
    built, state = {"a": called("A")}, SyncState()
    create_placeholders(client, built, state)
    before = state.text()
    sync.push(client, built, state)
    assert actions(sync.push(client, built, SyncState.parse(before))) == {"a": "same"}


def test_the_doctor_reports_edited_and_deleted_workflows(client):
    built, state = {"a": called("A"), "b": called("B"), "c": called("C")}, SyncState()
    first, second, _ = sync.push(client, built, state)
    edit(client, first.id, name="edited in n8n")
    client.delete(second.id)
    found = {check.name: check.level for check in doctor.examine(client, built, state)}
    assert found == {
        "reachable": "ok",
        "version": "ok",
        "workflow a": "warning",
        "workflow b": "error",
        "workflow c": "ok",
        "credentials": "warning",
    }


def test_a_push_to_another_n8n_than_the_recorded_one_is_refused(client):
    state = SyncState(url="http://127.0.0.1:1")
    with pytest.raises(WorkspaceError, match="another"):
        sync.push(client, {"a": called()}, state)
    assert list(client.workflows()) == []


@pytest.mark.parametrize("url", ["127.0.0.1:5678", "ftp://x", "http://", "http://user:secret@127.0.0.1"])
def test_an_invalid_url_is_refused_at_once(url):
    with pytest.raises(ConfigError) as caught:
        N8nClient(url, KEY)
    assert "secret" not in str(caught.value)
