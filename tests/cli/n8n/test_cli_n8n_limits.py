"""`backstay n8n`: limits, lock scopes and error handlers of workflows."""

from __future__ import annotations

import json

from support.n8n.commands import FLOW, LIMIT_OPTIONS


def test_a_limit_is_added_and_removed_without_a_trace(commands):
    before = commands.snapshot()
    commands.do("add-rate-limit-to-workflow", "--workflow-key", "nightly", *LIMIT_OPTIONS, "--on-denied", "stop")
    assert "already has a limit" in commands.refused(
        "add-rate-limit-to-workflow", "--workflow-key", "nightly", *LIMIT_OPTIONS
    )
    commands.do("remove-rate-limit-from-workflow", "--workflow-key", "nightly")
    assert commands.snapshot() == before


def test_a_limit_needs_its_primitive(empty):
    empty.put("nightly")
    line = empty.refused("add-rate-limit-to-workflow", "--workflow-key", "nightly", *LIMIT_OPTIONS)
    assert "rate_limit_check is not installed" in line
    assert "--include-rate-limit" in line


def test_an_unknown_on_denied_value_is_refused(commands):
    arguments = ("add-rate-limit-to-workflow", "--workflow-key", "nightly", *LIMIT_OPTIONS, "--on-denied", "shout")
    assert "passthrough, stop, error" in commands.refused(*arguments, code=2)


def test_lock_and_limit_can_be_removed_in_either_order(commands):
    before = commands.path("nightly").read_bytes()
    for first, second in (("lock", "rate-limit"), ("rate-limit", "lock")):
        commands.add_lock()
        commands.do("add-rate-limit-to-workflow", "--workflow-key", "nightly", *LIMIT_OPTIONS)
        commands.do(f"remove-{first}-from-workflow", "--workflow-key", "nightly")
        commands.do(f"remove-{second}-from-workflow", "--workflow-key", "nightly")
        assert commands.path("nightly").read_bytes() == before


def test_scopes_are_added_listed_and_removed(empty):
    reply = empty.json("scopes", "add", "a", "b:c d", "--env", "dev")
    assert reply["added"] == {"dev": ["a", "b:c d"]}
    assert empty.json("scopes", "add", "a")["added"] == {"dev": [], "prod": ["a"]}
    assert empty.json("scopes", "ls")["scopes"] == {"dev": ["a", "b:c d"], "prod": ["a"]}
    assert "b:c d" in empty.do("scopes", "ls")
    assert empty.json("scopes", "rm", "a")["removed"] == {"dev": ["a"], "prod": ["a"]}
    assert "not registered in any environment" in empty.refused("scopes", "rm", "a")
    assert "a scope must not be empty" in empty.refused("scopes", "add", "", code=2)


def test_an_error_handler_is_registered_once(commands):
    arguments = ("register-error-handler", "--workflow-key", "nightly", "--handler-key", "error_handler_lock_cleanup")
    assert commands.json(*arguments)["changed"]
    assert not commands.json(*arguments)["changed"]
    commands.do("hydrate", "--env", "dev")
    handler = commands.built("nightly")["settings"]["errorWorkflow"]
    assert handler == commands.built("error_handler_lock_cleanup")["id"]


def test_another_handler_is_replaced_only_by_force(commands):
    flow = json.loads(FLOW)
    flow["settings"]["errorWorkflow"] = "theirs"
    commands.put("nightly", flow)
    arguments = ("register-error-handler", "--workflow-key", "nightly", "--handler-key", "error_handler_lock_cleanup")
    assert "which was kept" in commands.refused(*arguments)
    assert commands.json(*arguments, "--force")["replaced"] == "theirs"


def test_an_own_error_trigger_is_replaced_only_by_force(commands):
    commands.put_with_error_trigger("nightly")
    arguments = ("register-error-handler", "--workflow-key", "nightly", "--handler-key", "error_handler_lock_cleanup")
    before = commands.snapshot()
    assert "'When It Fails'" in commands.refused(*arguments)
    assert commands.snapshot() == before
    assert "'When It Fails'" in commands.json(*arguments, "--force")["replaced"]
    assert not commands.json(*arguments)["changed"]


def test_an_invalid_error_handler_is_refused(commands):
    commands.put("other")
    arguments = ("register-error-handler", "--workflow-key", "nightly", "--handler-key")
    assert "no Error Trigger" in commands.refused(*arguments, "other")
    assert "its own error handler" in commands.refused(*arguments, "nightly")
    assert "no workflow is named" in commands.refused(*arguments, "none")
