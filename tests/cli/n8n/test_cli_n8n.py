"""`backstay n8n`: behaviour that all commands share, on a real workspace, without a network."""

from __future__ import annotations

import json
import re

import pytest

from support.n8n.commands import COMMAND, FLOW, Commands

GROUP = COMMAND.commands["n8n"]


def leaves(command, path=()):
    for name, child in command.commands.items():
        if hasattr(child, "commands"):
            yield from leaves(child, (*path, name))
        else:
            yield " ".join((*path, name)), child


COMMANDS = dict(leaves(GROUP))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_the_common_options_and_examples(empty, command):
    options = {name for parameter in COMMANDS[command].params for name in parameter.opts}
    assert {"--workspace", "--json", "--dry-run"} <= options
    shown = empty.do(*command.split(), "--help")
    assert "Examples" in shown
    assert f"backstay n8n {command}" in " ".join(shown.split())
    # A shell would expand an unescaped $ as a variable.
    assert not [one for one in re.findall(r'"[^"]*"', shown) if "$" in one.replace("\\$", "")]


WITHOUT_A_WORKSPACE = [
    ("create-lock",),
    ("copy-primitive", "--list"),
    ("copy-primitive", "--name", "lock_release"),
    ("add-lock-to-workflow", "--workflow-key", "x", "--scope-expression", "x"),
    ("scopes", "add", "x"),
    ("scopes", "ls"),
    ("scopes", "rm", "x"),
    ("add-rate-limit-to-workflow", "--workflow-key=x", "--limit=1", "--window-seconds=1", "--scope-expression=x"),
    ("remove-lock-from-workflow", "--workflow-key", "x"),
    ("remove-rate-limit-from-workflow", "--workflow-key", "x"),
    ("register-error-handler", "--workflow-key", "x", "--handler-key", "y"),
    ("manage-credentials", "create", "--env", "dev", "--key", "k", "--type", "redis"),
    ("manage-credentials", "list-link", "--env", "dev"),
    ("hydrate",),
    ("push", "--env", "dev"),
    ("pull", "--env", "dev"),
    ("diff", "--env", "dev"),
    ("status", "--env", "dev"),
    ("doctor", "--env", "dev"),
]


@pytest.mark.parametrize("arguments", WITHOUT_A_WORKSPACE, ids=lambda words: " ".join(words[:2]))
def test_a_folder_that_is_no_workspace_is_refused_unchanged(tmp_path, arguments):
    commands = Commands(tmp_path)
    line = commands.refused(*arguments)
    assert "is not a workspace" in line
    reply = json.loads(commands.call(*arguments, "--json").stdout)["error"]
    assert (reply["kind"], reply["exit_code"]) == ("WorkspaceError", 1)
    assert reply["message"] in line
    assert not list(tmp_path.iterdir())


REFUSED = [
    (("add-lock-to-workflow", "--workflow-key", "nightly", "--scope-expression", ""), "PatchRefused", 1),
    (
        ("add-lock-to-workflow", "--workflow-key", "nightly", "--scope-expression=x", "--ttl-seconds=0"),
        "BadParameter",
        2,
    ),
    (("add-lock-to-workflow", "--workflow-key", "nightly"), "MissingParameter", 2),
    (("remove-rate-limit-from-workflow", "--workflow-key", "nightly"), "PatchRefused", 1),
    (("scopes", "rm", "nobody's"), "NotRegistered", 1),
    (("scopes", "add", ""), "ConfigError", 2),
    (("hydrate", "--env", "late"), "WorkspaceError", 1),
    (("validate", "--env", "late"), "WorkspaceError", 2),
    (("push", "--env", "dev"), "ConfigError", 2),
    (("picture", "--workflow-key", "nightly", "--out", "no/such/folder/x.svg"), "ConfigError", 2),
]


@pytest.mark.parametrize(("arguments", "kind", "code"), REFUSED)
def test_a_refusal_is_json_with_the_json_option(commands, arguments, kind, code):
    commands.refused(*arguments, code=code)
    before = commands.snapshot()
    done = commands.call(*arguments, "--json")
    reply = json.loads(done.stdout)["error"]
    assert (done.exit_code, reply["kind"], reply["exit_code"]) == (code, kind, code)
    assert reply["message"]
    assert commands.snapshot() == before


WHOLE = {"options": {"scope": "x"}, "nodes": [], "wiring": "inline", "undo": {"ends": {}}}
RECORDS = [
    {"version": 99, "lock": WHOLE},
    {"version": 1, "lock": 5},
    {"version": 1, "lock": {}},
    {"version": 1, "lock": {**WHOLE, "nodes": [5]}},
    {"version": 1, "lock": {**WHOLE, "options": {"scope": 7}}},
    {"version": 1, "lock": {**WHOLE, "undo": {}}},
    {"version": 1, "lock": {**WHOLE, "wiring": "sub-workflow"}},
    {"version": 1, "lock": {**WHOLE, "wiring": "unknown"}},
    {"version": 1, "limit": {"options": {"scope": "x"}, "nodes": []}},
]


@pytest.mark.parametrize("record", RECORDS, ids=json.dumps)
def test_an_unreadable_record_is_reported_with_its_own_workflow(commands, record):
    """A record of a newer version or an edited one: no traceback, and the error names no other workflow."""
    commands.put("odd", {**json.loads(FLOW), "meta": {"backstay": {"before": {}, **record}}})
    kind = next(name for name in record if name != "version")
    off = {"lock": "remove-lock-from-workflow", "limit": "remove-rate-limit-from-workflow"}[kind]
    for arguments in (
        ("add-lock-to-workflow", "--workflow-key", "nightly", "--scope-expression", "x"),
        ("create-lock",),
        (off, "--workflow-key", "odd"),
        ("add-lock-to-workflow", "--workflow-key", "odd", "--scope-expression", "x"),
    ):
        line = commands.refused(*arguments)
        assert line.startswith("backstay: odd: "), line
        assert "meta.backstay" in line
    assert not isinstance(commands.call("picture", "--workflow-key", "odd").exception, Exception)
    done = commands.call("doctor", "--env", "dev", "--json")
    assert done.exit_code == 2
    assert [one["name"] for one in json.loads(done.stdout)["checks"] if one["level"] == "error"] == ["workflow odd"]
    assert "unreadable-record" in commands.call("validate", "--workflow-key", "odd").stdout


def test_a_body_that_lost_its_record_is_refused_unchanged(commands):
    """A workflow downloaded from the editor has no record."""
    commands.add_lock()
    body = json.loads(commands.path("nightly_body").read_text())
    body["meta"] = {"templateCredsSetupCompleted": True}
    commands.put("nightly_body", body)
    line = commands.refused("remove-lock-from-workflow", "--workflow-key", "nightly")
    assert "nightly_body" in line
    assert "meta.backstay" in line


@pytest.mark.parametrize("key", ["../x", "/etc/passwd", "a/b", "..", "a.b", ""])
def test_a_key_that_is_a_path_is_refused(commands, key):
    for arguments in (
        ("add-lock-to-workflow", "--workflow-key", key, "--scope-expression", "x"),
        ("remove-lock-from-workflow", "--workflow-key", key),
        ("register-error-handler", "--workflow-key", "nightly", "--handler-key", key),
        ("hydrate", "--workflow-key", key),
    ):
        assert "is not a valid workflow key" in commands.refused(*arguments)
    assert "is not a valid workflow key" in commands.refused("validate", "--workflow-key", key, code=2)
    for arguments in (("hydrate", "--env", key), ("scopes", "add", "x", "--env", key)):
        assert "is not a valid environment" in commands.refused(*arguments)


BAD_SETTINGS = [("\tworkflows: {}\n", "tab character found"), ("a: &x 1\nb: *x\n", "anchor"), ("a: [\n", "line 2")]


@pytest.mark.parametrize(("text", "message"), BAD_SETTINGS)
def test_settings_that_cannot_be_edited_are_refused_before_any_write(commands, text, message):
    (commands.root / "n8n-config/prod.yml").write_text(text)
    for arguments in (
        ("create-lock", "--force-overwrite"),
        ("add-lock-to-workflow", "--workflow-key", "nightly", "--scope-expression", "nightly"),
        ("scopes", "add", "x"),
        ("hydrate",),
    ):
        line = commands.refused(*arguments)
        assert message in line
        assert "n8n-config/prod.yml" in line


HALF = FLOW.replace("Work", "W\\ud83drk").replace("Start", "St\\udc00rt").replace("Nightly", "Night\\ud800")


@pytest.mark.parametrize(
    "arguments",
    [
        ("validate",),
        ("picture",),
        ("add-lock-to-workflow", "--scope-expression", "half"),
        ("add-lock-to-workflow", "--scope-expression", "half", "--dry-run"),
        ("add-rate-limit-to-workflow", "--limit", "1", "--window-seconds", "1", "--scope-expression", "half"),
        ("hydrate", "--env", "dev"),
    ],
)
@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_lone_surrogate_in_a_name_causes_no_crash(commands, arguments, more):
    """JavaScript can cut a text inside a surrogate pair, and JSON transports the half."""
    commands.put("half", HALF)
    done = commands.call(*arguments, "--workflow-key", "half", *more)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code in (0, 1)
    if "--dry-run" not in arguments and arguments[0].startswith("add-") and done.exit_code == 0:
        commands.do(arguments[0].replace("add", "remove").replace("-to-", "-from-"), "--workflow-key", "half")
    if arguments[0].startswith("add-"):
        assert commands.path("half").read_text() == HALF


def test_a_lone_surrogate_is_drawn_as_a_question_mark(commands, tmp_path):
    commands.put("half", HALF)
    out = tmp_path / "half.svg"
    commands.do("picture", "--workflow-key", "half", "--out", str(out))
    assert ">W?rk<" in out.read_text("utf-8")
