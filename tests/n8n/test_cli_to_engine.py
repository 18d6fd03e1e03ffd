"""From an empty folder to a running locked workflow: the commands of the guide, then the real engines."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import subprocess
import sys

import pytest

from backstay.interop.n8n_wire import keys
from backstay.n8n.workspace.workspace import Workspace
from backstay.testing.servers import say

pytestmark = pytest.mark.redis


def flow(scope):
    """Return a workflow that reads the counter of its own lock, then waits a moment."""
    look = {"operation": "get", "key": keys.lock_key(scope), "propertyName": "counter", "options": {}}
    mark = {"assignments": [{"id": "m", "name": "mine", "type": "string", "value": "={{ $('Start').item.json.n }}"}]}
    steps = [
        ("Start", "manualTrigger", 1, {}),
        ("Look", "redis", 1, look),
        ("Think", "wait", 1.1, {"amount": 0.1}),
        ("Mark", "set", 3.4, {"assignments": mark, "includeOtherFields": True, "options": {}}),
    ]
    nodes = [
        {
            "id": name.lower(),
            "name": name,
            "type": f"n8n-nodes-base.{kind}",
            "typeVersion": version,
            "position": [220 * at, 0],
            "parameters": parameters,
        }
        for at, (name, kind, version, parameters) in enumerate(steps)
    ]
    reference = {"id": "{{@:env:credentials.redis.id}}", "name": "{{@:env:credentials.redis.name}}"}
    nodes[1]["credentials"] = {"redis": reference}
    names = [name for name, *_ in steps]
    links = {one: {"main": [[{"node": two, "type": "main", "index": 0}]]} for one, two in itertools.pairwise(names)}
    settings = {"executionOrder": "v1", "executionTimeout": 200000}
    return {"name": "Nightly", "nodes": nodes, "connections": links, "settings": settings}


class Shell:
    """Runs `backstay n8n` commands in a folder."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, *words):
        variables = {"PATH": os.environ["PATH"], "HOME": str(self.folder)}
        command = [sys.executable, "-m", "backstay", "n8n", *words]
        done = subprocess.run(
            command, cwd=self.folder, env=variables, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def workspace(self):
        return Workspace.open(self.folder)

    def built(self):
        folder = self.folder / "n8n-build/dev"
        found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
        return sorted(found, key=lambda one: one["name"] != "Nightly")


def locked(folder, scope, *more):
    """Run the commands of the guide up to a hydrated, valid workflow."""
    shell = Shell(folder)
    shell("init", "--env", "dev")
    template = folder / "n8n-workflows-template/nightly.template.json"
    template.write_text(json.dumps(flow(scope), indent=2) + "\n")
    before = template.read_bytes()
    shell("create-lock", "--include-error-handler")
    shell("add-lock-to-workflow", "--workflow-key", "nightly", "--scope-expression", f"={{{{ '{scope}' }}}}", *more)
    shell("hydrate", "--env", "dev", "--strict")
    verdict = json.loads(shell("validate", "--env", "dev", "--json"))
    assert verdict["verdict"] == "valid"
    return shell, before


def bodies_do_not_overlap(done):
    """Return whether each body ended before the next one began, by n8n's clock."""
    bodies = [
        (run["Look"][0].started, run["Mark"][0].started)
        for one in done
        for run in (each.runs for each in one.all)
        if "Look" in run
    ]
    assert len(bodies) == len(done)
    return all(one[1] <= two[0] for one, two in itertools.pairwise(sorted(bodies)))


def test_a_workflow_locked_by_the_guides_commands_runs_under_its_lock_and_leaves_no_keys(
    tmp_path, n8n_lab, backstay_redis
):
    scope = f"nightly-{secrets.token_hex(4)}"
    shell, before = locked(tmp_path, scope, "--ttl-seconds", "600", "--max-wait-seconds", "60", "--lock-on-error")
    built = shell.built()
    credential = shell.workspace().entry("dev", "redis", "credentials")
    data = {"host": "127.0.0.1", "port": backstay_redis.port, "database": 0, "ssl": False}
    options = {"credentials": [{"id": credential["id"], "name": credential["name"], "data": data}]}

    runs = [n8n_lab.start(built, "Nightly", items=[{"json": {"n": str(n)}}], **options) for n in range(3)]
    done = [run.result() for run in runs]
    assert [one.status for one in done] == ["success"] * 3, [one.message for one in done]
    ends = [run.items for one in done for each in one.all for run in each.runs.get("Mark", ())]
    assert [[item["mine"] for item in items] for items in ends] == [["0"], ["1"], ["2"]]
    assert all(item["counter"] for items in ends for item in items)  # the lock was held while the body ran
    assert bodies_do_not_overlap(done)
    for key in (keys.lock_key(scope), keys.meta_key(scope)):
        assert say(backstay_redis, "EXISTS", key) == 0

    shell("remove-lock-from-workflow", "--workflow-key", "nightly")
    assert (tmp_path / "n8n-workflows-template/nightly.template.json").read_bytes() == before


def test_a_fail_fast_workflow_fails_while_the_lock_is_held(tmp_path, n8n_lab, backstay_redis):
    scope = f"nightly-{secrets.token_hex(4)}"
    shell, _ = locked(tmp_path, scope, "--fail-fast")
    credential = shell.workspace().entry("dev", "redis", "credentials")
    data = {"host": "127.0.0.1", "port": backstay_redis.port, "database": 0, "ssl": False}
    options = {"credentials": [{"id": credential["id"], "data": data}]}
    say(backstay_redis, "SET", keys.lock_key(scope), 1, "EX", 60)
    done = n8n_lab.run(shell.built(), "Nightly", items=[{"json": {"n": "1"}}], **options)
    assert done.status == "error"
    assert scope in done.message
    say(backstay_redis, "DEL", keys.lock_key(scope))
    assert n8n_lab.run(shell.built(), "Nightly", items=[{"json": {"n": "1"}}], **options).status == "success"


def test_a_workflow_locked_over_http_runs_under_its_lock(tmp_path, n8n_lab, backstay_server, backstay_redis):
    url, token = backstay_server
    scope = f"nightly-{secrets.token_hex(4)}"
    shell = Shell(tmp_path)
    shell("init", "--env", "dev")
    shell("create-lock", "--transport", "http")
    settings = tmp_path / "n8n-config/dev.yml"
    settings.write_text(settings.read_text().replace("http://127.0.0.1:3000", url))
    (tmp_path / "n8n-workflows-template/nightly.template.json").write_text(json.dumps(flow(scope)))
    shell("manage-credentials", "list-link", "--env", "dev", "--key", "redis", "--type", "redis", "--id", "r")
    shell("add-lock-to-workflow", "--workflow-key", "nightly", "--scope-expression", scope, "--ttl-seconds", "60")
    shell("hydrate", "--env", "dev", "--strict")
    assert json.loads(shell("validate", "--env", "dev", "--json"))["verdict"] == "valid"
    credential = shell.workspace().entry("dev", "backstay", "credentials")
    assert credential["type"] == "httpHeaderAuth"
    data = {"host": "127.0.0.1", "port": backstay_redis.port, "database": 0, "ssl": False}
    options = [
        {"id": credential["id"], "data": {"name": "Authorization", "value": f"Bearer {token}"}},
        {"id": "r", "data": data},
    ]
    runs = [
        n8n_lab.start(shell.built(), "Nightly", items=[{"json": {"n": str(n)}}], credentials=options) for n in range(3)
    ]
    done = [run.result() for run in runs]
    assert [one.status for one in done] == ["success"] * 3, [one.message for one in done]
    assert bodies_do_not_overlap(done)
