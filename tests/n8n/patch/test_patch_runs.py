"""Patched workflows in the real engines: many items, per-item locks, limits, concurrency, both transports."""

from __future__ import annotations

import itertools
from http import HTTPStatus

import pytest
from patched import BODY, CORPUS, KEY, probes, seen

from backstay.n8n.analysis.body import caller_reads_result
from backstay.n8n.model import N8nWorkflow
from backstay.n8n.patch.patch import LimitOptions, LockOptions, add_limit, add_lock
from support.n8n.workflows import node, workflow

pytestmark = pytest.mark.redis

START = node("Start", "manualTrigger")
ITEMS = [{"json": {"n": n}} for n in (1, 2, 3)]


def fields(name, **values):
    rows = [{"id": key, "name": key, "type": "string", "value": value} for key, value in values.items()]
    return node(
        name, "set", {"assignments": {"assignments": rows}, "includeOtherFields": True, "options": {}}, typeVersion=3.4
    )


def stop(message):
    return node("Stop", "stopAndError", {"errorMessage": message})


def locked(plain, **options):
    done = add_lock(plain, KEY, LockOptions(**options))
    return done.workflow, done.others


def body_of(done):
    return [one for one in done.of(BODY) if one.workflow_name.endswith("(locked body)")]


def test_many_items_take_one_lock_whose_scope_comes_from_the_first(lab_client):
    plain = workflow(START, fields("Step", m="={{ $json.n }}"))
    done = lab_client.run(*locked(plain, scope=f"={lab_client.scope}-{{{{ $json.n }}}}"), items=ITEMS)
    assert done.status == "success"
    (grant,) = done.of("lock_acquisition")
    assert grant.items[0]["scope"] == f"{lab_client.scope}-1"
    (body,) = body_of(done)
    assert body.items == [{"n": n, "m": str(n)} for n in (1, 2, 3)]


def test_with_a_lock_per_item_the_body_runs_once_per_item_under_its_own_lock(lab_client):
    called = node("Called", "executeWorkflowTrigger", {"inputSource": "passthrough"}, typeVersion=1.1)
    plain = workflow(called, fields("Step", from_start="={{ $('Called').item.json.n }}"))
    done = lab_client.run(*locked(plain, scope=f"={lab_client.scope}-{{{{ $json.n }}}}", per_item=True), items=ITEMS)
    assert done.status == "success"
    assert [one.items[0]["scope"] for one in done.of("lock_acquisition")] == [
        f"{lab_client.scope}-{n}" for n in (1, 2, 3)
    ]
    assert [one.items[0]["released"] for one in done.of("lock_release")] == [True] * 3
    assert [one.items for one in body_of(done)] == [[{"n": n, "from_start": str(n)}] for n in (1, 2, 3)]
    assert done.items == [{"n": n, "from_start": str(n)} for n in (1, 2, 3)]
    assert not any(lab_client.held(f"{lab_client.scope}-{n}") for n in (1, 2, 3))


def test_with_a_lock_per_item_a_failure_stops_the_run_and_leaves_no_lock(lab_client):
    check = node("Check", "filter", typeVersion=2.2)
    check["parameters"] = {
        "conditions": {
            "options": {"caseSensitive": True, "leftValue": "", "typeValidation": "strict", "version": 2},
            "conditions": [
                {
                    "id": "1",
                    "leftValue": "={{ $json.n }}",
                    "rightValue": 2,
                    "operator": {"type": "number", "operation": "equals"},
                }
            ],
            "combinator": "and",
        }
    }
    done = lab_client.run(
        *locked(workflow(START, check, stop("two")), scope=f"={lab_client.scope}-{{{{ $json.n }}}}", per_item=True),
        items=ITEMS,
    )
    assert (done.status, done.message) == ("error", "two")
    assert len(done.of("lock_acquisition")) == len(done.of("lock_release")) == 2
    assert not any(lab_client.held(f"{lab_client.scope}-{n}") for n in (1, 2, 3))


def limited(lab_client, on_denied):
    plain = workflow(START, fields("Step", m="={{ $('Start').item.json.n }}"))
    patched = add_limit(plain, KEY, LimitOptions(f"={{{{ '{lab_client.scope}' }}}}", 1, 3600, on_denied))
    return N8nWorkflow.parse(patched.workflow.text())


@pytest.mark.parametrize("on_denied", ["passthrough", "stop", "error"])
def test_denied_items_are_marked_dropped_or_fail_by_option(lab_client, on_denied):
    patched = limited(lab_client, on_denied)
    first, second = (lab_client.run(patched, items=ITEMS) for _ in range(2))
    assert (first.status, first.items) == ("success", [{"n": n, "m": str(n)} for n in (1, 2, 3)])
    (asked,) = second.of("rate_limit_check")
    assert asked.items == [{"allowed": False, "scope": lab_client.scope, "count": 2, "limit": 1}]
    match on_denied:
        case "passthrough":
            assert second.items == [{"n": n, "rate_limit": asked.items[0], "m": str(n)} for n in (1, 2, 3)]
        case "stop":
            assert second.status == "success"
            assert "Step" not in second.runs
        case _:
            assert second.status == "error"
            assert second.message == f"Rate limit reached for {lab_client.scope}: 2 of 1"


def test_an_error_message_is_unchanged_even_when_n8n_would_rewrite_it(lab_client):
    throws = node("Throw", "code", {"jsCode": "throw new Error('A preexisting file, ECONNREFUSED')"}, typeVersion=2)
    plain = workflow(START, throws)
    done = lab_client.run(*locked(plain, scope=lab_client.scope), items=ITEMS)
    assert done.last_node == "Raise Body Error"
    assert "preexisting file, ECONNREFUSED" in done.message.replace("\u2060", "")


def test_a_denial_names_the_scope_unchanged(lab_client):
    lab_client.scope += "-preexisting"
    patched = limited(lab_client, "error")
    _, denied = (lab_client.run(patched, items=ITEMS) for _ in range(2))
    assert denied.message.replace("\u2060", "") == f"Rate limit reached for {lab_client.scope}: 2 of 1"


def test_a_denied_execution_does_not_wait_for_the_lock(lab_client):
    patched = add_lock(limited(lab_client, "stop"), KEY, LockOptions(scope=lab_client.scope))
    first, second = (lab_client.run(patched.workflow, patched.others, items=ITEMS) for _ in range(2))
    assert (len(first.of("lock_acquisition")), len(second.of("lock_acquisition"))) == (1, 0)


def test_concurrent_executions_run_the_body_one_at_a_time(lab_client):
    sleep = node("Sleep", "wait", {"amount": 0.2, "unit": "seconds"}, typeVersion=1.1)
    patched = locked(workflow(START, fields("In", a="1"), sleep, fields("Out", b="={{ 2 }}")), scope=lab_client.scope)
    done = [run.result() for run in [lab_client.start(*patched, items=ITEMS) for _ in range(4)]]
    assert [one.status for one in done] == ["success"] * 4
    spans = sorted((body.started, body.finished) for one in done for body in body_of(one))
    assert all(left[1] <= right[0] for left, right in itertools.pairwise(spans))
    assert not lab_client.held()


def add_lock_probes(plain, scope):
    """Add a node before each probe that tries to take the lock and fails while it is held."""
    watched = plain.copy()
    asked = {
        "method": "POST",
        # Split in two, or the patch would refuse it as a hand-made lock.
        "url": f"={{{{@:env:backstay.url}}}}/api/locks/{scope}/{{{{ 'acq' + 'uire' }}}}",
        "authentication": "genericCredentialType",
        "genericAuthType": "httpHeaderAuth",
        "sendBody": True,
        "specifyBody": "json",
        "jsonBody": '{"lock_id": "probe", "wait_till_lock_released": false}',
        "options": {"response": {"response": {"fullResponse": True, "neverError": True}}},
    }
    credentials = {"httpHeaderAuth": {"id": "backstay", "name": "backstay"}}
    for place, probe in enumerate([one for one in plain.nodes if one.name.startswith("Probe")]):
        name = f"Look {place}"
        look = node(name, "httpRequest", asked, typeVersion=4.2, executeOnce=True, credentials=credentials)
        watched.add({**look, "position": [round(probe.position[0]), -5000]})
        for edge in plain.entering(probe.name):
            watched.connections[edge.source]["main"][edge.output].append({"node": name, "type": "main", "index": 0})
    return watched


@pytest.mark.parametrize("name", sorted(path.stem for path in CORPUS.glob("*.json")))
def test_a_body_over_http_sees_the_same_items_while_its_lock_is_held_and_then_free(http_lab_client, name):
    lab_client = http_lab_client
    text = lab_client.corpus(name).text().replace("n8n-nodes-base.redis", "n8n-nodes-base.noOp")
    plain = N8nWorkflow.parse(text)
    patched = add_lock(
        add_lock_probes(plain, lab_client.scope),
        KEY,
        LockOptions(scope=f"={{{{ '{lab_client.scope}' }}}}", transport="http"),
    )
    names = [each.name for each in plain.nodes if not each.is_trigger]
    before = lab_client.run(plain, items=ITEMS)
    after = lab_client.run(patched.workflow, patched.others, items=ITEMS)
    assert (after.status, after.message) == (before.status, before.message) == ("success", "")
    if caller_reads_result(plain.triggers):
        assert after.items == before.items
    (body,) = body_of(after)
    assert seen(body, names) == seen(before, names)
    looks = [run.items[0] for run in body.order() if run.node.startswith("Look")]
    assert {look["statusCode"] for look in looks} == {HTTPStatus.CONFLICT}
    assert len(looks) == len([run for run in before.order() if run.node.startswith("Probe")])
    assert after.runs["Lock Confirm"][0].items[0]["confirmed"] is True
    assert len(after.of("lock_release")) == 1
    assert not lab_client.held()


def test_a_failing_body_over_http_leaves_no_lock(http_lab_client):
    patched = add_lock(workflow(START, stop("broken")), KEY, LockOptions(scope=http_lab_client.scope, transport="http"))
    done = http_lab_client.run(patched.workflow, patched.others, items=ITEMS)
    assert (done.status, done.message) == ("error", "broken")
    assert not http_lab_client.held()
    assert probes(done) == []
