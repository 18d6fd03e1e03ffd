"""Bodies that must stay inline: refusals, acceptance, retries and removal; no engine runs here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backstay import PatchRefused
from backstay.n8n.model import N8nWorkflow
from backstay.n8n.patch.patch import (
    LimitOptions,
    LockOptions,
    add_limit,
    add_lock,
    read_lock_options,
    remove_limit,
    remove_lock,
)
from support.n8n.workflows import ANSWERS, START, STEADY, STEP, node, workflow

LOCK = LockOptions(scope="={{ 'orders' }}")
LIMIT = LimitOptions(scope="={{ 'orders' }}", limit=3, window_seconds=60)
NO_LOCK = "start a new execution: n8n's retry resumes at the failed node, without the lock"
#: Bodies that cannot become a sub-workflow, the node that prevents it, and the suggested way out.
HELD = {
    "answers": (workflow(*ANSWERS), "'Answer' responds to the workflow's caller", "When Last Node Finishes"),
    "static-data": (
        workflow(START, node("Step", "code", {"jsCode": "$getWorkflowStaticData('global')"}, alwaysOutputData=True)),
        "'Step' uses the workflow's static data",
        "Remove it",
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
def test_over_http_a_body_that_must_stay_inline_is_refused_until_accepted(held):
    plain, holds, way_out = HELD[held]
    with pytest.raises(PatchRefused) as refused:
        add_lock(plain, "w", OVER_HTTP)
    message = str(refused.value)
    for part in (holds, "must stay inline", "queue mode", "without the lock", way_out, "redis", "--in-place"):
        assert part in message
    for accepted in (replace(OVER_HTTP, in_place=True), replace(OVER_HTTP, keep_failed=True)):
        patched = add_lock(plain, "w", accepted)
        assert (patched.wiring, patched.others) == ("inline", {})
        assert any("without the lock" in line for line in patched.warnings)
        assert not any("has no effect here" in line for line in patched.warnings)
        assert read_lock_options(N8nWorkflow.parse(patched.workflow.text())) == accepted
        assert remove_lock(N8nWorkflow.parse(patched.workflow.text()), "w", {}).workflow.text() == plain.text()
        with pytest.raises(PatchRefused, match="already has a lock"):
            add_lock(patched.workflow, "w", accepted)


def test_over_http_a_refusal_names_every_option_that_is_needed_beside_in_place():
    """Without clean-up, per item, or with branches, the body can neither stay inline nor become a sub-workflow."""
    answers, branches = workflow(*ANSWERS), workflow(*ANSWERS[:2], node("Way", "if"))
    for plain, options in (
        (answers, replace(OVER_HTTP, error_workflow="")),
        (branches, OVER_HTTP),
    ):
        for accepted in (False, True):
            with pytest.raises(PatchRefused, match=r"'Answer' responds .* --lock-on-error and --in-place"):
                add_lock(plain, "w", replace(options, in_place=accepted))
    for accepted in (False, True):
        with pytest.raises(PatchRefused, match=r"the lock is taken per item.*'Answer' responds.*without --per-item"):
            add_lock(answers, "w", replace(OVER_HTTP, per_item=True, in_place=accepted))


def test_over_redis_a_body_stays_inline_without_acceptance():
    patched = add_lock(workflow(*ANSWERS), "w", replace(OVER_HTTP, transport="redis"))
    assert patched.wiring == "inline"
    assert NO_LOCK in patched.warnings[-1]


@pytest.mark.parametrize("first", ["limit", "lock"])
def test_an_inline_body_takes_lock_and_limit_in_either_order(first):
    plain, accepted = workflow(*ANSWERS), replace(OVER_HTTP, in_place=True)
    limit = replace(LIMIT, transport="http")
    limited = add_limit(plain, "w", limit).workflow
    with pytest.raises(PatchRefused, match=r"'Answer' .*--in-place"):
        add_lock(limited, "w", OVER_HTTP)
    locked = add_lock(plain, "w", accepted).workflow
    both = add_lock(limited, "w", accepted) if first == "limit" else add_limit(locked, "w", limit)
    assert remove_lock(both.workflow, "w", {}).workflow.text() == limited.text()
    assert remove_limit(both.workflow, "w", {}).workflow.text() == locked.text()


def test_an_inline_lock_from_before_acceptance_was_required_is_removed_without_a_trace():
    plain = workflow(*ANSWERS)
    patched = add_lock(plain, "w", replace(OVER_HTTP, in_place=True)).workflow
    del patched.data["meta"]["backstay"]["lock"]["options"]["in_place"]
    older = N8nWorkflow.parse(patched.text())
    assert read_lock_options(older) == OVER_HTTP
    assert remove_lock(older, "w", {}).workflow.text() == plain.text()


@pytest.mark.parametrize("settings", [{}, {"saveDataErrorExecution": "all", "timezone": "UTC"}, None])
def test_over_http_failed_executions_of_an_inline_body_are_not_saved_so_none_can_be_retried(settings):
    given = {"settings": settings} if settings is not None else {}
    plain = workflow(*ANSWERS, **given)
    patched = add_lock(plain, "w", replace(OVER_HTTP, in_place=True))
    assert patched.wiring == "inline"
    kept = ("saveDataErrorExecution", "saveManualExecutions", "saveExecutionProgress")
    assert [patched.workflow.settings[name] for name in kept] == ["none", False, False]
    assert "no longer saves the workflow's failed executions" in patched.warnings[-1]
    assert remove_lock(patched.workflow, "w", {}).workflow.text() == plain.text()
    patched.workflow.data["settings"]["saveDataErrorExecution"] = "all"  # set by an operator after the patch
    assert remove_lock(patched.workflow, "w", {}).workflow.settings["saveDataErrorExecution"] == "all"


def test_keeping_failed_executions_of_an_inline_body_warns_about_retries():
    plain = workflow(*ANSWERS)
    for transport, keep in (("http", True), ("redis", False)):
        options = LockOptions(scope="x", error_workflow="tidy", transport=transport, keep_failed=keep)
        patched = add_lock(plain, "w", options)
        assert NO_LOCK in patched.warnings[-1]
        assert "saveDataErrorExecution" not in patched.workflow.settings
    for unneeded in (LockOptions("x", keep_failed=True), LockOptions("x", transport="http", keep_failed=True)):
        assert "has no effect here" in add_lock(workflow(START, STEP), "w", unneeded).warnings[-1]


def test_in_place_without_effect_is_a_warning():
    moves, stays = workflow(START, STEP), workflow(*ANSWERS)
    for plain, unneeded in (
        (moves, LockOptions("x", in_place=True)),
        (moves, LockOptions("x", transport="http", in_place=True)),
        (stays, LockOptions("x", error_workflow="tidy", in_place=True)),
    ):
        patched = add_lock(plain, "w", unneeded)
        assert "--in-place has no effect here" in patched.warnings[-1]
        assert patched.wiring == add_lock(plain, "w", replace(unneeded, in_place=False)).wiring


def test_removing_a_lock_of_an_older_version_leaves_foreign_workflows():
    plain = workflow(START, STEP)
    patched = add_lock(plain, "w", LOCK)  # older versions wired http like this as well
    others = {**patched.others, "w_retry": workflow(START, STEADY)}
    back = remove_lock(patched.workflow, "w", others)
    assert (back.workflow.text(), back.gone) == (plain.text(), ("w_body",))


def test_removal_restores_the_save_progress_setting():
    for settings in ({"saveExecutionProgress": True}, {"saveExecutionProgress": False}, {}):
        plain = workflow(START, STEP, settings=settings)
        patched = add_lock(plain, "w", LockOptions(scope="x", transport="http"))
        assert patched.workflow.settings["saveExecutionProgress"] is False
        assert remove_lock(patched.workflow, "w", patched.others).workflow.settings == settings
