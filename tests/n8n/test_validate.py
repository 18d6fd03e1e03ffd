"""Every planted fault is found, by its rule and at its node; nothing is found where nothing is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backstay.n8n.model import Workflow
from backstay.n8n.rules.validate import RULES, Surroundings, validate

HERE = Path(__file__).parent
BROKEN = sorted((HERE / "broken").glob("*.json"))
GOOD = sorted((HERE / "good").glob("*.json"))
IDS = {
    "lock_acquisition": "acquire000000001",
    "lock_release": "release000000001",
    "error_handler_lock_cleanup": "cleanup000000001",
    "rate_limit_check": "limit00000000001",
}


def surroundings(given):
    others = {key: Workflow.parse(json.dumps(data)) for key, data in given.get("others", {}).items()}
    return Surroundings(
        scopes=tuple(given.get("scopes", ["orders"])),
        workflow_ids=given.get("workflow_ids", IDS),
        built=given.get("built", False),
        others=others,
    )


def stem(path):
    return path.stem


@pytest.mark.parametrize("path", BROKEN, ids=stem)
def test_a_planted_fault_is_found_and_nothing_else(path):
    workflow = Workflow.read(path)
    fault = workflow.data["fault"]
    found = validate(workflow, surroundings(fault.get("around", {})))
    planted = [finding for finding in found if finding.rule == fault["rule"] and finding.node == fault["node"]]
    assert planted, found
    also = fault.get("also", [])
    assert [each for each in found if each not in planted and each.rule not in also and each.node not in also] == []
    for finding in found:
        assert finding.message
        assert finding.hint
        assert finding.node == "" or finding.node in finding.message or finding.path.startswith("nodes[")


def at(data, path):
    """What a finding's path leads to, as far as it is there."""
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
    workflow = Workflow.read(path)
    for finding in validate(workflow, surroundings(workflow.data["fault"].get("around", {}))):
        assert finding.path
        if finding.path.startswith("nodes[") and finding.node:
            assert at(workflow.data, finding.path.partition("]")[0] + "]")["name"] == finding.node
        else:
            at(workflow.data, finding.path)


@pytest.mark.parametrize("path", GOOD, ids=stem)
def test_nothing_is_found_in_a_good_workflow(path):
    assert validate(Workflow.read(path), surroundings({})) == []


@pytest.mark.parametrize("path", GOOD, ids=stem)
def test_a_good_workflow_has_no_errors_without_a_workspace_either(path):
    assert [finding for finding in validate(Workflow.read(path)) if finding.level == "error"] == []


def test_every_rule_has_a_broken_workflow_and_a_way_out():
    assert len(BROKEN) >= 40
    assert {path.stem.partition("--")[0] for path in BROKEN} == {rule.id for rule in RULES}
    assert len({rule.id for rule in RULES}) == len(RULES)
    assert all(rule.what and rule.hint for rule in RULES)


def test_a_built_file_knows_its_locks_by_id_or_by_what_they_take():
    text = (HERE / "good" / "locked.json").read_text("utf-8")
    for key, id_ in IDS.items():
        text = text.replace(f"{{{{@:env:workflows.{key}.id}}}}", id_)
    built = Workflow.parse(text.replace('"node": "Lock Release"', '"node": "Work"'))
    for around in (Surroundings(("orders",), IDS, built=True), Surroundings(("orders",), built=True)):
        rules = [finding.rule for finding in validate(built, around)]
        assert "acquire-without-release" in rules
        assert "unresolved-placeholder" not in rules


def test_errors_come_before_warnings():
    workflow = Workflow.read(HERE / "broken" / "copied-marker--hides-require.json")
    workflow.data["pinData"] = {"Webhook": []}
    levels = [finding.level for finding in validate(workflow)]
    assert levels == sorted(levels, key=["error", "warning"].index)
    assert set(levels) == {"error", "warning"}


@pytest.mark.parametrize(("given", "wrong"), [(0.5, False), ("2.5", False), (0, False), (-0.5, True), ("1e3", True)])
def test_a_wait_may_be_a_fraction_of_a_second_as_the_primitives_take_it(given, wrong):
    workflow = Workflow.read(HERE / "good" / "locked.json")
    (acquire,) = [node.data for node in workflow.nodes if node.name == "Lock Acquire"]
    acquire["parameters"]["workflowInputs"]["value"]["max_wait_seconds"] = given
    found = [finding.rule for finding in validate(workflow, surroundings({}))]
    assert ("bad-number" in found) is wrong
