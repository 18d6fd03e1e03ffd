"""Known defects of hand-made locks in n8n, one test each: fixed by the patch, or a documented limit of stock nodes."""

from __future__ import annotations

import copy
import json
import time

import pytest
from patched import BODY, KEY, RETRY, seen
from test_patch_runs import START, body_of, fields, stop

from backstay.n8n.model import N8nWorkflow
from backstay.n8n.patch import nodes
from backstay.n8n.patch.patch import LockOptions, add_lock
from backstay.n8n.primitives.over_http import CONFIRM_SECONDS
from support.n8n.workflows import node, workflow

pytestmark = pytest.mark.redis

ITEMS = [{"json": {"n": 1}, "binary": {"file": {"data": "aGk=", "mimeType": "text/plain", "fileName": "a"}}}]


def with_lock(plain, scope, **options):
    done = add_lock(plain, KEY, LockOptions(scope=scope, **options))
    return done.workflow, done.others


def test_payload_loss_the_body_gets_the_items_of_the_trigger_not_of_the_lock(lab_client):
    done = lab_client.run(
        *with_lock(
            workflow(
                START, node("Step", "noOp"), node("End", "code", {"jsCode": "return $input.all()"}, typeVersion=2)
            ),
            lab_client.scope,
        ),
        items=ITEMS,
    )
    (body,) = body_of(done)
    (item,) = body.runs["Step"][0].outputs[0]
    assert (item["json"], item["binary"]) == (ITEMS[0]["json"], ITEMS[0]["binary"])


def test_scope_re_evaluated_release_uses_the_scope_of_the_grant(lab_client):
    # The expression differs at every evaluation; the release still names the acquired scope.
    scope = f"={lab_client.scope}-{{{{ Math.random() }}}}"
    done = lab_client.run(*with_lock(workflow(START, fields("Step", n="={{ 5 }}")), scope), items=ITEMS)
    (grant,), (given_back,) = done.of("lock_acquisition"), done.of("lock_release")
    assert grant.items[0]["scope"] == given_back.items[0]["scope"]
    assert given_back.items[0]["idempotent"] is False
    assert not lab_client.held(grant.items[0]["scope"])


def test_zero_item_leak_a_body_without_output_items_still_releases(lab_client):
    nothing = node("Nothing", "code", {"jsCode": "return []"}, typeVersion=2)
    done = lab_client.run(*with_lock(workflow(START, nothing, node("Never", "noOp")), lab_client.scope), items=ITEMS)
    assert done.status == "success"
    assert not lab_client.held()


def test_retry_without_lock_a_retry_resumes_after_the_body(lab_client):
    # n8n retries at the failed node: with the body in a sub-workflow, that is the node that raises its error.
    done = lab_client.run(
        *with_lock(workflow(START, node("Step", "noOp"), stop("broken")), lab_client.scope), items=ITEMS
    )
    assert (done.last_node, done.message) == ("Raise Body Error", "broken")
    assert [
        edge.target for edge in with_lock(workflow(START, stop("x")), lab_client.scope)[0].leaving("Raise Body Error")
    ] == []


def test_retry_without_lock_an_inline_body_is_retried_without_the_lock(lab_client):
    # Only for a body that must stay inline, such as one that responds midway. A documented limit: stock nodes cannot
    # check whether they hold the lock.
    made, _ = with_lock(must_stay(), lab_client.scope, error_workflow="tidy")
    done = lab_client.run(made, items=ITEMS, node="Hook", retries=1)
    assert [(one.status, one.last_node) for one in outer(done)] == [("error", "Step")] * 2
    assert len(done.of("lock_acquisition")) == 1  # the retry ran the step without the lock
    assert not lab_client.held()  # the error workflow released it


def must_stay():
    hook = node("Hook", "webhook", {"responseMode": "responseNode"}, typeVersion=2)
    reply = node("Answer", "respondToWebhook", {"respondWith": "noData", "options": {}}, typeVersion=1.1)
    fails = {"mode": "raw", "jsonOutput": "={{ 'no object' }}", "options": {}}
    return workflow(hook, reply, node("Step", "set", fails, typeVersion=3.4))


@pytest.mark.parametrize("mode", ["webhook", "manual"])
def test_retry_without_lock_over_http_an_inline_body_leaves_no_execution_to_retry(http_lab_client, mode):
    made, _ = with_lock(must_stay(), http_lab_client.scope, error_workflow="tidy", transport="http", in_place=True)
    done = http_lab_client.run(made, items=ITEMS, node="Hook", mode=mode, retries=1)
    assert [(one.status, one.last_node, one.saved) for one in outer(done)] == [("error", "Step", False)]
    (freed,) = done.of("error_handler_lo") if mode == "webhook" else [None]
    assert freed is None or freed.status == "success"
    # n8n starts no error workflow for manual executions: there the lock ends with its TTL.
    assert http_lab_client.held() is (mode == "manual")


def test_retry_without_lock_over_http_a_kept_inline_execution_is_retried_unlocked(http_lab_client):
    """Chosen with --keep-failed-executions; the patch and `validate` warn about it."""
    made, _ = with_lock(must_stay(), http_lab_client.scope, error_workflow="tidy", transport="http", keep_failed=True)
    done = http_lab_client.run(made, items=ITEMS, node="Hook", mode="webhook", retries=1)
    assert [(one.last_node, one.saved) for one in outer(done)] == [("Step", True)] * 2
    assert len(done.of("lock_acquisition")) == 1


def count(lab_client, name="Count"):
    """Return a node that counts each item on the server: `allowed` is true once per scope."""
    value = {
        "scope": "={{ $('Start').item.json.counted ?? 'once' }}" + f"-{lab_client.scope}",
        "limit": 1,
        "windowSeconds": 10_000_000,
    }
    inputs = {"mappingMode": "defineBelow", "value": value, "matchingColumns": [], "schema": []}
    called = {"__rl": True, "mode": "id", "value": "{{@:env:workflows.rate_limit_check.id}}"}
    parameters = {"workflowId": called, "workflowInputs": inputs, "mode": "once", "options": {}}
    return node(name, "executeWorkflow", parameters, typeVersion=1.2)


TO_STEP = {"Start": [["Step"]], "Other": [["Step"]]}
#: A manual start, and a call by another workflow that reads the output.
STARTS = [START, node("Start", "executeWorkflowTrigger", {"inputSource": "passthrough"}, typeVersion=1.1)]


def fails_once(lab_client, start=START, n="1"):
    """Return a workflow that fails only the first time it runs with item `n`."""
    parameters = nodes.condition(KEY, "x", f"$json.allowed && $('Start').item.json.n == {n}", [0, 0])["parameters"]
    return workflow(
        start,
        node("Step", "noOp"),
        count(lab_client),
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
    """Return the order of acquires, starts and ends of bodies, and releases."""
    steps = [(one.finished, "acquire") for one in done.of("lock_acquisition")]
    steps += [(time, what) for one in body_of(done) for time, what in ((one.started, "in"), (one.finished, "out"))]
    steps += [(one.started, "release") for one in done.of("lock_release")]
    return [what for _, what in sorted(steps, key=lambda step: step[0])]


ROUND = ["acquire", "in", "out", "release"]


@pytest.mark.parametrize("start", STARTS, ids=["by-hand", "called"])
def test_retry_without_lock_over_http_a_retry_acquires_the_lock_again(http_lab_client, start):
    lab_client = http_lab_client
    done = lab_client.run(
        *with_lock(fails_once(lab_client, start), lab_client.scope, transport="http"), items=ITEMS, retries=1
    )
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
    assert not lab_client.held()


def test_retry_without_lock_over_http_a_retry_that_fails_can_be_retried_again(http_lab_client):
    throws = node("Throw", "code", {"jsCode": "throw new Error('A preexisting file')"}, typeVersion=2)
    plain = workflow(START, node("Step", "noOp"), throws)
    done = http_lab_client.run(*with_lock(plain, http_lab_client.scope, transport="http"), items=ITEMS, retries=2)
    messages = [one.message.replace("\u2060", "") for one in outer(done)]
    assert [message.partition(" [")[0] for message in messages] == ["A preexisting file"] * 3
    assert under_the_lock(done) == ROUND * 3
    assert not http_lab_client.held()


def test_retry_without_lock_over_http_no_execution_of_a_body_is_saved_for_retry(http_lab_client):
    """n8n saves only the failed caller, whose retry takes the lock."""
    made = with_lock(workflow(START, stop("broken")), http_lab_client.scope, transport="http")
    done = http_lab_client.run(*made, items=ITEMS, retries=1)
    assert {one.workflow_id for one in done.all if one.status == "error"} == {KEY, BODY, RETRY}
    assert {one.workflow_id for one in done.all if one.saved} == {KEY}
    assert made[0].settings["saveExecutionProgress"] is False  # so a crash leaves no partial execution to resume


OTHER = node("Other", "scheduleTrigger")
BODIES = {
    "one-trigger": workflow(START, node("Step", "noOp")),
    "two-triggers": workflow(START, OTHER, fields("Step", n="={{ $('Start').item.json.n }}"), links=TO_STEP),
}


@pytest.mark.parametrize("body", BODIES)
def test_retry_without_lock_over_http_a_body_retried_on_its_own_runs_no_node(http_lab_client, body):
    """n8n always saves executions of a lost worker and retries them from the start; there the body refuses to run."""
    made, others = with_lock(BODIES[body], http_lab_client.scope, transport="http")
    call = N8nWorkflow.parse(made.find("Locked Body").parameters["workflowJson"])
    del call.data["id"]  # the id of the body
    items = ITEMS if body == "one-trigger" else [{"json": {"trigger": 0, "sent": {"n": 1}}}]
    for mode, status in (("retry", "error"), ("manual", "success")):
        for started in (others[BODY], call):
            done = http_lab_client.run(started, others, items=items, node=started.triggers[0].name, mode=mode)
            assert (done.status, "Step" in done.runs or bool(body_of(done))) == (status, status == "success")
            assert mode != "retry" or "retry the locked workflow" in done.message
    assert not http_lab_client.held()


@pytest.mark.parametrize("start", STARTS, ids=["by-hand", "called"])
def test_retry_without_lock_over_http_a_per_item_lock_resumes_at_the_failed_item(http_lab_client, start):
    lab_client = http_lab_client
    given = [{"json": {"n": n, "counted": n}} for n in (1, 2, 3)]
    scope = f"={lab_client.scope}-{{{{ $json.n }}}}"
    made = with_lock(fails_once(lab_client, start, "2"), scope, transport="http", per_item=True)
    done = lab_client.run(*made, items=given, retries=1)
    assert [one.status for one in outer(done)] == ["error", "success"]
    assert [one.runs["Step"][0].items[0]["n"] for one in body_of(done)] == [1, 2, 2, 3]
    assert [one.items[0]["scope"] for one in done.of("lock_acquisition")] == [
        f"{lab_client.scope}-{n}" for n in (1, 2, 2, 3)
    ]
    assert under_the_lock(done) == ROUND * 4
    assert not any(lab_client.held(f"{lab_client.scope}-{n}") for n in (1, 2, 3))


def test_retry_without_lock_over_http_a_retry_starts_at_the_same_trigger(http_lab_client):
    lab_client = http_lab_client
    plain = workflow(
        START,
        node("Other", "scheduleTrigger"),
        node("One", "noOp"),
        node("Two", "noOp"),
        stop("broken"),
        links={"Start": [["One"]], "Other": [["Two"]], "One": [["Stop"]], "Two": [["Stop"]]},
    )
    done = lab_client.run(*with_lock(plain, lab_client.scope, transport="http"), items=ITEMS, node="Other", retries=1)
    assert [("Two" in one.runs, "One" in one.runs) for one in body_of(done)] == [(True, False)] * 2
    assert under_the_lock(done) == ROUND * 2


HOOK = node("Start", "webhook", {"responseMode": "responseNode"}, typeVersion=2)
REPLY = node("Answer", "respondToWebhook", {"respondWith": "allIncomingItems", "options": {}}, typeVersion=1.1)


def test_retry_without_lock_over_http_a_body_with_a_final_response_is_retried_under_the_lock(http_lab_client):
    """The response node stays in the caller, so that the rest can become a sub-workflow."""
    lab_client = http_lab_client
    once = {"mode": "raw", "jsonOutput": "={{ $json.allowed ? 'no object' : { done: true } }}", "options": {}}
    plain = workflow(HOOK, node("Step", "noOp"), count(lab_client), node("Broken", "set", once, typeVersion=3.4), REPLY)
    done = lab_client.run(*with_lock(plain, lab_client.scope, transport="http"), items=ITEMS, mode="webhook", retries=1)
    first, second = outer(done)
    assert (first.status, first.last_node, second.status) == ("error", "Raise Or Retry", "success")
    assert under_the_lock(done) == ROUND * 2
    assert ["Answer" in one.runs for one in (first, second)] == [False, False]  # the webhook request is already over
    assert [one.runs["Broken"][0].status for one in body_of(done)] == ["error", "success"]
    assert not lab_client.held()


def test_a_response_sent_after_the_release_is_unchanged(http_lab_client):
    each = {"mode": "raw", "jsonOutput": "={{ { n: $json.n, sent: $('Start').item.json.n } }}", "options": {}}
    step = node("Step", "set", each | {"options": {"includeBinary": True}}, typeVersion=3.3)
    texts = {"respondWith": "text", "responseBody": "={{ $json.n + $('Start').item.json.n }}", "options": {}}
    for reply in (REPLY, REPLY | {"parameters": texts}):
        plain = workflow(HOOK, step, reply)
        before = http_lab_client.run(plain, items=ITEMS, mode="webhook")
        done = http_lab_client.run(
            *with_lock(plain, http_lab_client.scope, transport="http"), items=ITEMS, mode="webhook"
        )
        assert (before.status, done.status) == ("success", "success")
        was, now = (one.runs["Answer"][0].outputs[0] for one in (before, done))
        assert [(item["json"], item.get("binary")) for item in now] == [(i["json"], i.get("binary")) for i in was]
        (given_back,) = done.of("lock_release")
        assert given_back.finished <= done.runs["Answer"][0].started
        assert not http_lab_client.held()


def unconfirmed(made, when="true", *, arrived=False):
    """Make the confirmation fail: the server is unreachable, or (`arrived`) it confirmed and the reply is lost."""
    flow, others = made
    confirm = flow.find("Lock Confirm").data
    url = confirm["parameters"]["url"]
    if arrived:
        flow.add({**copy.deepcopy(confirm), "id": "arrived", "name": "Arrived"})
        for source, target in (("Lock Acquire", "Arrived"), ("Arrived", "Lock Confirm")):
            flow.connections[source] = {"main": [[nodes.link_to(target)]]}
    server = "{{@:env:backstay.url}}"
    where = f"{{{{ {when} ? 'http://127.0.0.1:1' : '{server}' }}}}"
    confirm["parameters"]["url"] = url.replace(server, where)
    return flow, others


@pytest.mark.parametrize("arrived", [False, True], ids=["away", "arrived"])
@pytest.mark.parametrize("start", STARTS, ids=["by-hand", "called"])
def test_retry_without_lock_over_http_an_unconfirmed_grant_is_released_and_acquired_again(
    http_lab_client, start, arrived
):
    lab_client = http_lab_client
    plain = workflow(start, fields("Step", n="={{ $json.n + 1 }}"))
    made = unconfirmed(with_lock(plain, lab_client.scope, transport="http"), arrived=arrived)
    done = lab_client.run(*made, items=ITEMS, retries=1)
    first, second = outer(done)
    assert (first.status, first.last_node, second.status) == ("error", "Raise Or Retry", "success")
    assert "The lock was not confirmed" in first.message
    assert under_the_lock(done) == ["acquire", "release", *ROUND]
    assert [one.items[0]["execution_id"] for one in done.of("lock_acquisition")] == [first.id, second.id]
    assert [one.items[0]["idempotent"] for one in done.of("lock_release")] == [False, False]
    (body,) = body_of(done)
    assert body.runs["Start"][0].outputs[0][0]["binary"] == ITEMS[0]["binary"]
    assert not lab_client.held()


def test_retry_without_lock_over_http_a_failing_body_runs_once_per_retry_after_an_unconfirmed_grant(http_lab_client):
    lab_client = http_lab_client
    made = with_lock(workflow(START, node("Step", "noOp"), stop("broken")), lab_client.scope, transport="http")
    # Confirmations for the grant of an older execution succeed.
    when = "$('Lock Acquire').first().json.execution_id === $execution.id"
    done = lab_client.run(*unconfirmed(made, when), items=ITEMS, retries=2)
    assert [one.status for one in outer(done)] == ["error"] * 3
    assert under_the_lock(done) == ["acquire", "release", *ROUND, *ROUND]
    assert not lab_client.held()


@pytest.mark.parametrize("start", STARTS, ids=["by-hand", "called"])
def test_retry_without_lock_over_http_a_per_item_lock_resumes_at_the_unconfirmed_item(http_lab_client, start):
    lab_client = http_lab_client
    # Items with the same fields as the output of a body.
    given = [{"json": {"n": n, "ended": True, "result": {"n": n}}} for n in (1, 2, 3)]
    scope = f"={lab_client.scope}-{{{{ $json.n }}}}"
    made = with_lock(workflow(start, fields("Step", m="={{ $json.n }}")), scope, transport="http", per_item=True)
    when = "$('Lock Acquire').first().json.scope.endsWith('-2')"
    done = lab_client.run(*unconfirmed(made, when), items=given, retries=1)
    first, second = outer(done)
    assert (first.last_node, second.status) == ("Raise Or Retry", "success")
    assert [one.items[0]["m"] for one in body_of(done)] == ["1", "2", "3"]
    assert under_the_lock(done) == [*ROUND, "acquire", "release", *ROUND, *ROUND]
    assert not any(lab_client.held(f"{lab_client.scope}-{n}") for n in (1, 2, 3))


def _wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.05)


def _orphan(lab_client, transport):
    """Stop an execution while it waits for a lock that another one holds; then let the holder end."""
    sleep = node("Sleep", "wait", {"amount": 4, "unit": "seconds"}, typeVersion=1.1)
    made = with_lock(workflow(START, sleep, fields("Step", n="={{ 1 }}")), lab_client.scope, transport=transport)
    holder = lab_client.start(*made, items=ITEMS)
    _wait_until(lab_client.held)
    waiter = lab_client.start(*made, items=ITEMS)
    _wait_until(lambda: waiter.reached("Build Lock Context"))
    waiter.stop()
    assert holder.result().status == "success"
    return waiter.result()


def test_orphaned_waiter_over_redis_takes_a_lock_that_only_its_ttl_releases(lab_client):
    done = _orphan(lab_client, "redis")
    assert done.status == "canceled"
    _wait_until(lab_client.held)  # a documented limit: a stock node cannot detect that its caller was stopped


def test_orphaned_waiter_over_http_gets_a_grant_that_expires_unconfirmed(http_lab_client):
    wanted = f'confirm_seconds\\": {CONFIRM_SECONDS}'
    text = json.dumps(http_lab_client.primitives)
    assert wanted in text
    http_lab_client.primitives = json.loads(text.replace(wanted, 'confirm_seconds\\": 5'))
    done = _orphan(http_lab_client, "http")
    assert done.status == "canceled"
    assert "Lock Confirm" not in done.runs
    _wait_until(lambda: not http_lab_client.held())
