"""Faults that locks in n8n are known for, one test each: mended, or shown for what stock nodes cannot do."""

from __future__ import annotations

import copy
import json
import time

import pytest
from test_weave import node, workflow
from test_weave_runs import START, body_of, fields, stop
from woven import BODY, KEY, RETRY, seen

from backstay.n8n.model import Workflow
from backstay.n8n.patch import nodes
from backstay.n8n.patch.patch import LockOptions, add_lock
from backstay.n8n.primitives.over_http import CONFIRM_SECONDS

pytestmark = pytest.mark.redis

ITEMS = [{"json": {"n": 1}, "binary": {"file": {"data": "aGk=", "mimeType": "text/plain", "fileName": "a"}}}]


def woven(plain, scope, **options):
    done = add_lock(plain, KEY, LockOptions(scope=scope, **options))
    return done.workflow, done.others


def test_payload_loss_the_body_gets_the_triggers_items_and_not_the_locks(desk):
    done = desk.run(
        *woven(
            workflow(
                START, node("Step", "noOp"), node("End", "code", {"jsCode": "return $input.all()"}, typeVersion=2)
            ),
            desk.scope,
        ),
        items=ITEMS,
    )
    (body,) = body_of(done)
    (item,) = body.runs["Step"][0].outputs[0]
    assert (item["json"], item["binary"]) == (ITEMS[0]["json"], ITEMS[0]["binary"])


def test_scope_re_evaluated_release_takes_the_scope_of_the_grant(desk):
    # Different at every evaluation: released is what was acquired all the same.
    scope = f"={desk.scope}-{{{{ Math.random() }}}}"
    done = desk.run(*woven(workflow(START, fields("Step", n="={{ 5 }}")), scope), items=ITEMS)
    (grant,), (given_back,) = done.of("lock_acquisition"), done.of("lock_release")
    assert grant.items[0]["scope"] == given_back.items[0]["scope"]
    assert given_back.items[0]["idempotent"] is False
    assert not desk.held(grant.items[0]["scope"])


def test_zero_item_leak_a_body_that_gives_nothing_still_releases(desk):
    nothing = node("Nothing", "code", {"jsCode": "return []"}, typeVersion=2)
    done = desk.run(*woven(workflow(START, nothing, node("Never", "noOp")), desk.scope), items=ITEMS)
    assert done.status == "success"
    assert not desk.held()


def test_retry_without_lock_a_failed_execution_is_taken_up_behind_the_body(desk):
    # n8n retries at the node that failed: with the body in a sub-workflow that is the one that raises its error.
    done = desk.run(*woven(workflow(START, node("Step", "noOp"), stop("broken")), desk.scope), items=ITEMS)
    assert (done.last_node, done.message) == ("Raise Body Error", "broken")
    assert [edge.target for edge in woven(workflow(START, stop("x")), desk.scope)[0].leaving("Raise Body Error")] == []


def test_retry_without_lock_a_body_that_was_left_in_place_would_be_taken_up_unlocked(desk):
    # Only where it cannot move, as one that answers in its midst: documented, since stock nodes cannot ask whether they
    # hold it.
    made, _ = woven(must_stay(), desk.scope, error_workflow="tidy")
    done = desk.run(made, items=ITEMS, node="Hook", retries=1)
    assert [(one.status, one.last_node) for one in outer(done)] == [("error", "Step")] * 2
    assert len(done.of("lock_acquisition")) == 1  # the retry has run the step without it
    assert not desk.held()  # the error workflow has freed it


def must_stay():
    hook = node("Hook", "webhook", {"responseMode": "responseNode"}, typeVersion=2)
    reply = node("Answer", "respondToWebhook", {"respondWith": "noData", "options": {}}, typeVersion=1.1)
    fails = {"mode": "raw", "jsonOutput": "={{ 'no object' }}", "options": {}}
    return workflow(hook, reply, node("Step", "set", fails, typeVersion=3.4))


@pytest.mark.parametrize("mode", ["webhook", "manual"])
def test_retry_without_lock_over_http_nothing_is_left_to_retry_of_a_body_that_was_left_in_place(http_desk, mode):
    made, _ = woven(must_stay(), http_desk.scope, error_workflow="tidy", transport="http", in_place=True)
    done = http_desk.run(made, items=ITEMS, node="Hook", mode=mode, retries=1)
    assert [(one.status, one.last_node, one.saved) for one in outer(done)] == [("error", "Step", False)]
    (freed,) = done.of("error_handler_lo") if mode == "webhook" else [None]
    assert freed is None or freed.status == "success"
    # n8n starts no error workflow by hand: there the lock ends with its TTL.
    assert http_desk.held() is (mode == "manual")


def test_retry_without_lock_over_http_whoever_keeps_such_executions_is_without_it(http_desk):
    """Chosen with --keep-failed-executions, and warned of by the weave and by `validate`."""
    made, _ = woven(must_stay(), http_desk.scope, error_workflow="tidy", transport="http", keep_failed=True)
    done = http_desk.run(made, items=ITEMS, node="Hook", mode="webhook", retries=1)
    assert [(one.last_node, one.saved) for one in outer(done)] == [("Step", True)] * 2
    assert len(done.of("lock_acquisition")) == 1


def count(desk, name="Count"):
    """Counts on the server, one for each item: `allowed` is true once for a scope."""
    value = {
        "scope": "={{ $('Start').item.json.counted ?? 'once' }}" + f"-{desk.scope}",
        "limit": 1,
        "windowSeconds": 10_000_000,
    }
    inputs = {"mappingMode": "defineBelow", "value": value, "matchingColumns": [], "schema": []}
    called = {"__rl": True, "mode": "id", "value": "{{@:env:workflows.rate_limit_check.id}}"}
    parameters = {"workflowId": called, "workflowInputs": inputs, "mode": "once", "options": {}}
    return node(name, "executeWorkflow", parameters, typeVersion=1.2)


TO_STEP = {"Start": [["Step"]], "Other": [["Step"]]}
#: By hand, and by a workflow that reads what it gives.
STARTS = [START, node("Start", "executeWorkflowTrigger", {"inputSource": "passthrough"}, typeVersion=1.1)]


def fails_once(desk, start=START, n="1"):
    """The first time it is run with an item of that number it fails; then no more."""
    parameters = nodes.choice(KEY, "x", f"$json.allowed && $('Start').item.json.n == {n}", [0, 0])["parameters"]
    return workflow(
        start,
        node("Step", "noOp"),
        count(desk),
        node("Broken?", "if", parameters, typeVersion=2.2),
        stop("broken"),
        node("Went Well", "noOp"),
        links={
            "Start": [["Step"]],
            "Step": [["Count"]],
            "Count": [["Broken?"]],
            "Broken?": [["Stop"], ["Went Well"]],
        },
    )


def outer(done):
    return done.of(KEY)


def under_the_lock(done):
    """Each body between an acquire and its release, in turn."""
    steps = [(one.finished, "acquire") for one in done.of("lock_acquisition")]
    steps += [(time, what) for one in body_of(done) for time, what in ((one.started, "in"), (one.finished, "out"))]
    steps += [(one.started, "release") for one in done.of("lock_release")]
    return [what for _, what in sorted(steps, key=lambda step: step[0])]


ROUND = ["acquire", "in", "out", "release"]


@pytest.mark.parametrize("start", STARTS, ids=["by-hand", "called"])
def test_retry_without_lock_over_http_a_retry_takes_the_lock_anew(http_desk, start):
    desk = http_desk
    done = desk.run(*woven(fails_once(desk, start), desk.scope, transport="http"), items=ITEMS, retries=1)
    first, second = outer(done)
    assert (first.status, first.message, first.last_node) == ("error", "broken", "Raise Or Retry")
    assert (second.status, second.mode) == ("success", "retry")
    assert under_the_lock(done) == ROUND * 2
    assert len({one.items[0]["lock_id"] for one in done.of("lock_acquisition")}) == 2
    assert [one.items[0]["execution_id"] for one in done.of("lock_acquisition")] == [first.id, second.id]
    assert [one.items[0]["idempotent"] for one in done.of("lock_release")] == [False, False]
    before, again = body_of(done)
    assert seen(again, ["Step"]) == seen(before, ["Step"])
    assert again.runs["Step"][0].outputs[0][0]["binary"] == ITEMS[0]["binary"]
    assert "Went Well" in again.runs
    assert not desk.held()


def test_retry_without_lock_over_http_whoever_fails_again_is_retried_again(http_desk):
    throws = node("Throw", "code", {"jsCode": "throw new Error('A preexisting file')"}, typeVersion=2)
    plain = workflow(START, node("Step", "noOp"), throws)
    done = http_desk.run(*woven(plain, http_desk.scope, transport="http"), items=ITEMS, retries=2)
    said = [one.message.replace("\u2060", "") for one in outer(done)]
    assert [message.partition(" [")[0] for message in said] == ["A preexisting file"] * 3
    assert under_the_lock(done) == ROUND * 3
    assert not http_desk.held()


def test_retry_without_lock_over_http_nothing_of_a_body_can_be_retried_by_itself(http_desk):
    """Only what a retry takes the lock for is kept: its caller."""
    made = woven(workflow(START, stop("broken")), http_desk.scope, transport="http")
    done = http_desk.run(*made, items=ITEMS, retries=1)
    assert {one.workflow_id for one in done.all if one.status == "error"} == {KEY, BODY, RETRY}
    assert {one.workflow_id for one in done.all if one.saved} == {KEY}
    assert made[0].settings["saveExecutionProgress"] is False  # nor from its midst after a crash


OTHER = node("Other", "scheduleTrigger")
BODIES = {
    "one-trigger": workflow(START, node("Step", "noOp")),
    "two-triggers": workflow(START, OTHER, fields("Step", n="={{ $('Start').item.json.n }}"), links=TO_STEP),
}


@pytest.mark.parametrize("body", BODIES)
def test_retry_without_lock_over_http_a_body_that_is_retried_by_itself_runs_nothing(http_desk, body):
    """What n8n keeps whatever is set, of a worker that was lost, it retries from the beginning: there the body asks."""
    made, others = woven(BODIES[body], http_desk.scope, transport="http")
    call = Workflow.parse(made.find("Locked Body").parameters["workflowJson"])
    del call.data["id"]  # of the body
    items = ITEMS if body == "one-trigger" else [{"json": {"trigger": 0, "sent": {"n": 1}}}]
    for mode, status in (("retry", "error"), ("manual", "success")):
        for started in (others[BODY], call):
            done = http_desk.run(started, others, items=items, node=started.triggers[0].name, mode=mode)
            assert (done.status, "Step" in done.runs or bool(body_of(done))) == (status, status == "success")
            assert mode != "retry" or "retry the locked workflow" in done.message
    assert not http_desk.held()


@pytest.mark.parametrize("start", STARTS, ids=["by-hand", "called"])
def test_retry_without_lock_over_http_a_lock_for_each_item_goes_on_where_it_failed(http_desk, start):
    desk = http_desk
    given = [{"json": {"n": n, "counted": n}} for n in (1, 2, 3)]
    scope = f"={desk.scope}-{{{{ $json.n }}}}"
    made = woven(fails_once(desk, start, "2"), scope, transport="http", per_item=True)
    done = desk.run(*made, items=given, retries=1)
    assert [one.status for one in outer(done)] == ["error", "success"]
    assert [one.runs["Step"][0].items[0]["n"] for one in body_of(done)] == [1, 2, 2, 3]
    assert [one.items[0]["scope"] for one in done.of("lock_acquisition")] == [f"{desk.scope}-{n}" for n in (1, 2, 2, 3)]
    assert under_the_lock(done) == ROUND * 4
    assert not any(desk.held(f"{desk.scope}-{n}") for n in (1, 2, 3))


def test_retry_without_lock_over_http_each_trigger_is_retried_as_itself(http_desk):
    desk = http_desk
    plain = workflow(
        START,
        node("Other", "scheduleTrigger"),
        node("One", "noOp"),
        node("Two", "noOp"),
        stop("broken"),
        links={"Start": [["One"]], "Other": [["Two"]], "One": [["Stop"]], "Two": [["Stop"]]},
    )
    done = desk.run(*woven(plain, desk.scope, transport="http"), items=ITEMS, node="Other", retries=1)
    assert [("Two" in one.runs, "One" in one.runs) for one in body_of(done)] == [(True, False)] * 2
    assert under_the_lock(done) == ROUND * 2


HOOK = node("Start", "webhook", {"responseMode": "responseNode"}, typeVersion=2)
REPLY = node("Answer", "respondToWebhook", {"respondWith": "allIncomingItems", "options": {}}, typeVersion=1.1)


def test_retry_without_lock_over_http_a_body_whose_answer_is_last_is_run_again_under_the_lock(http_desk):
    """The answer stays outside, so that the rest can move."""
    desk = http_desk
    once = {"mode": "raw", "jsonOutput": "={{ $json.allowed ? 'no object' : { done: true } }}", "options": {}}
    plain = workflow(HOOK, node("Step", "noOp"), count(desk), node("Broken", "set", once, typeVersion=3.4), REPLY)
    done = desk.run(*woven(plain, desk.scope, transport="http"), items=ITEMS, mode="webhook", retries=1)
    first, second = outer(done)
    assert (first.status, first.last_node, second.status) == ("error", "Raise Or Retry", "success")
    assert under_the_lock(done) == ROUND * 2
    assert ["Answer" in one.runs for one in (first, second)] == [False, False]  # nobody waits for it any more
    assert [one.runs["Broken"][0].status for one in body_of(done)] == ["error", "success"]
    assert not desk.held()


def test_an_answer_behind_the_release_is_the_one_that_was_written(http_desk):
    each = {"mode": "raw", "jsonOutput": "={{ { n: $json.n, sent: $('Start').item.json.n } }}", "options": {}}
    step = node("Step", "set", each | {"options": {"includeBinary": True}}, typeVersion=3.3)
    texts = {"respondWith": "text", "responseBody": "={{ $json.n + $('Start').item.json.n }}", "options": {}}
    for reply in (REPLY, REPLY | {"parameters": texts}):
        plain = workflow(HOOK, step, reply)
        before = http_desk.run(plain, items=ITEMS, mode="webhook")
        done = http_desk.run(*woven(plain, http_desk.scope, transport="http"), items=ITEMS, mode="webhook")
        assert (before.status, done.status) == ("success", "success")
        was, now = (one.runs["Answer"][0].outputs[0] for one in (before, done))
        assert [(item["json"], item.get("binary")) for item in now] == [(i["json"], i.get("binary")) for i in was]
        (given_back,) = done.of("lock_release")
        assert given_back.finished <= done.runs["Answer"][0].started
        assert not http_desk.held()


def unconfirmed(made, when="true", *, arrived=False):
    """No answer to the confirmation comes back: the server is away, or (`arrived`) it has done what it was asked."""
    flow, others = made
    confirm = flow.find("Lock Confirm").data
    url = confirm["parameters"]["url"]
    if arrived:
        flow.add({**copy.deepcopy(confirm), "id": "arrived", "name": "Arrived"})
        for source, target in (("Lock Acquire", "Arrived"), ("Arrived", "Lock Confirm")):
            flow.connections[source] = {"main": [[nodes.to(target)]]}
    server = "{{@:env:backstay.url}}"
    where = f"{{{{ {when} ? 'http://127.0.0.1:1' : '{server}' }}}}"
    confirm["parameters"]["url"] = url.replace(server, where)
    return flow, others


@pytest.mark.parametrize("arrived", [False, True], ids=["away", "arrived"])
@pytest.mark.parametrize("start", STARTS, ids=["by-hand", "called"])
def test_retry_without_lock_over_http_a_grant_that_was_not_confirmed_is_given_back_and_taken_anew(
    http_desk, start, arrived
):
    desk = http_desk
    plain = workflow(start, fields("Step", n="={{ $json.n + 1 }}"))
    made = unconfirmed(woven(plain, desk.scope, transport="http"), arrived=arrived)
    done = desk.run(*made, items=ITEMS, retries=1)
    first, second = outer(done)
    assert (first.status, first.last_node, second.status) == ("error", "Raise Or Retry", "success")
    assert "The lock was not confirmed" in first.message
    assert under_the_lock(done) == ["acquire", "release", *ROUND]
    assert [one.items[0]["execution_id"] for one in done.of("lock_acquisition")] == [first.id, second.id]
    assert [one.items[0]["idempotent"] for one in done.of("lock_release")] == [False, False]
    (body,) = body_of(done)
    assert body.runs["Start"][0].outputs[0][0]["binary"] == ITEMS[0]["binary"]
    assert not desk.held()


def test_retry_without_lock_over_http_a_body_that_fails_after_that_is_run_once_for_each_retry(http_desk):
    desk = http_desk
    made = woven(workflow(START, node("Step", "noOp"), stop("broken")), desk.scope, transport="http")
    # Whoever asks for an older execution's grant is answered.
    when = "$('Lock Acquire').first().json.execution_id === $execution.id"
    done = desk.run(*unconfirmed(made, when), items=ITEMS, retries=2)
    assert [one.status for one in outer(done)] == ["error"] * 3
    assert under_the_lock(done) == ["acquire", "release", *ROUND, *ROUND]
    assert not desk.held()


@pytest.mark.parametrize("start", STARTS, ids=["by-hand", "called"])
def test_retry_without_lock_over_http_a_lock_for_each_item_goes_on_where_one_was_not_confirmed(http_desk, start):
    desk = http_desk
    # Items that look like what a body gives.
    given = [{"json": {"n": n, "ended": True, "result": {"n": n}}} for n in (1, 2, 3)]
    scope = f"={desk.scope}-{{{{ $json.n }}}}"
    made = woven(workflow(start, fields("Step", m="={{ $json.n }}")), scope, transport="http", per_item=True)
    when = "$('Lock Acquire').first().json.scope.endsWith('-2')"
    done = desk.run(*unconfirmed(made, when), items=given, retries=1)
    first, second = outer(done)
    assert (first.last_node, second.status) == ("Raise Or Retry", "success")
    assert [one.items[0]["m"] for one in body_of(done)] == ["1", "2", "3"]
    assert under_the_lock(done) == [*ROUND, "acquire", "release", *ROUND, *ROUND]
    assert not any(desk.held(f"{desk.scope}-{n}") for n in (1, 2, 3))


def _wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.05)


def _orphan(desk, transport):
    """An execution that is stopped while it waits for a lock that somebody else holds; then the lock becomes free."""
    sleep = node("Sleep", "wait", {"amount": 4, "unit": "seconds"}, typeVersion=1.1)
    made = woven(workflow(START, sleep, fields("Step", n="={{ 1 }}")), desk.scope, transport=transport)
    holder = desk.start(*made, items=ITEMS)
    _wait_until(desk.held)
    waiter = desk.start(*made, items=ITEMS)
    _wait_until(lambda: waiter.reached("Build Lock Context"))
    waiter.stop()
    assert holder.result().status == "success"
    return waiter.result()


def test_orphaned_waiter_over_redis_takes_a_lock_that_nobody_releases_until_its_ttl_ends(desk):
    done = _orphan(desk, "redis")
    assert done.status == "canceled"
    _wait_until(desk.held)  # shown, and documented: a stock node cannot know that its caller is gone


def test_orphaned_waiter_over_http_gets_a_grant_that_lapses_unconfirmed(http_desk):
    wanted = f'confirm_seconds\\": {CONFIRM_SECONDS}'
    text = json.dumps(http_desk.primitives)
    assert wanted in text
    http_desk.primitives = json.loads(text.replace(wanted, 'confirm_seconds\\": 5'))
    done = _orphan(http_desk, "http")
    assert done.status == "canceled"
    assert "Lock Confirm" not in done.runs
    _wait_until(lambda: not http_desk.held())
