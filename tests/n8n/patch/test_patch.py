"""Which wiring the patch chooses, what it refuses and why; no engine runs here."""

from __future__ import annotations

import copy
import time
from dataclasses import replace

import pytest
from patched import CORPUS

from backstay import PatchRefused
from backstay.n8n.model import N8nWorkflow
from backstay.n8n.patch.patch import (
    LimitOptions,
    LockOptions,
    add_limit,
    add_lock,
    read_limit_options,
    read_lock_options,
    remove_limit,
    remove_lock,
)
from support.n8n.workflows import ANSWERS, LINE, START, STEADY, STEP, node, workflow

LOCK = LockOptions(scope="={{ 'orders' }}")
LIMIT = LimitOptions(scope="={{ 'orders' }}", limit=3, window_seconds=60)


@pytest.mark.parametrize(
    ("given", "options", "why"),
    [
        (workflow(STEP), LOCK, "no enabled trigger"),
        (workflow(node("Start", "manualTrigger", disabled=True), STEP), LOCK, "no enabled trigger"),
        (workflow(node("Note", "stickyNote"), STEP), LOCK, "no enabled trigger"),
        (workflow(START), LOCK, "no node follows"),
        (workflow(START, STEP, copy.deepcopy(STEP)), LOCK, "two nodes are named 'Step'"),
        (workflow(START, STEP), LockOptions(scope=" "), "scope is empty"),
        (workflow(START, STEP), LockOptions(scope="x", ttl_seconds=0), "ttl_seconds is 0"),
        (workflow(START, STEP), LockOptions(scope="x", max_wait_seconds=-1), "max_wait_seconds"),
        (workflow(START, STEP), LockOptions(scope="x", ttl_seconds=315_360_001), "ttl_seconds is 315360001"),
        (workflow(START, STEP), LockOptions(scope="x", max_wait_seconds=315_360_001), "max_wait_seconds is 315360001"),
        (workflow(START, node("Lock Acquire", "noOp")), LOCK, "wired by hand"),
        (workflow(START, node("Take", "redis", {"operation": "incr", "key": "n8n-lock-x"})), LOCK, "wired by hand"),
        (
            workflow(START, node("Take", "executeWorkflow", {"workflowId": "{{@:env:workflows.lock_release.id}}"})),
            LOCK,
            "hand",
        ),
        (workflow(*ANSWERS), LOCK, "responds to the workflow's caller"),
        (workflow(START, node("Step", "code", {"jsCode": "$getWorkflowStaticData('global')"})), LOCK, "static data"),
        (workflow(START, STEP, links={"Start": [["Step"]], "Step": [["Gone"]]}), LOCK, "no node has that name"),
        (workflow(START, STEP, meta={"backstay": {"primitive": "lock_release"}}), LOCK, "Backstay's own"),
        (workflow(START, STEP, meta={"backstay": {"retry_of": "x"}}), LOCK, "Backstay's own"),
        (workflow(START, STEP, meta={"backstay": {"version": 99, "later": {}}}), LOCK, "meta.backstay"),
        (workflow(START, STEP, meta={"backstay": {"version": 99, "later": {}}}), LIMIT, "meta.backstay"),
        (workflow(START, STEP, meta={"backstay": "a note"}), LOCK, "meta.backstay"),
        (workflow(START, node("Locked Body", "code")), LOCK, "already has a node named 'Locked Body'"),
        (workflow(START, STEP, node("Lock Gate", "noOp")), LOCK, "already has a node named 'Lock Gate'"),
        (
            workflow(node("Start", "webhook"), STEP, STEADY, links={"Start": [["Step"], ["Steady"]]}),
            LOCK,
            "several outputs",
        ),
        (workflow(START, STEP), LimitOptions(scope="x", limit=0, window_seconds=1), "limit is 0"),
        (workflow(START, STEP), LimitOptions(scope="x", limit=1, window_seconds=0), "window_seconds is 0"),
        (workflow(START, STEP), LimitOptions(scope="x", limit=1_000_000_001, window_seconds=1), "limit is 1000000001"),
        (workflow(START, STEP), LimitOptions(scope="x", limit=1, window_seconds=315_360_001), "window_seconds is 31"),
        (workflow(START, node("Rate Limit Check", "noOp")), LIMIT, "wired by hand"),
    ],
)
def test_a_workflow_that_cannot_be_patched_correctly_is_refused_unchanged(given, options, why):
    before = given.text()
    with pytest.raises(PatchRefused, match=why):
        (add_lock if isinstance(options, LockOptions) else add_limit)(given, "w", options)
    assert given.text() == before


def test_adding_a_second_lock_or_removing_a_missing_one_is_refused():
    plain = workflow(START, STEP)
    both = add_limit(add_lock(plain, "w", LOCK).workflow, "w", LIMIT).workflow
    with pytest.raises(PatchRefused, match="already has a lock"):
        add_lock(both, "w", LockOptions(scope="other"))
    with pytest.raises(PatchRefused, match="already has a limit"):
        add_limit(both, "w", LIMIT)
    with pytest.raises(PatchRefused, match="no lock"):
        remove_lock(plain, "w", {})
    with pytest.raises(PatchRefused, match="no rate limit"):
        remove_limit(plain, "w", {})
    with pytest.raises(PatchRefused, match="the body is the workflow 'w_body'"):
        remove_lock(both, "w", {})


def test_the_patch_records_its_options():
    options = LockOptions("={{ 'a' }}", 60, 5, fail_fast=True, transport="http", per_item=True, error_workflow="tidy")
    both = add_limit(add_lock(workflow(START, STEP), "w", options).workflow, "w", LIMIT).workflow
    again = N8nWorkflow.parse(both.text())
    assert (read_lock_options(again), read_limit_options(again)) == (options, LIMIT)
    assert (read_lock_options(workflow(START)), read_limit_options(workflow(START))) == (None, None)


@pytest.mark.parametrize(
    ("given", "wiring", "why"),
    [
        (workflow(START, STEADY), "inline", "linear chain"),
        (workflow(START, node("Set", "set", {"value": "a"}), STEADY), "inline", "linear chain"),
        (workflow(START, node("Step", "code", disabled=True), STEADY), "inline", "linear chain"),
        (
            workflow(START, node("Go on", "code", onError="continueRegularOutput", alwaysOutputData=True)),
            "inline",
            "linear chain",
        ),
        (workflow(START, node("Set", "set", {"value": "={{ $json.a }}"})), "sub-workflow", "may fail"),
        (workflow(START, STEP), "sub-workflow", "may emit no items"),
        (workflow(START, node("If", "if"), STEADY), "sub-workflow", "split into several"),
        (workflow(START, STEADY, STEP, links={"Start": [["Steady", "Step"]]}), "sub-workflow", "parallel branches"),
        (workflow(START, STEADY, links={"Start": [["Steady"]], "Steady": [["Steady"]]}), "sub-workflow", "a loop"),
    ],
)
def test_the_patch_picks_the_simplest_correct_wiring_and_reports_why(given, wiring, why):
    patched = add_lock(given, "w", LOCK)
    assert patched.wiring == wiring
    assert why in patched.why
    assert set(patched.others) == ({"w_body"} if wiring == "sub-workflow" else set())
    assert patched.static_scope == "orders"


def test_a_responding_body_stays_inline_when_an_error_workflow_releases_a_static_scope():
    response = workflow(*ANSWERS)
    patched = add_lock(response, "w", LockOptions(scope="={{ 'x' }}", error_workflow="tidy"))
    assert patched.wiring == "inline"
    assert patched.workflow.settings["errorWorkflow"] == "{{@:env:workflows.tidy.id}}"
    assert "does not run it for manual executions" in patched.warnings[0]
    with pytest.raises(PatchRefused, match="responds to the workflow's caller"):
        add_lock(response, "w", LockOptions(scope="={{ $json.body.id }}", error_workflow="tidy"))


def test_a_body_that_becomes_a_sub_workflow_is_warned_about_execution_ids_and_long_waits():
    sleep = node("Sleep", "wait", {"amount": "={{ $json.pause }}"})
    reads = workflow(START, node("Set", "set", {"v": "={{ $execution.id }}"}), sleep)
    warnings = add_lock(reads, "w", LOCK).warnings
    assert [warning.split(":")[0] for warning in warnings] == [
        "'Set' reads $execution.id",
        "'Sleep' must not wait for 65 s or more",
    ]


SUSPENDING = [
    ("wait", {"amount": 65, "unit": "seconds"}),
    ("wait", {"amount": 2, "unit": "minutes"}),
    ("wait", {"resume": "webhook"}),
    ("wait", {"resume": "form"}),
    ("slack", {"operation": "sendAndWait"}),
]


@pytest.mark.parametrize(("kind", "parameters"), SUSPENDING)
def test_a_body_that_n8n_would_suspend_does_not_become_a_sub_workflow(kind, parameters):
    """n8n does not report the failure of a suspended sub-workflow to its caller."""
    pause = node("Pause", kind, parameters, typeVersion=1.1, alwaysOutputData=True)
    may_fail = workflow(START, node("Set", "set", {"v": "={{ $json.n }}"}), pause)
    with pytest.raises(PatchRefused, match=r"suspends a sub-workflow.*less than 65 s.*--lock-on-error"):
        add_lock(may_fail, "w", LOCK)
    with pytest.raises(PatchRefused, match="suspends a sub-workflow"):
        add_lock(may_fail, "w", LockOptions(scope="={{ $json.id }}", error_workflow="tidy"))
    with pytest.raises(PatchRefused, match="suspends a sub-workflow"):
        add_lock(workflow(START, node("Way", "if"), pause), "w", LockOptions(scope="x", error_workflow="tidy"))
    stays = add_lock(may_fail, "w", LockOptions(scope="x", error_workflow="tidy"))
    assert (stays.wiring, stays.others) == ("inline", {})


def test_a_waiting_body_that_cannot_fail_stays_inline_however_long_it_waits():
    sleeps = workflow(START, node("Sleep", "wait", {"amount": 2, "unit": "hours"}, typeVersion=1.1))
    assert add_lock(sleeps, "w", LOCK).wiring == "inline"


def test_over_http_clean_up_needs_no_static_scope():
    response = workflow(*ANSWERS)
    options = LockOptions(scope="={{ $json.body.id }}", error_workflow="tidy", transport="http", in_place=True)
    assert add_lock(response, "w", options).wiring == "inline"


def test_over_http_every_movable_body_becomes_a_sub_workflow_so_that_a_retry_takes_the_lock():
    steady = workflow(START, STEADY)
    patched = add_lock(steady, "w", LockOptions(scope="x", transport="http"))
    assert (patched.wiring, set(patched.others)) == ("sub-workflow", {"w_body", "w_retry"})
    assert "would resume without the lock" in patched.why
    body, retry = (patched.others[key].settings for key in ("w_body", "w_retry"))
    assert (body["saveDataErrorExecution"], body["saveExecutionProgress"]) == ("none", False)
    assert (retry["saveDataErrorExecution"], retry["saveExecutionProgress"]) == ("none", False)
    assert "saveDataErrorExecution" not in patched.workflow.settings
    back = remove_lock(patched.workflow, "w", patched.others)
    assert (back.workflow.text(), set(back.gone)) == (steady.text(), {"w_body", "w_retry"})


@pytest.mark.parametrize("transport", ["redis", "http"])
def test_a_response_at_the_end_of_a_chain_is_sent_after_the_release(transport):
    plain = workflow(*LINE)
    patched = add_lock(plain, "w", LockOptions(scope="={{ $json.body.id }}", transport=transport))
    assert (patched.wiring, "'Answer' responds after the release" in patched.why) == ("sub-workflow", True)
    assert [each.name for each in patched.others["w_body"].nodes][-1] == "Step"
    assert patched.others["w_body"].find("Answer") is None
    assert "Step" not in patched.others["w_body"].connections
    assert [edge.source for edge in patched.workflow.entering("Answer")] == ["Body Result"]
    assert "saveDataErrorExecution" not in patched.workflow.settings
    assert remove_lock(patched.workflow, "w", patched.others).workflow.text() == plain.text()
    both = add_limit(patched.workflow, "w", LIMIT).workflow
    assert remove_lock(both, "w", patched.others).workflow.text() == add_limit(plain, "w", LIMIT).workflow.text()


@pytest.mark.parametrize(
    "given",
    [
        workflow(*LINE[:2], node("Answer", "respondToWebhook", {"v": "={{ $('Step').first().json.n }}"})),
        workflow(*LINE[:2], node("Answer", "respondToWebhook", {"v": "={{ $prevNode.name }}"})),
        workflow(*LINE, node("More", "noOp")),
        workflow(LINE[0], LINE[2]),
        workflow(LINE[0], node("Wait", "wait", {"resume": "webhook"}), LINE[2]),
        workflow(*LINE, node("Late", "noOp"), links={"Hook": [["Step", "Late"]], "Step": [["Answer"]]}),
        workflow(*LINE, LINE[2] | {"name": "B"}, links={"Hook": [["Step"]], "Step": [["Answer", "B"]]}),
    ],
    ids=["reads-the-body", "reads-what-is-before", "not-last", "alone", "waits", "another-branch", "two-answers"],
)
def test_a_response_elsewhere_in_the_body_is_refused(given):
    with pytest.raises(PatchRefused, match=r"responds to the workflow's caller|suspends"):
        add_lock(given, "w", LOCK)


def test_nodes_appended_to_a_body_whose_response_is_outside_survive_the_removal():
    plain = workflow(*LINE)
    patched = add_lock(plain, "w", LOCK)
    body = patched.others["w_body"].copy()
    body.add(node("New", "noOp"))
    body.connections["Step"] = {"main": [[{"node": "New", "type": "main", "index": 0}]]}
    back = remove_lock(patched.workflow, "w", {"w_body": body}).workflow
    assert [edge.target for edge in back.leaving("Step")] == ["New", "Answer"]
    alone = patched.workflow.copy()
    alone.remove("Answer")
    assert remove_lock(alone, "w", patched.others).workflow.leaving("Step") == []


def test_a_chain_that_may_lose_items_to_an_error_output_does_not_stay_inline():
    """No node would run after it: the execution would succeed without releasing the lock."""
    loses = node("Set", "set", {"v": "={{ 1 }}"}, onError="continueErrorOutput")
    with pytest.raises(PatchRefused, match="split into several"):
        add_lock(workflow(*ANSWERS[:2], loses), "w", LockOptions(scope="x", error_workflow="tidy"))


def test_a_disabled_trigger_is_not_locked_and_reported():
    given = N8nWorkflow.parse((CORPUS / "disabled_nodes.json").read_bytes())
    patched = add_lock(given, "w", LOCK)
    assert "'Old Hook' is disabled" in patched.warnings[0]
    assert [edge.source for edge in patched.workflow.entering("Lock Acquire")] == ["Start"]


def test_the_body_keeps_its_timeout_and_the_callers_is_extended_by_the_wait():
    timed = workflow(START, STEP, settings={"executionTimeout": 300, "errorWorkflow": "x", "callerPolicy": "any"})
    patched = add_lock(timed, "w", LockOptions(scope="x", max_wait_seconds=30))
    assert patched.others["w_body"].settings == {"executionTimeout": 300}
    assert patched.workflow.settings["executionTimeout"] == 300 + 30 + 60


def test_edits_made_after_the_patch_survive_its_removal():
    plain = workflow(START, STEP, STEADY)
    patched = add_lock(plain, "w", LOCK)
    body = patched.others["w_body"].copy()
    body.find("Step").data["parameters"]["jsCode"] = "return []"
    body.add(node("New", "noOp"))
    body.connections["Steady"] = {"main": [[{"node": "New", "type": "main", "index": 0}]]}
    back = remove_lock(patched.workflow, "w", {"w_body": body}).workflow
    assert [each.name for each in back.nodes] == ["Start", "Step", "Steady", "New"]
    assert back.find("Step").parameters == {"jsCode": "return []"}
    assert [edge.target for edge in back.leaving("Steady")] == ["New"]
    assert "meta" not in back.data


def test_settings_changed_after_the_patch_survive_its_removal():
    timed = workflow(START, STEP, settings={"executionTimeout": 300})
    patched = add_lock(timed, "w", LockOptions(scope="x", error_workflow="tidy"))
    patched.workflow.data["settings"] |= {"executionTimeout": 7, "errorWorkflow": "other"}
    back = remove_lock(patched.workflow, "w", patched.others).workflow
    assert back.settings == {"executionTimeout": 7, "errorWorkflow": "other"}


def test_a_limit_is_checked_before_the_lock_whichever_was_added_first():
    plain = workflow(START, STEP)
    one = add_limit(add_lock(plain, "w", LOCK).workflow, "w", LIMIT).workflow
    two = add_lock(add_limit(plain, "w", LIMIT).workflow, "w", LOCK).workflow
    assert one.text() == two.text()
    assert {edge.target for edge in one.leaving("Start")} == {"Rate Limit Check", "Rate Limit Gate"}
    assert {edge.source for edge in one.entering("Lock Acquire")} == {"Rate Limit Allowed?", "Rate Limit Denied"}


@pytest.mark.parametrize("scope", ["orders:meta", "={{ 'orders:meta' }}", "={{ $json.id }}:meta"])
def test_a_scope_that_collides_with_an_identity_key_is_a_warning(scope):
    assert any(":meta" in line for line in add_lock(workflow(*LINE), "w", LockOptions(scope)).warnings)


@pytest.mark.parametrize("name", ["Orders", "n" * 120, "ü" * 128, ""])
def test_generated_workflows_have_names_that_n8n_accepts(name):
    """n8n accepts names of up to 128 characters."""
    done = add_lock(workflow(START, STEP, name=name), "k", replace(LOCK, transport="http"))
    names = [done.others[key].name for key in ("k_body", "k_retry")]
    assert [len(one) <= 128 for one in names] == [True, True]
    for one, end in zip(names, (" (locked body)", " (locked retry)"), strict=True):
        assert one.endswith(end)
        assert name.startswith(one.removesuffix(end).rstrip("…"))


@pytest.mark.timed
def test_a_workflow_of_thousands_of_nodes_is_patched_in_seconds():
    steps = [node(f"Step {n}", "noOp", position=[220 * n, 0]) for n in range(3000)]
    begun = time.monotonic()
    add_lock(workflow(START, *steps), "k", LOCK)
    assert time.monotonic() - begun < 10
