"""Every planted fault is reported by its rule at its node, and good workflows have no findings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backstay.n8n.model import N8nWorkflow
from backstay.n8n.rules.validate import RULES, WorkspaceContext, validate

HERE = Path(__file__).parents[1]
BROKEN = sorted((HERE / "broken").glob("*.json"))
GOOD = sorted((HERE / "good").glob("*.json"))
IDS = {
    "lock_acquisition": "acquire000000001",
    "lock_release": "release000000001",
    "error_handler_lock_cleanup": "cleanup000000001",
    "rate_limit_check": "limit00000000001",
}


def context_from(given):
    others = {key: N8nWorkflow.parse(json.dumps(data)) for key, data in given.get("others", {}).items()}
    return WorkspaceContext(
        scopes=tuple(given.get("scopes", ["orders"])),
        workflow_ids=given.get("workflow_ids", IDS),
        built=given.get("built", False),
        others=others,
    )


def stem(path):
    return path.stem


@pytest.mark.parametrize("path", BROKEN, ids=stem)
def test_only_the_planted_fault_is_reported(path):
    workflow = N8nWorkflow.read(path)
    fault = workflow.data["fault"]
    found = validate(workflow, context_from(fault.get("around", {})))
    planted = [finding for finding in found if finding.rule == fault["rule"] and finding.node == fault["node"]]
    assert planted, found
    also = fault.get("also", [])
    assert [each for each in found if each not in planted and each.rule not in also and each.node not in also] == []
    for finding in found:
        assert finding.message
        assert finding.hint
        assert finding.node == "" or finding.node in finding.message or finding.path.startswith("nodes[")


def at(data, path):
    """Return the value at a finding's path, or None where it does not exist."""
    for step in path.replace("[", ".[").split("."):
        if not step:
            continue
        if step.startswith("["):
            place = step[1:-1]
            data = data[place.strip("'")] if place.startswith("'") else data[int(place)]
        elif isinstance(data, dict) and step in data:
            data = data[step]
        else:
            return None
    return data


@pytest.mark.parametrize("path", BROKEN, ids=stem)
def test_a_findings_path_leads_to_its_node(path):
    workflow = N8nWorkflow.read(path)
    for finding in validate(workflow, context_from(workflow.data["fault"].get("around", {}))):
        assert finding.path
        if finding.path.startswith("nodes[") and finding.node:
            assert at(workflow.data, finding.path.partition("]")[0] + "]")["name"] == finding.node
        else:
            at(workflow.data, finding.path)


@pytest.mark.parametrize("path", GOOD, ids=stem)
def test_a_good_workflow_has_no_findings(path):
    assert validate(N8nWorkflow.read(path), context_from({})) == []


@pytest.mark.parametrize("path", GOOD, ids=stem)
def test_a_good_workflow_has_no_errors_without_a_workspace_either(path):
    assert [finding for finding in validate(N8nWorkflow.read(path)) if finding.level == "error"] == []


def test_every_rule_has_a_broken_example_and_a_hint():
    assert len(BROKEN) >= 40
    assert {path.stem.partition("--")[0] for path in BROKEN} == {rule.id for rule in RULES}
    assert len({rule.id for rule in RULES}) == len(RULES)
    assert all(rule.what and rule.hint for rule in RULES)


def test_lock_calls_in_a_built_file_are_recognised_by_id_or_by_inputs():
    text = (HERE / "good" / "locked.json").read_text("utf-8")
    for key, id_ in IDS.items():
        text = text.replace(f"{{{{@:env:workflows.{key}.id}}}}", id_)
    built = N8nWorkflow.parse(text.replace('"node": "Lock Release"', '"node": "Work"'))
    for around in (WorkspaceContext(("orders",), IDS, built=True), WorkspaceContext(("orders",), built=True)):
        rules = [finding.rule for finding in validate(built, around)]
        assert "acquire-without-release" in rules
        assert "unresolved-placeholder" not in rules


def test_errors_come_before_warnings():
    workflow = N8nWorkflow.read(HERE / "broken" / "copied-marker--hides-require.json")
    workflow.data["pinData"] = {"Webhook": []}
    levels = [finding.level for finding in validate(workflow)]
    assert levels == sorted(levels, key=["error", "warning"].index)
    assert set(levels) == {"error", "warning"}


@pytest.mark.parametrize(("given", "wrong"), [(0.5, False), ("2.5", False), (0, False), (-0.5, True), ("1e3", True)])
def test_max_wait_may_be_fractional_as_in_the_primitives(given, wrong):
    workflow = N8nWorkflow.read(HERE / "good" / "locked.json")
    (acquire,) = [node.data for node in workflow.nodes if node.name == "Lock Acquire"]
    acquire["parameters"]["workflowInputs"]["value"]["max_wait_seconds"] = given
    found = [finding.rule for finding in validate(workflow, context_from({}))]
    assert ("bad-number" in found) is wrong
