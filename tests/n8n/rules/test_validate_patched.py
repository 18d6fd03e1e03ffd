"""Patched workflows validate without errors: the whole corpus, with every kind of lock and limit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from backstay import PatchRefused
from backstay.n8n.model import N8nWorkflow
from backstay.n8n.patch.patch import LimitOptions, LockOptions, add_limit, add_lock
from backstay.n8n.patch.retention import ALL_UNSAVED
from backstay.n8n.primitives import KEYS, primitive
from backstay.n8n.rules.validate import WorkspaceContext, validate
from support.n8n.workflows import ANSWERS, LINE, workflow

EXAMPLES = Path(__file__).parents[3] / "examples" / "n8n"
CORPUS = sorted((Path(__file__).parents[1] / "corpus").glob("*.json"))
LOCKS = {
    "fixed": LockOptions("orders"),
    "computed": LockOptions("={{ 'order-' + $json.id }}", fail_fast=True),
    "http": LockOptions("orders", transport="http"),
    "in-place": LockOptions("orders", transport="http", error_workflow="error_handler_lock_cleanup", in_place=True),
    "per-item": LockOptions("={{ 'order-' + $json.id }}", per_item=True),
    "cleaned-up": LockOptions("orders", error_workflow="error_handler_lock_cleanup"),
}


def findings(workflows, transport="redis"):
    others = {key: primitive(key, transport) for key in KEYS}
    ids = {key: f"id-{place}" for place, key in enumerate([*KEYS, *workflows])}
    around = WorkspaceContext(("orders",), ids, others=others)
    return [(key, finding) for key, workflow in workflows.items() for finding in validate(workflow, around)]


def errors(workflows, transport="redis"):
    return [(key, finding) for key, finding in findings(workflows, transport) if finding.level == "error"]


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_patched_workflows_have_no_errors(path):
    plain = N8nWorkflow.read(path)
    assert errors({path.stem: plain}) == []
    limited = add_limit(plain, path.stem, LimitOptions("api", 5, 60, on_denied="stop")).workflow
    assert errors({path.stem: limited}) == []
    patched = 0
    for before in (plain, limited):
        for options in LOCKS.values():
            try:
                made = add_lock(before, path.stem, options)
            except PatchRefused:
                continue
            patched += 1
            assert errors({path.stem: made.workflow, **made.others}, options.transport) == []
    assert patched > 0


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("body", [ANSWERS, LINE], ids=["in-its-midst", "at-its-end"])
def test_a_responding_body_is_warned_about_only_where_a_retry_runs_without_the_lock(body, keep):
    options = replace(LOCKS["in-place"], keep_failed=keep)
    made = add_lock(workflow(*body), "w", options)
    patched = {"w": made.workflow, **made.others}
    assert errors(patched, "http") == []
    reported = {
        finding.path: finding for _, finding in findings(patched, "http") if finding.rule == "retry-without-lock"
    }
    expected = {"meta.backstay.lock", *([f"settings.{name}" for name in ALL_UNSAVED] if keep else [])}
    assert set(reported) == (expected if made.wiring == "inline" else set())
    assert all("queue mode" in reported[path].message for path in reported if path == "meta.backstay.lock")


@pytest.mark.parametrize("accepted", [False, True])
def test_an_unaccepted_inline_lock_is_a_warning_that_names_the_option(accepted):
    """Older versions created inline locks without acceptance."""
    made = add_lock(workflow(*ANSWERS), "w", LOCKS["in-place"]).workflow
    if not accepted:
        del made.data["meta"]["backstay"]["lock"]["options"]["in_place"]
    (reported,) = [finding for _, finding in findings({"w": made}, "http") if finding.rule == "retry-without-lock"]
    assert reported.level == "warning"
    assert ("--in-place" in reported.message) is not accepted
    assert errors({"w": made}, "http") == []


def test_a_body_over_http_without_the_caller_check_is_reported():
    """Older versions created bodies without this check."""
    (made,) = [body for key, body in add_lock(workflow(*LINE), "w", LOCKS["http"]).others.items() if key == "w_body"]
    rules = [finding.rule for _, finding in findings({"w_body": made}, "http")]
    assert "retry-without-lock" not in rules
    made.data["meta"]["backstay"]["nodes"].remove("Called By Its Lock?")
    (reported,) = [found for _, found in findings({"w_body": made}, "http") if found.rule == "retry-without-lock"]
    assert "an older Backstay" in reported.message


@pytest.mark.parametrize("transport", ["redis", "http"])
@pytest.mark.parametrize("key", KEYS)
def test_a_primitive_has_no_findings(key, transport):
    assert validate(N8nWorkflow.parse(primitive(key, transport).text()), WorkspaceContext()) == []


def test_a_missing_confirmation_over_http_is_an_error():
    made = add_lock(N8nWorkflow.read(CORPUS[0]), CORPUS[0].stem, LOCKS["http"]).workflow
    made.remove("Lock Confirm")
    assert "unconfirmed-grant" in [finding.rule for _, finding in errors({CORPUS[0].stem: made}, "http")]


@pytest.mark.parametrize("folder", ["before", "after"])
def test_the_examples_have_no_errors(folder):
    found = {path.name.removesuffix(".template.json"): N8nWorkflow.read(path) for path in (EXAMPLES / folder).iterdir()}
    assert len(found) >= 3
    assert errors(found) == []
