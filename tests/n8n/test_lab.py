"""The lab behaves like n8n where tests of workflows rely on it."""

from __future__ import annotations

import base64
import itertools
import time

import pytest

from backstay.testing.waiting import WITHIN, eventually

SUB = "n8n-nodes-base.executeWorkflowTrigger"


def node(name, kind, version, **parameters):
    return {
        "id": name,
        "name": name,
        "type": f"n8n-nodes-base.{kind}",
        "typeVersion": version,
        "position": [0, 0],
        "parameters": parameters,
    }


def chain(name, *nodes, **settings):
    """Return a workflow whose nodes form a chain."""
    edges = {
        one["name"]: {"main": [[{"node": two["name"], "type": "main", "index": 0}]]}
        for one, two in itertools.pairwise(nodes)
    }
    settings = {"executionOrder": "v1", **settings}
    return {"id": name, "name": name, "nodes": list(nodes), "connections": edges, "settings": settings}


TRIGGER = node("Start", "manualTrigger", 1)
CALLED = node("Called", "executeWorkflowTrigger", 1.1, inputSource="passthrough")


def setting(name, **fields):
    """Return an Edit Fields node."""
    rows = [{"id": key, "name": key, "type": "string", "value": value} for key, value in fields.items()]
    return node(name, "set", 3.4, assignments={"assignments": rows}, includeOtherFields=True, options={})


def calling(name, workflow, **more):
    made = node(name, "executeWorkflow", 1.2, workflowId={"__rl": True, "mode": "id", "value": workflow}, **more)
    made["parameters"] |= {"workflowInputs": {"mappingMode": "defineBelow", "value": {}, "matchingColumns": []}}
    return made


def test_the_engines_have_the_pinned_versions(n8n_lab):
    assert n8n_lab.versions["n8n-core"] == {"1": "1.122.48", "2": "2.41.1"}[n8n_lab.major]


def test_items_binary_data_and_pairing_are_n8ns_own(n8n_lab):
    binary = {"file": {"data": base64.b64encode(b"hello").decode(), "mimeType": "text/plain", "fileName": "a.txt"}}
    items = [{"json": {"n": 1}, "binary": binary}, {"json": {"n": 2}}]
    sort = node("Sort", "sort", 1, sortFieldsUi={"sortField": [{"fieldName": "n", "order": "descending"}]}, options={})
    done = n8n_lab.run([chain("w", TRIGGER, sort, setting("Set", run="={{ $execution.id }}"))], items=items)
    assert (done.status, done.message, done.last_node) == ("success", "", "Set")
    assert done.items == [{"n": 2, "run": done.id}, {"n": 1, "run": done.id}]
    assert done.runs["Sort"][0].outputs[0][1]["binary"] == binary
    assert [item["pairedItem"] for item in done.runs["Sort"][0].outputs[0]] == [{"item": 1}, {"item": 0}]
    assert [run.node for run in done.order()] == ["Start", "Sort", "Set"]


def test_a_workflow_calls_another_and_gets_its_items(n8n_lab):
    inner = chain("inner", CALLED, setting("Mark", inner="={{ $execution.id }}"))
    done = n8n_lab.run([chain("outer", TRIGGER, calling("Call", "inner")), inner], items=[{"json": {"n": 1}}])
    (called,) = done.of("inner")
    assert done.items == [{"n": 1, "inner": called.id}]
    assert (called.parent, called.mode) == (done.id, "integrated")


STOP = node("Stop", "stopAndError", 1, errorMessage="no more")


@pytest.mark.parametrize(("mode", "runs"), [("trigger", True), ("webhook", True), ("manual", False)])
def test_an_error_workflow_runs_for_failures_except_manual_ones(n8n_lab, mode, runs):
    handler = chain("handler", node("On error", "errorTrigger", 1), setting("Handled", seen="yes"))
    done = n8n_lab.run([chain("w", TRIGGER, STOP, errorWorkflow="handler"), handler], mode=mode)
    assert (done.status, done.message) == ("error", "no more")
    handled = done.of("handler")
    assert len(handled) == runs
    for one in handled:
        (seen,) = one.items
        assert seen["execution"]["id"] == done.id
        assert seen["execution"]["error"]["message"] == "no more"
        assert seen["workflow"] == {"id": "w", "name": "w"}


def test_a_failing_sub_workflow_fails_its_caller(n8n_lab):
    done = n8n_lab.run([chain("outer", TRIGGER, calling("Call", "inner")), chain("inner", CALLED, STOP)])
    assert (done.status, done.message, done.last_node) == ("error", "no more", "Call")


def test_a_code_node_has_n8ns_input_variables(n8n_lab):
    js = "return $input.all().map((one) => ({json: {twice: one.json.n * 2, from: $('Start').first().json.n}}))"
    code = node("Code", "code", 2, jsCode=js)
    each = node("Each", "code", 2, mode="runOnceForEachItem", jsCode="return {json: {more: $json.twice + 1}}")
    done = n8n_lab.run([chain("w", TRIGGER, code, each)], items=[{"json": {"n": 1}}, {"json": {"n": 2}}])
    assert done.runs["Code"][0].items == [{"twice": 2, "from": 1}, {"twice": 4, "from": 1}]
    assert done.items == [{"more": 3}, {"more": 5}]


@pytest.mark.timed
def test_many_executions_wait_concurrently(n8n_lab):
    wait = node("Wait", "wait", 1.1, amount=1)
    begun = time.monotonic()
    runs = [n8n_lab.start([chain("w", TRIGGER, wait)]) for _ in range(20)]
    done = [run.result() for run in runs]
    assert {one.status for one in done} == {"success"}
    assert len({one.id for one in done}) == 20
    assert all(one.seconds >= 1 for one in done)
    assert time.monotonic() - begun < 15


def test_an_execution_is_canceled_by_a_stop_and_by_its_timeout(n8n_lab):
    wait = node("Wait", "wait", 1.1, amount=50)
    run = n8n_lab.start([chain("w", TRIGGER, wait)])
    assert eventually(lambda: run.reached("Start"))
    run.stop()
    assert run.result(WITHIN).status == "canceled"
    assert n8n_lab.run([chain("w", TRIGGER, wait, executionTimeout=1)]).status == "canceled"


def test_a_missing_workflow_or_node_type_is_reported(n8n_lab):
    with pytest.raises(AssertionError, match="there is no workflow missing"):
        n8n_lab.run([chain("w", TRIGGER)], "missing")
    with pytest.raises(AssertionError, match="this n8n has no node"):
        n8n_lab.run([chain("w", TRIGGER, node("X", "nonsense", 1))])
