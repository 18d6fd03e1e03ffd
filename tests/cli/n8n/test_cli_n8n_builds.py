"""`backstay n8n`: building workflows, validating them, and the doctor."""

from __future__ import annotations

import json

from backstay.n8n.model import N8nWorkflow
from backstay.n8n.primitives import KEYS
from support.n8n.commands import FLOW


def test_built_workflows_have_no_placeholders_and_call_built_ids(commands):
    commands.add_lock("--lock-on-error")
    commands.do("hydrate")
    for env in ("dev", "prod"):
        ids = {key: commands.built(key, env)["id"] for key in KEYS}
        text = json.dumps(commands.built("nightly", env))
        assert "{{@:" not in text
        assert ids["lock_acquisition"] in text
        assert "local-" in text
    again = commands.json("hydrate")
    assert again["changes"] == []


def test_one_workflow_that_cannot_be_built_builds_none(commands):
    flow = json.loads(FLOW)
    flow["name"] = "{{@:env:nowhere.to.be}}"
    commands.put("zzz", flow)
    line = commands.refused("hydrate", "--env", "dev")
    assert "zzz.template.json" in line
    assert "nowhere.to.be" in line
    assert not list((commands.root / "n8n-build/dev").glob("*.json"))


def test_a_build_older_than_the_removal_of_its_lock_is_reported(commands):
    commands.add_lock()
    commands.do("hydrate")
    commands.do("remove-lock-from-workflow", "--workflow-key", "nightly")
    built = ("validate", "--workflow-key", "nightly", "--env", "dev", "--source", "built", "--json")
    (verdict,) = json.loads(commands.call(*built).stdout)["workflows"]
    assert "stale-build" in [finding["rule"] for finding in verdict["findings"]]
    commands.do("hydrate")
    assert json.loads(commands.call(*built).stdout)["verdict"] == "valid"


def test_validate_exits_with_0_1_or_2(commands):
    commands.add_lock()
    commands.do("hydrate")
    verdict = commands.json("validate", "--workflow-key", "nightly", "--env", "dev", "--source", "built")
    assert verdict["verdict"] == "valid"
    assert verdict["workflows"][0]["path"] == "n8n-build/dev/nightly.json"
    assert commands.json("validate", "--source", "template")["verdict"] == "valid"

    flow = json.loads(FLOW)
    flow["connections"]["Work"] = {"main": [[{"node": "Nowhere", "type": "main", "index": 0}]]}
    commands.put("wrong", flow)
    done = commands.call("validate", "--workflow-key", "wrong", "--json")
    assert done.exit_code == 1
    verdict = json.loads(done.stdout)
    assert verdict["verdict"] == "invalid"
    assert verdict["workflows"][0]["findings"][0]["level"] == "error"
    assert "Nowhere" in commands.call("validate", "--workflow-key", "wrong").stdout

    commands.put("broken", "{")
    done = commands.call("validate", "--json")
    assert done.exit_code == 2
    verdict = json.loads(done.stdout)
    assert verdict["verdict"] == "unreadable"
    assert {one["workflow_key"]: one["verdict"] for one in verdict["workflows"]}["broken"] == "unreadable"
    assert "does not exist" in commands.call("validate", "--env", "dev", "--workflow-key", "wrong").stdout
    assert commands.call("validate", "--env", "dev", "--workflow-key", "wrong").exit_code == 2
    commands.refused("validate", "--source", "memory", code=2)


def test_validate_names_each_file_once_and_counts_in_the_singular(commands):
    commands.put("half", "{")
    lines = commands.call("validate").stdout.splitlines()
    (line,) = [one for one in lines if "half" in one]
    assert line.count("half.template.json") == 1
    (line,) = [one for one in commands.call("validate", "--env", "dev").stdout.splitlines() if "half" in one]
    assert line.count("n8n-build/dev/half.json") == 1
    commands.put("half", FLOW.replace('"executionOrder": "v1", ', ""))
    assert "valid (1 warning)" in commands.do("validate", "--workflow-key", "half")


def test_the_doctor_reports_unregistered_scopes(commands):
    commands.add_lock()
    found = commands.json("doctor", "--env", "dev")
    assert found["verdict"] == "warning"  # the ids are local, and there is no API key
    assert not any("lockScopes" in check["what"] for check in found["checks"])
    commands.do("scopes", "rm", "nightly", "--env", "dev")
    found = commands.json("doctor", "--env", "dev")
    assert any("'nightly' is not in lockScopes of dev" in check["what"] for check in found["checks"])
    assert commands.call("doctor", "--env", "dev", "--strict").exit_code == 1
    assert "scopes add nightly --env dev" in commands.do("doctor", "--env", "dev")
    assert "manage-credentials create --env dev --key redis --type redis --env-vars" in commands.do(
        "doctor", "--env", "dev"
    )
    commands.put("broken", "{")
    done = commands.call("doctor", "--env", "dev", "--json")
    assert done.exit_code == 2
    checks = json.loads(done.stdout)["checks"]
    assert [check["name"] for check in checks if check["level"] == "error"] == ["workflow broken"]  # reported once
    assert [check["what"] for check in checks if check["name"] == "n8n"] == ["not checked: fix the errors above first"]


def test_validate_reads_each_workflow_once(commands, monkeypatch):
    for n in range(20):
        commands.put(f"w{n}")
    read = []
    parse = N8nWorkflow.parse
    monkeypatch.setattr(
        N8nWorkflow, "parse", lambda *given, source="": read.append(source) or parse(*given, source=source)
    )
    commands.do("validate")
    assert len(read) == len(set(read)) >= 20


def test_workflows_that_are_not_built_are_read_from_their_templates(commands):
    """A workflow over http that is built alone is not mistaken for redis, and faults of its body are found."""
    everything = ("--include-error-handler", "--include-rate-limit", "--force-overwrite")
    commands.do("create-lock", "--transport", "http", *everything)
    flow = json.loads(FLOW)
    del flow["settings"]["executionTimeout"]
    commands.put("alone", flow)
    commands.do("add-lock-to-workflow", "--workflow-key", "alone", "--scope-expression", "alone")
    commands.do("hydrate", "--env", "dev", "--workflow-key", "alone")
    (verdict,) = commands.json("validate", "--env", "dev", "--workflow-key", "alone")["workflows"]
    assert [finding["rule"] for finding in verdict["findings"]] == ["no-error-workflow"]
