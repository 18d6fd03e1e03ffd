"""From an empty folder to a locked workflow that runs: the commands of the guide, then the real engines."""

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
    """An operator's workflow: looks at the lock that it should hold, and takes its time."""
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


class Typed:
    """A shell in a folder, without a network."""

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
    """Everything that the guide has typed, up to a workflow that n8n can have."""
    typed = Typed(folder)
    typed("init", "--env", "dev")
    template = folder / "n8n-workflows-template/nightly.template.json"
    template.write_text(json.dumps(flow(scope), indent=2) + "\n")
    before = template.read_bytes()
    typed("create-lock", "--include-error-handler")
    typed("add-lock-to-workflow", "--workflow-key", "nightly", "--scope-expression", f"={{{{ '{scope}' }}}}", *more)
    typed("hydrate", "--env", "dev", "--strict")
    verdict = json.loads(typed("validate", "--env", "dev", "--json"))
    assert verdict["verdict"] == "valid"
    return typed, before


def never_two(done):
    """Whether each body had ended before the next one began, by n8n's own clock."""
    bodies = [
        (run["Look"][0].started, run["Mark"][0].started)
        for one in done
        for run in (each.runs for each in one.all)
        if "Look" in run
    ]
    assert len(bodies) == len(done)
    return all(one[1] <= two[0] for one, two in itertools.pairwise(sorted(bodies)))


def test_a_workflow_of_the_guide_runs_under_its_lock_and_leaves_nothing(tmp_path, n8n_lab, backstay_redis):
    scope = f"nightly-{secrets.token_hex(4)}"
    typed, before = locked(tmp_path, scope, "--ttl-seconds", "600", "--max-wait-seconds", "60", "--lock-on-error")
    built = typed.built()
    credential = typed.workspace().entry("dev", "redis", "credentials")
    data = {"host": "127.0.0.1", "port": backstay_redis.port, "database": 0, "ssl": False}
    beside = {"credentials": [{"id": credential["id"], "name": credential["name"], "data": data}]}

    runs = [n8n_lab.start(built, "Nightly", items=[{"json": {"n": str(n)}}], **beside) for n in range(3)]
    done = [run.result() for run in runs]
    assert [one.status for one in done] == ["success"] * 3, [one.message for one in done]
    ends = [run.items for one in done for each in one.all for run in each.runs.get("Mark", ())]
    assert [[item["mine"] for item in items] for items in ends] == [["0"], ["1"], ["2"]]
    assert all(item["counter"] for items in ends for item in items)  # the lock's own, while the body ran
    assert never_two(done)
    for key in (keys.lock_key(scope), keys.meta_key(scope)):
        assert say(backstay_redis, "EXISTS", key) == 0

    typed("remove-lock-from-workflow", "--workflow-key", "nightly")
    assert (tmp_path / "n8n-workflows-template/nightly.template.json").read_bytes() == before


def test_who_does_not_want_to_wait_fails_while_somebody_else_has_the_lock(tmp_path, n8n_lab, backstay_redis):
    scope = f"nightly-{secrets.token_hex(4)}"
    typed, _ = locked(tmp_path, scope, "--fail-fast")
    credential = typed.workspace().entry("dev", "redis", "credentials")
    data = {"host": "127.0.0.1", "port": backstay_redis.port, "database": 0, "ssl": False}
    beside = {"credentials": [{"id": credential["id"], "data": data}]}
    say(backstay_redis, "SET", keys.lock_key(scope), 1, "EX", 60)
    done = n8n_lab.run(typed.built(), "Nightly", items=[{"json": {"n": "1"}}], **beside)
    assert done.status == "error"
    assert scope in done.message
    say(backstay_redis, "DEL", keys.lock_key(scope))
    assert n8n_lab.run(typed.built(), "Nightly", items=[{"json": {"n": "1"}}], **beside).status == "success"


def test_the_same_over_http(tmp_path, n8n_lab, backstay_server, backstay_redis):
    url, token = backstay_server
    scope = f"nightly-{secrets.token_hex(4)}"
    typed = Typed(tmp_path)
    typed("init", "--env", "dev")
    typed("create-lock", "--transport", "http")
    settings = tmp_path / "n8n-config/dev.yml"
    settings.write_text(settings.read_text().replace("http://127.0.0.1:3000", url))
    (tmp_path / "n8n-workflows-template/nightly.template.json").write_text(json.dumps(flow(scope)))
    typed("manage-credentials", "list-link", "--env", "dev", "--key", "redis", "--type", "redis", "--id", "r")
    typed("add-lock-to-workflow", "--workflow-key", "nightly", "--scope-expression", scope, "--ttl-seconds", "60")
    typed("hydrate", "--env", "dev", "--strict")
    assert json.loads(typed("validate", "--env", "dev", "--json"))["verdict"] == "valid"
    credential = typed.workspace().entry("dev", "backstay", "credentials")
    assert credential["type"] == "httpHeaderAuth"
    data = {"host": "127.0.0.1", "port": backstay_redis.port, "database": 0, "ssl": False}
    beside = [
        {"id": credential["id"], "data": {"name": "Authorization", "value": f"Bearer {token}"}},
        {"id": "r", "data": data},
    ]
    runs = [
        n8n_lab.start(typed.built(), "Nightly", items=[{"json": {"n": str(n)}}], credentials=beside) for n in range(3)
    ]
    done = [run.result() for run in runs]
    assert [one.status for one in done] == ["success"] * 3, [one.message for one in done]
    assert never_two(done)
