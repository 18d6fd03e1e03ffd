"""What weaving decides, what it refuses and why, before any engine runs."""

from __future__ import annotations

import copy
import itertools
import json
import time
from dataclasses import replace

import pytest
from woven import CORPUS

from backstay import PatchRefused
from backstay.n8n.model import Workflow
from backstay.n8n.patch.patch import (
    LimitOptions,
    LockOptions,
    add_limit,
    add_lock,
    limits_of,
    locks_of,
    remove_limit,
    remove_lock,
)

LOCK = LockOptions(scope="={{ 'orders' }}")
LIMIT = LimitOptions(scope="={{ 'orders' }}", limit=3, window_seconds=60)


def node(name, kind, parameters=None, **more):
    kind = kind if "." in kind else f"n8n-nodes-base.{kind}"
    made = {"parameters": parameters or {}, "id": name, "name": name, "type": kind, "typeVersion": 1}
    return {**made, "position": [0, 0], **more}


def workflow(*nodes, links=None, **more):
    """In a line, where nothing else is said."""
    names = [each["name"] for each in nodes]
    links = links or {one: [[two]] for one, two in itertools.pairwise(names)}
    edges = {
        source: {"main": [[{"node": to, "type": "main", "index": 0} for to in targets] for targets in outputs]}
        for source, outputs in links.items()
    }
    return Workflow.parse(json.dumps({"name": "w", "nodes": list(nodes), "connections": edges, **more}))


START = node("Start", "manualTrigger")
STEP = node("Step", "code")
STEADY = node("Steady", "noOp")
#: It answers in its midst, so it must stay.
ANSWERS = [node("Hook", "webhook"), node("Answer", "respondToWebhook"), node("Set", "set", {"v": "={{ 1 }}"})]


@pytest.mark.parametrize(
    ("given", "options", "why"),
    [
        (workflow(STEP), LOCK, "no trigger"),
        (workflow(node("Start", "manualTrigger", disabled=True), STEP), LOCK, "no trigger"),
        (workflow(node("Note", "stickyNote"), STEP), LOCK, "no trigger"),
        (workflow(START), LOCK, "nothing follows"),
        (workflow(START, STEP, copy.deepcopy(STEP)), LOCK, "two nodes are named 'Step'"),
        (workflow(START, STEP), LockOptions(scope=" "), "scope is empty"),
        (workflow(START, STEP), LockOptions(scope="x", ttl_seconds=0), "ttl_seconds is 0"),
        (workflow(START, STEP), LockOptions(scope="x", max_wait_seconds=-1), "max_wait_seconds"),
        (workflow(START, STEP), LockOptions(scope="x", ttl_seconds=315_360_001), "ttl_seconds is 315360001"),
        (workflow(START, STEP), LockOptions(scope="x", max_wait_seconds=315_360_001), "max_wait_seconds is 315360001"),
        (workflow(START, node("Lock Acquire", "noOp")), LOCK, "made by hand"),
        (workflow(START, node("Take", "redis", {"operation": "incr", "key": "n8n-lock-x"})), LOCK, "made by hand"),
        (
            workflow(START, node("Take", "executeWorkflow", {"workflowId": "{{@:env:workflows.lock_release.id}}"})),
            LOCK,
            "hand",
        ),
        (workflow(*ANSWERS), LOCK, "answers whoever called"),
        (workflow(START, node("Step", "code", {"jsCode": "$getWorkflowStaticData('global')"})), LOCK, "static data"),
        (workflow(START, STEP, links={"Start": [["Step"]], "Step": [["Gone"]]}), LOCK, "no such node"),
        (workflow(START, STEP, meta={"backstay": {"primitive": "lock_release"}}), LOCK, "Backstay's own"),
        (workflow(START, STEP, meta={"backstay": {"retry_of": "x"}}), LOCK, "Backstay's own"),
        (workflow(START, STEP, meta={"backstay": {"version": 99, "later": {}}}), LOCK, "meta.backstay"),
        (workflow(START, STEP, meta={"backstay": {"version": 99, "later": {}}}), LIMIT, "meta.backstay"),
        (workflow(START, STEP, meta={"backstay": "a note"}), LOCK, "meta.backstay"),
        (workflow(START, node("Locked Body", "code")), LOCK, "a node named 'Locked Body' already"),
        (workflow(START, STEP, node("Lock Gate", "noOp")), LOCK, "a node named 'Lock Gate' already"),
        (
            workflow(node("Start", "webhook"), STEP, STEADY, links={"Start": [["Step"], ["Steady"]]}),
            LOCK,
            "several outputs",
        ),
        (workflow(START, STEP), LimitOptions(scope="x", limit=0, window_seconds=1), "limit is 0"),
        (workflow(START, STEP), LimitOptions(scope="x", limit=1, window_seconds=0), "window_seconds is 0"),
        (workflow(START, STEP), LimitOptions(scope="x", limit=1_000_000_001, window_seconds=1), "limit is 1000000001"),
        (workflow(START, STEP), LimitOptions(scope="x", limit=1, window_seconds=315_360_001), "window_seconds is 31"),
        (workflow(START, node("Rate Limit Check", "noOp")), LIMIT, "made by hand"),
    ],
)
def test_it_refuses_what_it_cannot_do_right(given, options, why):
    before = given.text()
    with pytest.raises(PatchRefused, match=why):
        (add_lock if isinstance(options, LockOptions) else add_limit)(given, "w", options)
    assert given.text() == before


def test_a_second_lock_or_limit_is_refused_and_so_is_taking_off_what_is_not_there():
    plain = workflow(START, STEP)
    both = add_limit(add_lock(plain, "w", LOCK).workflow, "w", LIMIT).workflow
    with pytest.raises(PatchRefused, match="has a lock already"):
        add_lock(both, "w", LockOptions(scope="other"))
    with pytest.raises(PatchRefused, match="has a limit already"):
        add_limit(both, "w", LIMIT)
    with pytest.raises(PatchRefused, match="no lock"):
        remove_lock(plain, "w", {})
    with pytest.raises(PatchRefused, match="no rate limit"):
        remove_limit(plain, "w", {})
    with pytest.raises(PatchRefused, match="its body is the workflow 'w_body'"):
        remove_lock(both, "w", {})


def test_it_says_what_was_asked_for():
    options = LockOptions("={{ 'a' }}", 60, 5, fail_fast=True, transport="http", per_item=True, error_workflow="tidy")
    both = add_limit(add_lock(workflow(START, STEP), "w", options).workflow, "w", LIMIT).workflow
    again = Workflow.parse(both.text())
    assert (locks_of(again), limits_of(again)) == (options, LIMIT)
    assert (locks_of(workflow(START)), limits_of(workflow(START))) == (None, None)


@pytest.mark.parametrize(
    ("given", "wiring", "why"),
    [
        (workflow(START, STEADY), "inline", "one line"),
        (workflow(START, node("Set", "set", {"value": "a"}), STEADY), "inline", "one line"),
        (workflow(START, node("Step", "code", disabled=True), STEADY), "inline", "one line"),
        (
            workflow(START, node("Go on", "code", onError="continueRegularOutput", alwaysOutputData=True)),
            "inline",
            "one line",
        ),
        (workflow(START, node("Set", "set", {"value": "={{ $json.a }}"})), "sub-workflow", "may fail"),
        (workflow(START, STEP), "sub-workflow", "may give no items"),
        (workflow(START, node("If", "if"), STEADY), "sub-workflow", "go several ways"),
        (workflow(START, STEADY, STEP, links={"Start": [["Steady", "Step"]]}), "sub-workflow", "parallel branches"),
        (workflow(START, STEADY, links={"Start": [["Steady"]], "Steady": [["Steady"]]}), "sub-workflow", "a loop"),
    ],
)
def test_the_wiring_is_the_simplest_that_is_right_and_it_says_why(given, wiring, why):
    woven = add_lock(given, "w", LOCK)
    assert woven.wiring == wiring
    assert why in woven.why
    assert set(woven.others) == ({"w_body"} if wiring == "sub-workflow" else set())
    assert woven.static_scope == "orders"


def test_a_body_that_answers_stays_where_it_is_when_an_error_workflow_frees_a_fixed_scope():
    answer = workflow(*ANSWERS)
    woven = add_lock(answer, "w", LockOptions(scope="={{ 'x' }}", error_workflow="tidy"))
    assert woven.wiring == "inline"
    assert woven.workflow.settings["errorWorkflow"] == "{{@:env:workflows.tidy.id}}"
    assert "does not run it for manual executions" in woven.warnings[0]
    with pytest.raises(PatchRefused, match="answers whoever called"):
        add_lock(answer, "w", LockOptions(scope="={{ $json.body.id }}", error_workflow="tidy"))


def test_a_body_is_warned_that_its_ids_are_the_sub_workflows():
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
    """Its caller would not hear of a failure."""
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


def test_a_body_that_waits_and_cannot_fail_stays_where_it_is_however_long_it_waits():
    sleeps = workflow(START, node("Sleep", "wait", {"amount": 2, "unit": "hours"}, typeVersion=1.1))
    assert add_lock(sleeps, "w", LOCK).wiring == "inline"


def test_over_http_clean_up_needs_no_fixed_scope():
    answer = workflow(*ANSWERS)
    options = LockOptions(scope="={{ $json.body.id }}", error_workflow="tidy", transport="http", in_place=True)
    assert add_lock(answer, "w", options).wiring == "inline"


def test_over_http_every_body_that_can_moves_so_that_a_retry_takes_the_lock():
    steady = workflow(START, STEADY)
    woven = add_lock(steady, "w", LockOptions(scope="x", transport="http"))
    assert (woven.wiring, set(woven.others)) == ("sub-workflow", {"w_body", "w_retry"})
    assert "without its lock when n8n retries" in woven.why
    body, retry = (woven.others[key].settings for key in ("w_body", "w_retry"))
    assert (body["saveDataErrorExecution"], body["saveExecutionProgress"]) == ("none", False)
    assert (retry["saveDataErrorExecution"], retry["saveExecutionProgress"]) == ("none", False)
    assert "saveDataErrorExecution" not in woven.workflow.settings
    back = remove_lock(woven.workflow, "w", woven.others)
    assert (back.workflow.text(), set(back.gone)) == (steady.text(), {"w_body", "w_retry"})


LINE = [
    node("Hook", "webhook"),
    node("Step", "code", {"jsCode": "return $input.all()"}),
    node("Answer", "respondToWebhook", {"v": "={{ $json.n }}"}),
]


@pytest.mark.parametrize("transport", ["redis", "http"])
def test_an_answer_that_ends_a_line_is_given_behind_the_release(transport):
    plain = workflow(*LINE)
    woven = add_lock(plain, "w", LockOptions(scope="={{ $json.body.id }}", transport=transport))
    assert (woven.wiring, "'Answer' answers behind the release" in woven.why) == ("sub-workflow", True)
    assert [each.name for each in woven.others["w_body"].nodes][-1] == "Step"
    assert woven.others["w_body"].find("Answer") is None
    assert "Step" not in woven.others["w_body"].connections
    assert [edge.source for edge in woven.workflow.entering("Answer")] == ["Body Result"]
    assert "saveDataErrorExecution" not in woven.workflow.settings
    assert remove_lock(woven.workflow, "w", woven.others).workflow.text() == plain.text()
    both = add_limit(woven.workflow, "w", LIMIT).workflow
    assert remove_lock(both, "w", woven.others).workflow.text() == add_limit(plain, "w", LIMIT).workflow.text()


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
def test_any_other_answer_stays_with_its_body_or_is_refused(given):
    with pytest.raises(PatchRefused, match=r"answers whoever called|suspends"):
        add_lock(given, "w", LOCK)


def test_what_was_tied_to_the_end_of_a_body_whose_answer_stayed_outside_is_kept():
    plain = workflow(*LINE)
    woven = add_lock(plain, "w", LOCK)
    body = woven.others["w_body"].copy()
    body.add(node("New", "noOp"))
    body.connections["Step"] = {"main": [[{"node": "New", "type": "main", "index": 0}]]}
    back = remove_lock(woven.workflow, "w", {"w_body": body}).workflow
    assert [edge.target for edge in back.leaving("Step")] == ["New", "Answer"]
    alone = woven.workflow.copy()
    alone.remove("Answer")
    assert remove_lock(alone, "w", woven.others).workflow.leaving("Step") == []


def test_a_line_that_may_lose_items_to_an_error_output_does_not_stay_in_its_place():
    """Behind it nothing would run, the execution would end well, and nobody would free the lock."""
    loses = node("Set", "set", {"v": "={{ 1 }}"}, onError="continueErrorOutput")
    with pytest.raises(PatchRefused, match="go several ways"):
        add_lock(workflow(*ANSWERS[:2], loses), "w", LockOptions(scope="x", error_workflow="tidy"))


NO_LOCK = "start it anew: n8n's retry goes on at the node that failed, without the lock"


#: Bodies that cannot move, the node that holds each of them, and a way out of it.
HELD = {
    "answers": (workflow(*ANSWERS), "'Answer' answers whoever called", "When Last Node Finishes"),
    "static-data": (
        workflow(START, node("Step", "code", {"jsCode": "$getWorkflowStaticData('global')"}, alwaysOutputData=True)),
        "'Step' uses the workflow's static data",
        "without it",
    ),
    "waits-long": (
        workflow(START, node("Set", "set", {"v": "={{ 1 }}"}), node("Pause", "wait", {"amount": 2, "unit": "hours"})),
        "'Pause' waits",
        "less than 65 s",
    ),
    "waits-and-cannot-fail": (
        workflow(START, node("Pause", "wait", {"amount": 2, "unit": "hours"}, typeVersion=1.1)),
        "'Pause' waits",
        "less than 65 s",
    ),
}
OVER_HTTP = LockOptions(scope="x", error_workflow="tidy", transport="http")


@pytest.mark.parametrize("held", HELD)
def test_over_http_a_body_that_must_stay_in_its_place_is_refused_until_somebody_accepts_it(held):
    plain, holds, way_out = HELD[held]
    with pytest.raises(PatchRefused) as refused:
        add_lock(plain, "w", OVER_HTTP)
    said = str(refused.value)
    for part in (holds, "stay in its place", "queue mode", "without the lock", way_out, "redis", "--in-place"):
        assert part in said
    for accepted in (replace(OVER_HTTP, in_place=True), replace(OVER_HTTP, keep_failed=True)):
        woven = add_lock(plain, "w", accepted)
        assert (woven.wiring, woven.others) == ("inline", {})
        assert any("without the lock" in line for line in woven.warnings)
        assert not any("changes nothing here" in line for line in woven.warnings)
        assert locks_of(Workflow.parse(woven.workflow.text())) == accepted
        assert remove_lock(Workflow.parse(woven.workflow.text()), "w", {}).workflow.text() == plain.text()
        with pytest.raises(PatchRefused, match="has a lock already"):
            add_lock(woven.workflow, "w", accepted)


def test_over_http_what_in_place_alone_would_not_help_is_told_all_at_once():
    """Without clean-up, for each item, or where the line branches, the body can neither stay nor move."""
    answers, branches = workflow(*ANSWERS), workflow(*ANSWERS[:2], node("Way", "if"))
    for plain, options in (
        (answers, replace(OVER_HTTP, error_workflow="")),
        (branches, OVER_HTTP),
    ):
        for accepted in (False, True):
            with pytest.raises(PatchRefused, match=r"'Answer' answers .* --lock-on-error and --in-place"):
                add_lock(plain, "w", replace(options, in_place=accepted))
    for accepted in (False, True):
        with pytest.raises(PatchRefused, match=r"it is asked for each item.*'Answer' answers.*without --per-item"):
            add_lock(answers, "w", replace(OVER_HTTP, per_item=True, in_place=accepted))


def test_over_redis_a_body_stays_in_its_place_as_before():
    woven = add_lock(workflow(*ANSWERS), "w", replace(OVER_HTTP, transport="redis"))
    assert woven.wiring == "inline"
    assert NO_LOCK in woven.warnings[-1]


@pytest.mark.parametrize("first", ["limit", "lock"])
def test_a_body_in_its_place_takes_a_limit_as_well_in_any_order(first):
    plain, accepted = workflow(*ANSWERS), replace(OVER_HTTP, in_place=True)
    limit = replace(LIMIT, transport="http")
    limited = add_limit(plain, "w", limit).workflow
    with pytest.raises(PatchRefused, match=r"'Answer' .*--in-place"):
        add_lock(limited, "w", OVER_HTTP)
    locked = add_lock(plain, "w", accepted).workflow
    both = add_lock(limited, "w", accepted) if first == "limit" else add_limit(locked, "w", limit)
    assert remove_lock(both.workflow, "w", {}).workflow.text() == limited.text()
    assert remove_limit(both.workflow, "w", {}).workflow.text() == locked.text()


def test_a_lock_in_its_place_that_was_placed_before_it_had_to_be_accepted_comes_off_to_the_letter():
    plain = workflow(*ANSWERS)
    woven = add_lock(plain, "w", replace(OVER_HTTP, in_place=True)).workflow
    del woven.data["meta"]["backstay"]["lock"]["options"]["in_place"]
    older = Workflow.parse(woven.text())
    assert locks_of(older) == OVER_HTTP
    assert remove_lock(older, "w", {}).workflow.text() == plain.text()


@pytest.mark.parametrize("settings", [{}, {"saveDataErrorExecution": "all", "timezone": "UTC"}, None])
def test_over_http_nothing_is_kept_of_a_body_that_must_stay_so_that_nothing_can_be_retried(settings):
    given = {"settings": settings} if settings is not None else {}
    plain = workflow(*ANSWERS, **given)
    woven = add_lock(plain, "w", replace(OVER_HTTP, in_place=True))
    assert woven.wiring == "inline"
    kept = ("saveDataErrorExecution", "saveManualExecutions", "saveExecutionProgress")
    assert [woven.workflow.settings[name] for name in kept] == ["none", False, False]
    assert "keeps none of its failed executions" in woven.warnings[-1]
    assert remove_lock(woven.workflow, "w", {}).workflow.text() == plain.text()
    woven.workflow.data["settings"]["saveDataErrorExecution"] = "all"  # somebody's own wish, since then
    assert remove_lock(woven.workflow, "w", {}).workflow.settings["saveDataErrorExecution"] == "all"


def test_who_keeps_the_failed_executions_of_a_body_that_must_stay_is_warned_of_a_retry():
    plain = workflow(*ANSWERS)
    for transport, keep in (("http", True), ("redis", False)):
        options = LockOptions(scope="x", error_workflow="tidy", transport=transport, keep_failed=keep)
        woven = add_lock(plain, "w", options)
        assert NO_LOCK in woven.warnings[-1]
        assert "saveDataErrorExecution" not in woven.workflow.settings
    for unneeded in (LockOptions("x", keep_failed=True), LockOptions("x", transport="http", keep_failed=True)):
        assert "changes nothing here" in add_lock(workflow(START, STEP), "w", unneeded).warnings[-1]


def test_who_accepts_what_is_not_there_is_told_so():
    moves, stays = workflow(START, STEP), workflow(*ANSWERS)
    for plain, unneeded in (
        (moves, LockOptions("x", in_place=True)),
        (moves, LockOptions("x", transport="http", in_place=True)),
        (stays, LockOptions("x", error_workflow="tidy", in_place=True)),
    ):
        woven = add_lock(plain, "w", unneeded)
        assert "--in-place changes nothing here" in woven.warnings[-1]
        assert woven.wiring == add_lock(plain, "w", replace(unneeded, in_place=False)).wiring


def test_a_lock_of_an_older_version_is_taken_off_and_somebody_elses_workflow_stays():
    plain = workflow(START, STEP)
    woven = add_lock(plain, "w", LOCK)  # as it was over http, too
    others = {**woven.others, "w_retry": workflow(START, STEADY)}
    back = remove_lock(woven.workflow, "w", others)
    assert (back.workflow.text(), back.gone) == (plain.text(), ("w_body",))


def test_a_saved_progress_that_was_asked_for_comes_back():
    for settings in ({"saveExecutionProgress": True}, {"saveExecutionProgress": False}, {}):
        plain = workflow(START, STEP, settings=settings)
        woven = add_lock(plain, "w", LockOptions(scope="x", transport="http"))
        assert woven.workflow.settings["saveExecutionProgress"] is False
        assert remove_lock(woven.workflow, "w", woven.others).workflow.settings == settings


def test_a_disabled_trigger_is_not_gated_and_that_is_said():
    given = Workflow.parse((CORPUS / "disabled_nodes.json").read_bytes())
    woven = add_lock(given, "w", LOCK)
    assert "'Old Hook' is disabled" in woven.warnings[0]
    assert [edge.source for edge in woven.workflow.entering("Lock Acquire")] == ["Start"]


def test_the_body_keeps_its_time_limit_and_the_caller_has_time_to_wait():
    timed = workflow(START, STEP, settings={"executionTimeout": 300, "errorWorkflow": "x", "callerPolicy": "any"})
    woven = add_lock(timed, "w", LockOptions(scope="x", max_wait_seconds=30))
    assert woven.others["w_body"].settings == {"executionTimeout": 300}
    assert woven.workflow.settings["executionTimeout"] == 300 + 30 + 60


def test_what_was_edited_since_is_kept():
    plain = workflow(START, STEP, STEADY)
    woven = add_lock(plain, "w", LOCK)
    body = woven.others["w_body"].copy()
    body.find("Step").data["parameters"]["jsCode"] = "return []"
    body.add(node("New", "noOp"))
    body.connections["Steady"] = {"main": [[{"node": "New", "type": "main", "index": 0}]]}
    back = remove_lock(woven.workflow, "w", {"w_body": body}).workflow
    assert [each.name for each in back.nodes] == ["Start", "Step", "Steady", "New"]
    assert back.find("Step").parameters == {"jsCode": "return []"}
    assert [edge.target for edge in back.leaving("Steady")] == ["New"]
    assert "meta" not in back.data


def test_settings_that_were_changed_since_are_kept():
    timed = workflow(START, STEP, settings={"executionTimeout": 300})
    woven = add_lock(timed, "w", LockOptions(scope="x", error_workflow="tidy"))
    woven.workflow.data["settings"] |= {"executionTimeout": 7, "errorWorkflow": "other"}
    back = remove_lock(woven.workflow, "w", woven.others).workflow
    assert back.settings == {"executionTimeout": 7, "errorWorkflow": "other"}


def test_a_limit_stands_before_the_lock_whichever_came_first():
    plain = workflow(START, STEP)
    one = add_limit(add_lock(plain, "w", LOCK).workflow, "w", LIMIT).workflow
    two = add_lock(add_limit(plain, "w", LIMIT).workflow, "w", LOCK).workflow
    assert one.text() == two.text()
    assert {edge.target for edge in one.leaving("Start")} == {"Rate Limit Check", "Rate Limit Gate"}
    assert {edge.source for edge in one.entering("Lock Acquire")} == {"Rate Limit Allowed?", "Rate Limit Denied"}


@pytest.mark.parametrize("scope", ["orders:meta", "={{ 'orders:meta' }}", "={{ $json.id }}:meta"])
def test_a_scope_whose_key_is_another_locks_identity_is_warned_of(scope):
    assert any(":meta" in line for line in add_lock(workflow(*LINE), "w", LockOptions(scope)).warnings)


@pytest.mark.parametrize("name", ["Orders", "n" * 120, "ü" * 128, ""])
def test_what_is_made_beside_a_workflow_has_a_name_that_n8n_takes(name):
    """It keeps 128 characters, and refuses more."""
    done = add_lock(workflow(START, STEP, name=name), "k", replace(LOCK, transport="http"))
    names = [done.others[key].name for key in ("k_body", "k_retry")]
    assert [len(one) <= 128 for one in names] == [True, True]
    for one, end in zip(names, (" (locked body)", " (locked retry)"), strict=True):
        assert one.endswith(end)
        assert name.startswith(one.removesuffix(end).rstrip("…"))


@pytest.mark.timed
def test_a_workflow_of_thousands_of_nodes_is_woven_in_seconds():
    steps = [node(f"Step {n}", "noOp", position=[220 * n, 0]) for n in range(3000)]
    begun = time.monotonic()
    add_lock(workflow(START, *steps), "k", LOCK)
    assert time.monotonic() - begun < 10
