"""Woven workflows in the real engines: many items, per item, limits, several at once, and both transports."""

from __future__ import annotations

import itertools
from http import HTTPStatus

import pytest
from test_weave import node, workflow
from woven import BODY, CORPUS, KEY, probes, seen

from backstay.n8n.analysis.body import answers_with_result
from backstay.n8n.model import Workflow
from backstay.n8n.patch.patch import LimitOptions, LockOptions, add_limit, add_lock

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


def test_many_items_take_one_lock_named_after_the_first(desk):
    plain = workflow(START, fields("Step", m="={{ $json.n }}"))
    done = desk.run(*locked(plain, scope=f"={desk.scope}-{{{{ $json.n }}}}"), items=ITEMS)
    assert done.status == "success"
    (grant,) = done.of("lock_acquisition")
    assert grant.items[0]["scope"] == f"{desk.scope}-1"
    (body,) = body_of(done)
    assert body.items == [{"n": n, "m": str(n)} for n in (1, 2, 3)]


def test_with_a_lock_per_item_the_body_runs_for_each_under_its_own(desk):
    called = node("Called", "executeWorkflowTrigger", {"inputSource": "passthrough"}, typeVersion=1.1)
    plain = workflow(called, fields("Step", from_start="={{ $('Called').item.json.n }}"))
    done = desk.run(*locked(plain, scope=f"={desk.scope}-{{{{ $json.n }}}}", per_item=True), items=ITEMS)
    assert done.status == "success"
    assert [one.items[0]["scope"] for one in done.of("lock_acquisition")] == [f"{desk.scope}-{n}" for n in (1, 2, 3)]
    assert [one.items[0]["released"] for one in done.of("lock_release")] == [True] * 3
    assert [one.items for one in body_of(done)] == [[{"n": n, "from_start": str(n)}] for n in (1, 2, 3)]
    assert done.items == [{"n": n, "from_start": str(n)} for n in (1, 2, 3)]
    assert not any(desk.held(f"{desk.scope}-{n}") for n in (1, 2, 3))


def test_with_a_lock_per_item_a_failure_stops_there_and_leaves_nothing_held(desk):
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
    done = desk.run(
        *locked(workflow(START, check, stop("two")), scope=f"={desk.scope}-{{{{ $json.n }}}}", per_item=True),
        items=ITEMS,
    )
    assert (done.status, done.message) == ("error", "two")
    assert len(done.of("lock_acquisition")) == len(done.of("lock_release")) == 2
    assert not any(desk.held(f"{desk.scope}-{n}") for n in (1, 2, 3))


def limited(desk, on_denied):
    plain = workflow(START, fields("Step", m="={{ $('Start').item.json.n }}"))
    woven = add_limit(plain, KEY, LimitOptions(f"={{{{ '{desk.scope}' }}}}", 1, 3600, on_denied))
    return Workflow.parse(woven.workflow.text())


@pytest.mark.parametrize("on_denied", ["passthrough", "stop", "error"])
def test_what_is_denied_is_marked_or_ends_quietly_or_fails(desk, on_denied):
    woven = limited(desk, on_denied)
    first, second = (desk.run(woven, items=ITEMS) for _ in range(2))
    assert (first.status, first.items) == ("success", [{"n": n, "m": str(n)} for n in (1, 2, 3)])
    (asked,) = second.of("rate_limit_check")
    assert asked.items == [{"allowed": False, "scope": desk.scope, "count": 2, "limit": 1}]
    match on_denied:
        case "passthrough":
            assert second.items == [{"n": n, "rate_limit": asked.items[0], "m": str(n)} for n in (1, 2, 3)]
        case "stop":
            assert second.status == "success"
            assert "Step" not in second.runs
        case _:
            assert second.status == "error"
            assert second.message == f"Rate limit reached for {desk.scope}: 2 of 1"


def test_an_error_is_raised_with_its_own_words_also_those_that_n8n_takes_for_codes(desk):
    throws = node("Throw", "code", {"jsCode": "throw new Error('A preexisting file, ECONNREFUSED')"}, typeVersion=2)
    plain = workflow(START, throws)
    done = desk.run(*locked(plain, scope=desk.scope), items=ITEMS)
    assert done.last_node == "Raise Body Error"
    assert "preexisting file, ECONNREFUSED" in done.message.replace("\u2060", "")


def test_who_is_denied_is_told_the_scope_as_it_is(desk):
    desk.scope += "-preexisting"
    woven = limited(desk, "error")
    _, denied = (desk.run(woven, items=ITEMS) for _ in range(2))
    assert denied.message.replace("\u2060", "") == f"Rate limit reached for {desk.scope}: 2 of 1"


def test_who_is_denied_does_not_wait_for_the_lock(desk):
    woven = add_lock(limited(desk, "stop"), KEY, LockOptions(scope=desk.scope))
    first, second = (desk.run(woven.workflow, woven.others, items=ITEMS) for _ in range(2))
    assert (len(first.of("lock_acquisition")), len(second.of("lock_acquisition"))) == (1, 0)


def test_several_at_once_are_in_the_body_one_after_the_other(desk):
    sleep = node("Sleep", "wait", {"amount": 0.2, "unit": "seconds"}, typeVersion=1.1)
    woven = locked(workflow(START, fields("In", a="1"), sleep, fields("Out", b="={{ 2 }}")), scope=desk.scope)
    done = [run.result() for run in [desk.start(*woven, items=ITEMS) for _ in range(4)]]
    assert [one.status for one in done] == ["success"] * 4
    spans = sorted((body.started, body.finished) for one in done for body in body_of(one))
    assert all(left[1] <= right[0] for left, right in itertools.pairwise(spans))
    assert not desk.held()


def looked_at(plain, scope):
    """Beside each probe, and before it, a node that would take the lock: whoever holds it is in the way."""
    watched = plain.copy()
    asked = {
        "method": "POST",
        # In two parts, or it would be refused as a lock made by hand.
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
def test_a_body_sees_the_same_over_http_and_its_lock_is_held_and_then_free(http_desk, name):
    desk = http_desk
    text = desk.corpus(name).text().replace("n8n-nodes-base.redis", "n8n-nodes-base.noOp")
    plain = Workflow.parse(text)
    woven = add_lock(
        looked_at(plain, desk.scope), KEY, LockOptions(scope=f"={{{{ '{desk.scope}' }}}}", transport="http")
    )
    names = [each.name for each in plain.nodes if not each.is_trigger]
    before = desk.run(plain, items=ITEMS)
    after = desk.run(woven.workflow, woven.others, items=ITEMS)
    assert (after.status, after.message) == (before.status, before.message) == ("success", "")
    if answers_with_result(plain.triggers):
        assert after.items == before.items
    (body,) = body_of(after)
    assert seen(body, names) == seen(before, names)
    looks = [run.items[0] for run in body.order() if run.node.startswith("Look")]
    assert {look["statusCode"] for look in looks} == {HTTPStatus.CONFLICT}
    assert len(looks) == len([run for run in before.order() if run.node.startswith("Probe")])
    assert after.runs["Lock Confirm"][0].items[0]["confirmed"] is True
    assert len(after.of("lock_release")) == 1
    assert not desk.held()


def test_a_failing_body_over_http_leaves_nothing_held(http_desk):
    woven = add_lock(workflow(START, stop("broken")), KEY, LockOptions(scope=http_desk.scope, transport="http"))
    done = http_desk.run(woven.workflow, woven.others, items=ITEMS)
    assert (done.status, done.message) == ("error", "broken")
    assert not http_desk.held()
    assert probes(done) == []
