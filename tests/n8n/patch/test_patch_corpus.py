"""Realistic workflows, run in the real engines with and without a lock: the body sees the same items."""

from __future__ import annotations

import base64
import copy

import pytest
from patched import BODY, CORPUS, KEY, probes, seen

from backstay.n8n.model import N8nWorkflow
from backstay.n8n.patch.patch import LockOptions, add_lock, remove_lock

NAMES = sorted(path.stem for path in CORPUS.glob("*.json"))
INLINE = {"linear_steady", "linear_wait"}
FILE = {"file": {"data": base64.b64encode(b"a,b\n1,2\n").decode(), "mimeType": "text/csv", "fileName": "a.csv"}}
ITEMS = [{"json": {"n": n}, **({"binary": FILE} if n != 2 else {})} for n in (1, 2, 3)]

pytestmark = pytest.mark.redis


def with_lock(workflow, scope, **options):
    """Add a lock, and parse the result back from its text as from a file."""
    done = add_lock(workflow, KEY, LockOptions(scope=f"={{{{ '{scope}' }}}}", **options))
    read = {key: N8nWorkflow.parse(other.text()) for key, other in done.others.items()}
    return done, N8nWorkflow.parse(done.workflow.text()), read


def body_names(workflow):
    starts = {node.name for node in workflow.triggers}
    return [node.name for node in workflow.nodes if node.name not in starts]


def body_runs(done, wiring):
    if wiring == "inline":
        return done
    (body,) = [one for one in done.of(BODY) if one.workflow_name.endswith("(locked body)")]
    return body


def held_throughout(done, body, names):
    """Return whether all nodes of the body ran between the end of the only acquire and the start of the only release.

    Times are n8n's, in milliseconds.
    """
    (taken,), (given,) = done.of("lock_acquisition"), done.of("lock_release")
    runs = [run for name in names for run in body.runs.get(name, ())]
    assert runs
    return all(taken.finished <= run.started and run.started + run.seconds <= given.started + 0.002 for run in runs)


def starts(workflow):
    return [node.name for node in workflow.triggers]


def test_the_corpus_has_at_least_25_workflows():
    assert len(NAMES) >= 25


@pytest.mark.parametrize("name", NAMES)
def test_a_patched_body_sees_the_same_items_while_its_lock_is_held_and_then_free(name, lab_client):
    plain = lab_client.corpus(name)
    done, workflow, others = with_lock(plain, lab_client.scope)
    assert done.wiring == ("inline" if name in INLINE else "sub-workflow"), done.why
    for start in starts(plain):
        before = lab_client.run(plain, node=start, items=ITEMS)
        LAST.setdefault((lab_client.runner.lab, name), before.last_node)
        after = lab_client.run(workflow, others, node=start, items=ITEMS)
        assert (after.status, after.message) == (before.status, before.message) == ("success", "")
        body = body_runs(after, done.wiring)
        assert seen(body, body_names(plain)) == seen(before, body_names(plain))
        assert set(probes(before)) == {None}
        assert set(probes(body)) == {"1"}
        assert held_throughout(after, body, body_names(plain))
        assert not lab_client.held()


@pytest.mark.parametrize("name", NAMES)
def test_when_a_patched_body_fails_the_workflow_fails_and_the_lock_is_free(name, lab_client):
    plain = broken(lab_client, name)
    done, workflow, others = with_lock(plain, lab_client.scope)
    before = lab_client.run(plain, items=ITEMS)
    after = lab_client.run(workflow, others, items=ITEMS)
    assert (after.status, after.message) == (before.status, before.message) == ("error", "broken on purpose")
    assert done.wiring == "sub-workflow"
    body = body_runs(after, done.wiring)
    assert seen(body, body_names(plain)) == seen(before, body_names(plain))
    assert set(probes(body)) <= {"1"}
    assert held_throughout(after, body, body_names(plain))
    assert not lab_client.held()


@pytest.mark.parametrize("name", NAMES)
def test_when_a_patched_body_fails_over_http_the_workflow_fails_and_the_lock_is_free(name, http_lab_client):
    text = http_lab_client.corpus(name).text().replace("n8n-nodes-base.redis", "n8n-nodes-base.noOp")
    plain = broken(http_lab_client, name, N8nWorkflow.parse(text))
    done, workflow, others = with_lock(plain, http_lab_client.scope, transport="http")
    before = http_lab_client.run(plain, items=ITEMS)
    after = http_lab_client.run(workflow, others, items=ITEMS)
    assert (after.status, after.message) == (before.status, before.message) == ("error", "broken on purpose")
    body = body_runs(after, done.wiring)
    assert seen(body, body_names(plain)) == seen(before, body_names(plain))
    assert held_throughout(after, body, body_names(plain))
    assert not http_lab_client.held()


#: Cache: the last node of each workflow in each engine, started at its first trigger.
LAST = {}


def broken(lab_client, name, workflow=None):
    """Return the workflow with its last node replaced by one that fails."""
    workflow = workflow or lab_client.corpus(name)
    last = LAST.get((lab_client.runner.lab, name)) or lab_client.run(workflow, items=ITEMS).last_node
    failing = workflow.copy()
    node = failing.find(last).data
    node |= {
        "type": "n8n-nodes-base.stopAndError",
        "typeVersion": 1,
        "parameters": {"errorMessage": "broken on purpose"},
    }
    for key in ("onError", "alwaysOutputData", "credentials"):
        node.pop(key, None)
    return N8nWorkflow.parse(failing.text())


@pytest.mark.parametrize(
    "name", [name for name in NAMES if "called" in name or "error_goes_on" in name or "webhook" in name]
)
def test_the_caller_of_a_patched_workflow_gets_the_same_items(name, lab_client):
    plain = lab_client.corpus(name)
    done, workflow, others = with_lock(plain, lab_client.scope)
    before = lab_client.run(plain, items=ITEMS)
    after = lab_client.run(workflow, others, items=ITEMS)
    answers = [[{**item, "held": None} for item in one.items] for one in (before, after)]
    assert answers[0] == answers[1]
    assert [item.get("binary") for item in before.outputs[0]] == [item.get("binary") for item in after.outputs[0]]
    assert done.others or name in INLINE


@pytest.mark.parametrize("transport", ["redis", "http"])
@pytest.mark.parametrize("name", NAMES)
def test_removing_the_lock_restores_the_original_bytes(name, transport):
    raw = (CORPUS / f"{name}.json").read_bytes()
    workflow = N8nWorkflow.parse(raw)
    for per_item in (False, True):
        if per_item and name.startswith("triggers_"):
            continue
        done, again, others = with_lock(workflow, "x", transport=transport, per_item=per_item, error_workflow="tidy")
        back = remove_lock(again, KEY, others)
        assert back.workflow.text().encode() == raw
        assert set(back.gone) == set(done.others)
        assert workflow.text().encode() == raw


@pytest.mark.parametrize("transport", ["redis", "http"])
@pytest.mark.parametrize("name", NAMES)
def test_nodes_do_not_overlap_and_ids_are_stable(name, transport):
    workflow = N8nWorkflow.parse((CORPUS / f"{name}.json").read_bytes())
    done, again, others = with_lock(workflow, "x", transport=transport)
    for one in (again, *others.values()):
        spots = [node.position for node in one.nodes if not node.is_note]
        near = [
            (a, b)
            for place, a in enumerate(spots)
            for b in spots[place + 1 :]
            if abs(a[0] - b[0]) < 100 and abs(a[1] - b[1]) < 100
        ]
        assert near == []
        assert len({node.id for node in one.nodes}) == len(one.nodes)
    assert done.workflow.text() == with_lock(copy.deepcopy(workflow), "x", transport=transport)[0].workflow.text()
    assert again.settings["executionOrder"] == "v1"
