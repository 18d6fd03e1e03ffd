"""`backstay n8n` with a fake n8n API: credentials, push, pull, diff, status."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading

import pytest

from backstay.testing.servers.ports import reserve_port
from support.n8n.api import KEY, N8nApi
from support.n8n.commands import FLOW, Commands

SECRET = "s3cr3t-pass word"
REDIS = ("--env", "dev", "--key", "redis", "--type", "redis", "--name", "Redis (dev)")
FROM = ("--env-vars", "host=REDIS_HOST,port=REDIS_PORT,password=REDIS_PASSWORD")


@pytest.fixture
def api():
    with N8nApi(major=2, reports_version=True) as api:
        yield api


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A workspace created once per module."""
    commands = Commands(tmp_path_factory.mktemp("made"))
    commands.do("init", "--env", "dev", "--n8n-url", "http://n8n.example")
    commands.put("nightly")
    commands.do("create-lock")
    commands.do("add-lock-to-workflow", "--workflow-key", "nightly", "--scope-expression", "nightly")
    return commands.root


@pytest.fixture
def commands(made, tmp_path, api):
    """A workspace with a locked workflow, and an empty n8n."""
    variables = {"REDIS_HOST": "redis", "REDIS_PORT": "6379", "REDIS_PASSWORD": SECRET, "N8N_API_KEY": KEY}
    commands = Commands(shutil.copytree(made, tmp_path / "flows"), variables)
    settings = commands.root / "n8n-config/dev.yml"
    settings.write_text(settings.read_text().replace("http://n8n.example", api.url))
    return commands


def kill_after_change(commands, *arguments, nth=1):
    """Return a hook for the fake API that kills the command after the nth change, before the reply, and its runner."""
    done, alive = itertools.count(1), threading.Event()
    running = []

    def kill(method, _path):
        if method != "GET" and next(done) == nth:
            assert alive.wait(60)
            running[0].kill()
            running[0].wait()

    def run():
        variables = {**os.environ, **commands.variables, "BACKSTAY_N8N_WORKSPACE": str(commands.root)}
        running.append(subprocess.Popen([sys.executable, "-m", "backstay", "n8n", *arguments], env=variables))
        alive.set()
        return running[0].wait(60)

    return kill, run


def actions(reply):
    return {one["workflow_key"]: one["action"] for one in reply["workflows"]}


def sent(api):
    return [method for method, _ in api.requests if method != "GET"]


# ── credentials ──


def test_a_credential_is_created_once_and_its_values_are_never_shown(commands, api):
    done = commands.call("manage-credentials", "create", *REDIS, *FROM, "--json")
    assert done.exit_code == 0, done.output
    assert SECRET not in done.output
    reply = json.loads(done.stdout)
    assert reply["created"]
    assert list(api.credentials) == [reply["id"]]
    assert f"id: {reply['id']}" in commands.settings() or f'id: "{reply["id"]}"' in commands.settings()
    assert SECRET not in "".join(text.decode() for text in commands.snapshot().values())
    again = commands.json("manage-credentials", "create", *REDIS, *FROM)
    assert not again["created"]
    assert again["id"] == reply["id"]
    assert sent(api).count("POST") == 1
    line = commands.refused(
        "manage-credentials", "create", "--env", "dev", "--key", "redis", "--type", "httpHeaderAuth"
    )
    assert "has the type redis" in line


def test_a_credential_creation_killed_before_it_is_recorded_changes_no_file(commands, api):
    """n8n cannot list credentials, so the unrecorded one stays there; the workspace files are unchanged."""
    before = commands.snapshot()
    api.on_applied, create = kill_after_change(commands, "manage-credentials", "create", *REDIS, *FROM)
    assert create() == -signal.SIGKILL
    api.on_applied = lambda _method, _path: None
    (lost,) = api.credentials
    assert {path: text for path, text in commands.snapshot().items() if path in before} == before
    assert SECRET not in "".join(text.decode() for text in commands.snapshot().values())
    reply = commands.json("manage-credentials", "create", *REDIS, *FROM)
    assert reply["created"]
    assert set(api.credentials) == {lost, reply["id"]}
    assert reply["id"] in commands.settings()
    assert lost not in commands.settings()
    assert not commands.json("manage-credentials", "create", *REDIS, *FROM)["created"]
    assert len(api.credentials) == 2


def test_a_dry_run_of_a_credential_shows_the_sources_and_sends_no_request(commands, api):
    before = commands.snapshot()
    shown = commands.do("manage-credentials", "create", *REDIS, *FROM, "--dry-run")
    assert "password: <REDIS_PASSWORD, string>" in shown
    assert "port: <REDIS_PORT, number>" in shown
    assert SECRET not in shown
    assert commands.snapshot() == before
    assert not api.requests


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ("host=REDIS_HOST,port=REDIS_PASSWORD", "port (REDIS_PASSWORD) is not a number"),
        ("port=REDIS_PORT", "host: required"),
        ("host=NOT_SET_ANYWHERE", "the variable NOT_SET_ANYWHERE is not set"),
        ("host=REDIS_HOST,hostt=REDIS_HOST", "unknown field 'hostt'"),
        ("host=REDIS_HOST,ssl=REDIS_PORT", "ssl (REDIS_PORT) is neither true nor false"),
        (f"host={SECRET}", "not values"),
        ("REDIS_HOST,NOBODYS_FIELD", "NOBODYS_FIELD matches no field"),
        ("host=REDIS_HOST,REDIS_HOST", "given twice"),
    ],
)
def test_invalid_credential_values_are_refused_without_being_shown(commands, api, sources, message):
    line = commands.refused("manage-credentials", "create", *REDIS, "--env-vars", sources)
    assert message in line
    assert SECRET not in line
    assert not sent(api)


def test_credential_fields_are_matched_by_variable_names_and_read_from_the_env_file(commands, api):
    del commands.variables["REDIS_PASSWORD"]
    (commands.root / "n8n-config/.env.dev").write_text(f'# secret\nexport REDIS_PASSWORD="{SECRET}"\n')
    reply = commands.json("manage-credentials", "create", *REDIS, "--env-vars", "REDIS_HOST,REDIS_PASSWORD")
    assert reply["fields"]["password"] == "<REDIS_PASSWORD, string>"


def test_an_existing_credential_is_linked_by_name_or_by_id(commands, api):
    node = {"name": "R", "type": "n8n-nodes-base.redis", "parameters": {}, "typeVersion": 1, "position": [0, 0]}
    node["credentials"] = {"redis": {"id": "cred1", "name": "Shared Redis"}}
    api._create({"name": "Other", "nodes": [node], "connections": {}, "settings": {}})
    listed = commands.json("manage-credentials", "list-link", "--env", "dev")
    assert {"key": "", "id": "cred1", "name": "Shared Redis", "type": "redis"} in listed["credentials"]
    link = ("manage-credentials", "list-link", "--env", "dev", "--key", "redis")
    assert commands.json(*link, "--name", "Shared Redis")["id"] == "cred1"
    assert "0 credentials match" in commands.refused(*link, "--name", "Nobody's")
    assert commands.json(*link, "--type", "redis", "--id", "cred2")["id"] == "cred2"
    assert commands.json(*link, "--type", "redis", "--id", "cred2")["changes"] == []
    assert "cred2" in commands.do("manage-credentials", "list-link", "--env", "dev")


# ── push, pull, diff, status ──


def test_a_push_creates_missing_workflows_and_records_n8ns_ids(commands, api):
    planned = commands.json("push", "--env", "dev", "--dry-run")
    assert set(actions(planned).values()) == {"create"}
    assert "Nothing would change" not in commands.do("push", "--env", "dev", "--dry-run")
    assert not sent(api)
    reply = commands.json("push", "--env", "dev")
    assert set(actions(reply)) == {"lock_acquisition", "lock_release", "nightly", "nightly_body"}
    ids = {one["workflow_key"]: one["id"] for one in reply["workflows"]}
    assert set(ids.values()) == set(api.workflows)
    text = json.dumps(api.workflows[ids["nightly"]])
    assert ids["lock_acquisition"] in text
    assert ids["nightly_body"] in text
    assert "{{@:" not in text
    workflows = commands.settings().partition("# Credentials")[0]
    assert "id: local-" not in workflows
    assert api.workflows[ids["lock_release"]]["active"]  # published: n8n 2.x runs only published sub-workflows
    assert not api.workflows[ids["nightly"]]["active"]

    asked = len(sent(api))
    assert set(actions(commands.json("push", "--env", "dev")).values()) == {"same"}
    assert "Nothing would change" in commands.do("push", "--env", "dev", "--dry-run")
    assert len(sent(api)) == asked
    assert set(actions(commands.json("status", "--env", "dev")).values()) == {"same"}
    assert commands.json("diff", "--env", "dev")["workflows"] == []


def test_an_edit_in_n8n_is_pulled_and_not_overwritten(commands, api):
    reply = commands.json("push", "--env", "dev")
    known = next(one["id"] for one in reply["workflows"] if one["workflow_key"] == "nightly_body")
    nodes = json.loads(json.dumps(api.workflows[known]["nodes"]))
    next(node for node in nodes if node["name"] == "Work")["notes"] = "edited there"
    api.edit(known, nodes=nodes)
    assert actions(commands.json("status", "--env", "dev"))["nightly_body"] == "remote"
    assert commands.call("diff", "--env", "dev").exit_code == 1
    assert "would overwrite edits" in commands.refused("push", "--env", "dev")
    assert "edited there" in commands.do("pull", "--env", "dev", "--dry-run")
    assert actions(commands.json("pull", "--env", "dev"))["nightly_body"] == "write"
    assert "edited there" in commands.path("nightly_body").read_text()
    assert "edited there" in json.dumps(commands.built("nightly_body"))
    pushed = actions(commands.json("push", "--env", "dev"))
    assert pushed.pop("nightly_body") == "publish"  # saved in n8n but not yet published
    assert set(pushed.values()) == {"same"}


def test_a_pull_keeps_placeholders_in_unchanged_parts(commands, api):
    reply = commands.json("push", "--env", "dev")
    known = next(one["id"] for one in reply["workflows"] if one["workflow_key"] == "nightly")
    api.edit(known, name="Renamed there")
    before = commands.path("nightly").read_text()
    commands.do("pull", "--env", "dev")
    assert commands.path("nightly").read_text() == before.replace('"name": "Nightly"', '"name": "Renamed there"', 1)
    commands.do("remove-lock-from-workflow", "--workflow-key", "nightly")
    assert json.loads(commands.path("nightly").read_text()) == {**json.loads(FLOW), "name": "Renamed there"}


def test_a_workflow_without_a_template_is_pulled_by_its_id(commands, api):
    made = api._create({**json.loads(FLOW), "name": "Theirs"})
    commands.do("pull", "--env", "dev", "--workflow-key", "theirs", "--id", made["id"])
    assert json.loads(commands.path("theirs").read_text())["name"] == "Theirs"
    assert made["id"] in commands.settings()
    assert set(actions(commands.json("status", "--env", "dev", "--workflow-key", "theirs")).values()) == {"same"}
    commands.refused("pull", "--env", "dev", "--id", made["id"], code=2)
    commands.refused("pull", "--env", "dev", "--workflow-key", "nightly", "--id", made["id"], code=2)


def test_an_interrupted_push_records_created_workflows_and_resumes(commands, api):
    plain = commands.settings()
    create = api._create
    api._create = lambda body: create(body) if len(api.workflows) < 2 else (_ for _ in ()).throw(ConnectionError)
    done = commands.call("push", "--env", "dev", "--json")
    assert done.exit_code == 3, done.output
    assert commands.settings() != plain
    made = list(api.workflows)
    assert len(made) == 2
    assert all(known in commands.settings() for known in made)
    api._create = create
    commands.do("push", "--env", "dev")
    assert len(api.workflows) == 4
    assert set(made) < set(api.workflows)


@pytest.mark.parametrize("nth", [1, 4, 5, 6])
def test_a_push_killed_before_n8ns_reply_creates_no_duplicate(commands, api, nth):
    """A push creates four workflows, then updates each and publishes sub-workflows; the kill follows the nth change."""
    api.on_applied, push = kill_after_change(commands, "push", "--env", "dev", nth=nth)
    assert push() == -signal.SIGKILL
    api.on_applied = lambda _method, _path: None
    assert len(sent(api)) == nth
    reply = commands.json("push", "--env", "dev")
    assert {one["id"] for one in reply["workflows"]} == set(api.workflows)
    assert len(api.workflows) == 4
    assert api.workflows[id_of(reply, "lock_release")]["active"]
    assert all(known in commands.settings() for known in api.workflows)
    assert set(actions(commands.json("push", "--env", "dev")).values()) == {"same"}


def id_of(reply, key):
    return next(one["id"] for one in reply["workflows"] if one["workflow_key"] == key)


def test_error_workflows_are_published_too(commands, api):
    """n8n 2.x does not start an unpublished error workflow and reports that only in its log."""
    commands.do("create-lock", "--include-error-handler")
    reply = commands.json("push", "--env", "dev")
    handler = id_of(reply, "error_handler_lock_cleanup")
    assert api.workflows[handler]["active"]
    api.workflows[handler].update(active=False, activeVersionId=None)
    checks = commands.call("doctor", "--env", "dev", "--json")
    assert any("not published" in check["what"] for check in json.loads(checks.stdout)["checks"])


def test_primitives_that_cannot_be_created_in_n8n_are_not_installed(commands, api, monkeypatch):
    monkeypatch.setattr("backstay.n8n.sync.client.PAUSE", 0.01)
    commands.path("lock_release").unlink()
    commands.do("init", "--env", "prod", "--n8n-url", f"http://127.0.0.1:{reserve_port()}")
    mint = ("create-lock", "--include-rate-limit", "--mint")
    assert "no n8n responds" in commands.refused(*mint, code=3)
    commands.variables["N8N_API_KEY"] = "another"
    assert "rejects this API key" in commands.refused(*mint, "--env", "dev")
    commands.variables["N8N_API_KEY"] = ""
    assert "no API key" in commands.refused(*mint, "--env", "dev", code=2)
    assert not sent(api)


def test_create_lock_can_create_the_primitives_in_n8n(commands, api):
    reply = commands.json("create-lock", "--include-rate-limit", "--mint")
    assert set(reply["ids"]["dev"].values()) == set(api.workflows)
    assert {one["name"] for one in api.workflows.values()} == {"lock_acquisition", "lock_release", "rate_limit_check"}
    assert all(known in commands.settings() for known in api.workflows)


def test_a_rejected_or_missing_api_key_changes_nothing(commands, api):
    commands.variables["N8N_API_KEY"] = "another"
    for verb in ("push", "pull", "status", "diff"):
        assert "rejects this API key" in commands.refused(verb, "--env", "dev")
    commands.variables["N8N_API_KEY"] = ""
    assert "no API key" in commands.refused("push", "--env", "dev", code=2)


def test_the_doctor_checks_n8n_too(commands, api):
    commands.do("push", "--env", "dev")
    checks = commands.json("doctor", "--env", "dev")["checks"]
    assert {"reachable", "version"} <= {check["name"] for check in checks}


def test_a_lone_surrogate_is_pushed_and_pulled_unchanged(commands, api):
    """JavaScript can cut a text inside a surrogate pair, and JSON transports the half."""
    commands.put("half", FLOW.replace("Work", "W\\ud83drk"))
    commands.do("push", "--env", "dev", "--workflow-key", "half")
    assert "W\ud83drk" in [node["name"] for one in api.workflows.values() for node in one["nodes"]]
    assert commands.call("diff", "--env", "dev", "--workflow-key", "half").exit_code == 0
    assert commands.call("pull", "--env", "dev", "--workflow-key", "half").exit_code == 0
