"""`backstay n8n`: adding locks to workflows and removing them."""

from __future__ import annotations

import json

import pytest

from support.n8n.commands import FLOW, LIMIT_OPTIONS


def test_a_lock_is_added_registered_and_removed_without_a_trace(commands):
    before = commands.snapshot()
    reply = commands.add_lock()
    assert reply["static_scope"] == "nightly"
    for env in ("dev", "prod"):
        assert commands.settings(env).endswith("lockScopes:\n  - nightly\n")
        assert "  nightly:\n    id: local-" in commands.settings(env)  # the workflow id is part of the lock's identity
    line = commands.refused("add-lock-to-workflow", "--workflow-key", "nightly", "--scope-expression", "y")
    assert "nightly: the workflow already has a lock" in line
    assert commands.do("remove-lock-from-workflow", "--workflow-key", "nightly").startswith("nightly: lock removed.")
    after = commands.snapshot()
    changed = [path for path in {**before, **after} if before.get(path) != after.get(path)]
    assert sorted(changed) == ["n8n-config/dev.yml", "n8n-config/prod.yml"]
    for env in ("dev", "prod"):  # only the scope stays
        assert (
            commands.settings(env).replace("lockScopes:\n  - nightly\n", "lockScopes: []\n").encode()
            == before[f"n8n-config/{env}.yml"]
        )
    assert "has no lock" in commands.refused("remove-lock-from-workflow", "--workflow-key", "nightly")


def test_a_dry_run_of_a_lock_shows_the_diff_and_changes_nothing(commands):
    before = commands.snapshot()
    reply = commands.add_lock("--dry-run")
    assert "+++ n8n-workflows-template/nightly.template.json" in reply["diff"]
    assert "+  - nightly" in reply["diff"]
    assert commands.snapshot() == before
    shown = commands.do(
        "add-lock-to-workflow", "--workflow-key", "nightly", "--scope-expression", "nightly", "--dry-run"
    )
    assert "Nothing was changed: --dry-run." in shown
    assert "+  - nightly" in shown


def test_a_dynamic_scope_is_not_registered_and_the_command_to_add_it_is_shown(commands):
    reply = commands.do(
        "add-lock-to-workflow", "--workflow-key", "nightly", "--scope-expression", "={{ 'excel-' + $json.fileId }}"
    )
    assert "backstay n8n scopes add VALUE" in reply
    assert commands.json("scopes", "ls")["scopes"] == {"dev": [], "prod": []}


def test_a_lock_needs_the_pair_and_lock_on_error_its_handler(empty):
    empty.put("nightly")
    arguments = ("add-lock-to-workflow", "--workflow-key", "nightly", "--scope-expression", "x")
    assert "lock_acquisition and lock_release are not installed" in empty.refused(*arguments)
    empty.do("create-lock")
    line = empty.refused(*arguments, "--lock-on-error")
    assert "--include-error-handler" in line
    empty.do("create-lock", "--include-error-handler")
    assert empty.add_lock("--lock-on-error")
    handler = json.loads(empty.path("nightly").read_text())["settings"]["errorWorkflow"]
    assert handler == "{{@:env:workflows.error_handler_lock_cleanup.id}}"


def test_lock_options_are_recorded_in_the_workflow(commands):
    commands.add_lock("--ttl-seconds", "600", "--max-wait-seconds", "30", "--fail-fast")
    options = json.loads(commands.path("nightly").read_text())["meta"]["backstay"]["lock"]["options"]
    wanted = {"ttl_seconds": 600, "max_wait_seconds": 30, "fail_fast": True, "transport": "redis"}
    assert {key: options[key] for key in wanted} == wanted


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--ttl-seconds", "0"), 2),
        (("--ttl-seconds", "soon"), 2),
        (("--max-wait-seconds", "-1"), 2),
        (("--scope-expression", ""), 1),
        (("--scope-expression", "={{ }}"), 1),
    ],
)
def test_invalid_numbers_and_scopes_are_refused(commands, arguments, code):
    commands.refused(
        "add-lock-to-workflow", "--workflow-key", "nightly", "--scope-expression", "x", *arguments, code=code
    )


def test_primitives_and_invalid_workflow_files_take_no_lock(commands):
    scope = ("--scope-expression", "x")
    assert "primitives" in commands.refused("add-lock-to-workflow", "--workflow-key", "lock_release", *scope)
    for text in ("not json", "[]", "{}", '{"nodes": []}', '{"nodes": [], "connections": {}}'):
        commands.put("bad", text)
        commands.refused("add-lock-to-workflow", "--workflow-key", "bad", *scope)
    assert "no workflow is named 'none'" in commands.refused("add-lock-to-workflow", "--workflow-key", "none", *scope)


def test_the_body_file_never_overwrites_an_existing_file(commands):
    commands.put("nightly_body")
    line = commands.refused("add-lock-to-workflow", "--workflow-key", "nightly", "--scope-expression", "x")
    assert "nightly_body.template.json already exists" in line


def test_lock_on_error_reports_the_error_workflow_it_replaces(commands):
    flow = json.loads(FLOW)
    flow["settings"]["errorWorkflow"] = "abc"
    commands.put("nightly", flow)
    before = commands.path("nightly").read_bytes()
    reply = commands.add_lock("--lock-on-error")
    assert any("abc" in line for line in reply["warnings"])
    commands.do("remove-lock-from-workflow", "--workflow-key", "nightly")
    assert commands.path("nightly").read_bytes() == before


def put_inline_workflow(commands):
    """Put a workflow over http that must stay inline: it waits for a webhook, which suspends a sub-workflow."""
    every = ("--include-error-handler", "--include-rate-limit")
    commands.do("create-lock", *every, "--transport", "http", "--force-overwrite")
    flow = json.loads(FLOW)
    pause = {"name": "Pause", "type": "n8n-nodes-base.wait", "typeVersion": 1.1, "parameters": {"resume": "webhook"}}
    flow["nodes"].append(pause | {"id": "pause", "position": [900, 0]})
    last = flow["nodes"][-2]["name"]
    flow["connections"][last] = {"main": [[{"node": "Pause", "type": "main", "index": 0}]]}
    for node in flow["nodes"]:
        node["alwaysOutputData"] = True
    commands.put("nightly", flow)


def test_over_http_an_inline_body_is_refused_with_the_reason_and_the_remedies(commands):
    put_inline_workflow(commands)
    asked = ("add-lock-to-workflow", "--workflow-key", "nightly", "--scope-expression", "x", "--lock-on-error")
    for more in ((), ("--dry-run",), ("--fail-fast",)):
        line = " ".join(commands.refused(*asked, *more).split())
        for part in ("nightly", "'Pause'", "queue mode", "without the lock", "less than 65 s", "--in-place"):
            assert part in line
        reply = json.loads(commands.call(*asked, *more, "--json").stdout)["error"]
        assert (reply["kind"], reply["exit_code"]) == ("PatchRefused", 1)
        assert reply["message"] in line
    assert "without --per-item" in commands.refused(*asked, "--per-item", "--in-place")
    commands.do("add-rate-limit-to-workflow", "--workflow-key", "nightly", *LIMIT_OPTIONS)
    assert "--in-place" in commands.refused(*asked)
    commands.do("validate")


KEEP = "--keep-failed-executions"


@pytest.mark.parametrize("more", [("--in-place",), (KEEP,), ("--in-place", KEEP)])
def test_over_http_failed_executions_of_an_inline_body_are_kept_only_on_request(commands, more):
    put_inline_workflow(commands)
    before = commands.snapshot()
    assert "nightly" in commands.do(
        *("add-lock-to-workflow", "--workflow-key", "nightly", "--scope-expression", "x"),
        *("--lock-on-error", "--dry-run", *more),
    )
    assert commands.snapshot() == before
    reply = commands.add_lock("--lock-on-error", *more)
    assert reply["wiring"] == "inline"
    saved = json.loads(commands.path("nightly").read_text())["settings"].get("saveDataErrorExecution")
    assert saved == (None if KEEP in more else "none")
    assert any("without the lock" in line for line in reply["warnings"])
    once = commands.snapshot()
    again = ("add-lock-to-workflow", "--workflow-key", "nightly", "--scope-expression", "={{ 'nightly' }}")
    assert "already has a lock" in commands.refused(*again, "--lock-on-error", *more)
    assert commands.snapshot() == once
    (verdict,) = commands.json("validate", "--workflow-key", "nightly")["workflows"]
    assert (verdict["errors"], "retry-without-lock" in {one["rule"] for one in verdict["findings"]}) == (0, True)
    commands.do("remove-lock-from-workflow", "--workflow-key", "nightly")
    plain = "n8n-workflows-template/nightly.template.json"
    assert commands.snapshot()[plain] == before[plain]


def test_lock_on_error_reports_the_error_trigger_it_replaces(commands):
    commands.put_with_error_trigger("nightly")
    assert any("When It Fails" in line for line in commands.add_lock("--lock-on-error")["warnings"])
    commands.do("remove-lock-from-workflow", "--workflow-key", "nightly")
    assert not any("replaces it until" in line for line in commands.add_lock()["warnings"])
