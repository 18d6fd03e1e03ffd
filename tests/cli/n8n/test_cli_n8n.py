"""`backstay n8n`: every command on a real workspace, without a network."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from backstay.n8n.model import Workflow
from backstay.n8n.primitives import KEYS, primitive
from support.n8n.commands import COMMAND, FLOW, Commands

GROUP = COMMAND.commands["n8n"]


def leaves(command, path=()):
    for name, child in command.commands.items():
        if hasattr(child, "commands"):
            yield from leaves(child, (*path, name))
        else:
            yield " ".join((*path, name)), child


COMMANDS = dict(leaves(GROUP))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two workspaces created once per module: without a workflow, and with one workflow and all primitives."""
    empty, full = (Commands(tmp_path_factory.mktemp(name)) for name in ("empty", "full"))
    for commands in (empty, full):
        commands.do("init")
    full.put("nightly")
    full.do("create-lock", "--include-error-handler", "--include-rate-limit")
    return empty.root, full.root


@pytest.fixture
def empty(made, tmp_path):
    """A workspace without a workflow."""
    return Commands(shutil.copytree(made[0], tmp_path / "flows"))


@pytest.fixture
def commands(made, tmp_path):
    """A workspace with a workflow and all primitives."""
    return Commands(shutil.copytree(made[1], tmp_path / "flows"))


def lock(commands, *more, scope="={{ 'nightly' }}", key="nightly"):
    return commands.json("add-lock-to-workflow", "--workflow-key", key, "--scope-expression", scope, *more)


# ── all commands ──


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
    {"version": 1, "lock": {**WHOLE, "wiring": "woven"}},
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
    lock(commands)
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


# ── init ──


def test_init_creates_a_workspace_and_keeps_existing_files(tmp_path):
    commands = Commands(tmp_path / "new" / "flows")
    reply = commands.json("init", "--env", "dev", "--dry-run")
    assert reply["dry_run"]
    assert "+++ n8n-config/dev.yml" in reply["diff"]
    assert not commands.root.exists()
    assert commands.json("init", "--env", "dev")["environments"] == ["dev"]
    for path in ("n8n-config/dev.yml", "n8n-config/common.yml", "n8n-config/deployment_order.yml"):
        assert (commands.root / path).is_file()
    assert (commands.root / "n8n-workflows-template").is_dir()
    assert (commands.root / "n8n-build/dev").is_dir()
    (commands.root / "n8n-config/dev.yml").write_text("# mine\n")
    again = commands.json("init", "--env", "dev", "--env", "staging")
    assert [change["path"] for change in again["changes"]] == ["n8n-config/staging.yml", "n8n-build/staging/.gitkeep"]
    assert commands.settings() == "# mine\n"
    assert commands.json("init")["changes"] == []
    assert "is not an environment" in commands.refused("init", "--env", "common")
    for url in ("nonsense: {", "ftp://n8n", "http://n8n:port", "http://a b"):
        assert "http://127.0.0.1:5678" in commands.refused("init", "--env", "new", "--n8n-url", url, code=2)


def test_init_refuses_a_path_that_is_a_file(tmp_path):
    (tmp_path / "n8n-config").write_text("a file")
    assert "is a file, but a workspace needs a folder" in Commands(tmp_path).refused("init")


# ── create-lock, copy-primitive ──


def test_create_lock_installs_the_pair_and_registers_it(empty):
    reply = empty.json("create-lock")
    assert reply["written"] == ["lock_acquisition", "lock_release"]
    assert reply["transport"] == "redis"
    for env in ("dev", "prod"):
        assert set(reply["ids"][env]) == {"lock_acquisition", "lock_release"}
        for made in reply["ids"][env].values():
            assert len(made) <= 16
            assert made in empty.settings(env)
    assert empty.path("lock_release").read_text() == primitive("lock_release", "redis").text()
    assert not empty.path("rate_limit_check").exists()
    again = empty.json("create-lock")
    assert again["changes"] == []
    assert again["kept"] == ["lock_acquisition", "lock_release"]


def test_create_lock_can_be_limited_to_one_environment(empty):
    empty.do("create-lock", "--env", "prod")
    assert "lock_release" in empty.settings("prod")
    assert "lock_release" not in empty.settings("dev")
    assert "no environment is named 'staging'" in empty.refused("create-lock", "--env", "staging")


def test_an_existing_primitive_is_kept_unless_forced_and_an_older_one_is_reported(empty):
    empty.do("create-lock")
    empty.put("lock_release", FLOW)
    older = primitive("lock_acquisition", "redis")
    older.data["meta"]["backstay"]["version"] = 0
    empty.put("lock_acquisition", older.text())
    before = empty.snapshot()
    reply = empty.json("create-lock")
    assert empty.snapshot() == before
    assert any("lock_acquisition.template.json is version 0" in line for line in reply["warnings"])
    assert any("lock_release.template.json is not one of Backstay's" in line for line in reply["warnings"])
    assert empty.json("create-lock", "--force-overwrite")["warnings"] == []
    assert empty.path("lock_release").read_text() == primitive("lock_release", "redis").text()
    empty.put("lock_release", "not even JSON")
    assert "lock_release.template.json" in empty.refused("create-lock")
    empty.do("create-lock", "--force-overwrite")
    assert empty.path("lock_release").read_text() == primitive("lock_release", "redis").text()


def test_a_workspace_has_one_transport(commands):
    line = commands.refused("create-lock", "--transport", "http")
    assert "do not share locks" in line
    lock(commands)
    everything = ("--include-error-handler", "--include-rate-limit", "--force-overwrite")
    assert "nightly: uses a lock or limit over another transport" in commands.refused(
        "create-lock", "--transport", "http", *everything
    )
    commands.do("remove-lock-from-workflow", "--workflow-key", "nightly")
    assert commands.json("create-lock", "--transport", "http", *everything)["transport"] == "http"
    assert 'url: "http://127.0.0.1:3000"' in commands.settings()
    assert commands.json("create-lock")["transport"] == "http"
    assert "neither redis nor http" in commands.refused("create-lock", "--transport", "carrier-pigeon", code=2)


def test_primitives_of_two_transports_are_refused(commands):
    commands.put("lock_release", primitive("lock_release", "http").text())
    line = commands.refused("add-lock-to-workflow", "--workflow-key", "nightly", "--scope-expression", "x")
    assert "lock_release uses http" in line


def test_copy_primitive_lists_and_copies_and_registers_nothing(empty):
    assert [one["here"] for one in empty.json("copy-primitive", "--list")["primitives"]] == [False] * 4
    before = empty.settings()
    assert empty.json("copy-primitive", "--name", "rate_limit_check")["written"] == ["rate_limit_check"]
    assert empty.settings() == before
    assert [one["here"] for one in empty.json("copy-primitive", "--list")["primitives"]] == [False, False, False, True]
    assert "rate_limit_check" in empty.do("copy-primitive", "--list")
    assert empty.json("copy-primitive", "--name", "rate_limit_check")["kept"] == ["rate_limit_check"]
    assert "unknown primitive" in empty.refused("copy-primitive", "--name", "mutex", code=2)
    assert "--name" in empty.refused("copy-primitive", code=2)


# ── locks ──


def test_a_lock_is_added_registered_and_removed_without_a_trace(commands):
    before = commands.snapshot()
    reply = lock(commands)
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
    reply = lock(commands, "--dry-run")
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
    assert lock(empty, "--lock-on-error")
    handler = json.loads(empty.path("nightly").read_text())["settings"]["errorWorkflow"]
    assert handler == "{{@:env:workflows.error_handler_lock_cleanup.id}}"


def test_lock_options_are_recorded_in_the_workflow(commands):
    lock(commands, "--ttl-seconds", "600", "--max-wait-seconds", "30", "--fail-fast")
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
    reply = lock(commands, "--lock-on-error")
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
    commands.do("add-rate-limit-to-workflow", "--workflow-key", "nightly", *LIMIT)
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
    reply = lock(commands, "--lock-on-error", *more)
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


def with_own_handler(commands):
    """Put a workflow with its own Error Trigger, which n8n starts as long as no error workflow is set."""
    flow = json.loads(FLOW)
    trigger = {"parameters": {}, "id": "own", "type": "n8n-nodes-base.errorTrigger", "typeVersion": 1}
    flow["nodes"].append({**trigger, "name": "When It Fails", "position": [0, 600]})
    flow["connections"]["When It Fails"] = {"main": [[{"node": flow["nodes"][1]["name"], "type": "main", "index": 0}]]}
    commands.put("nightly", flow)


def test_lock_on_error_reports_the_error_trigger_it_replaces(commands):
    with_own_handler(commands)
    assert any("When It Fails" in line for line in lock(commands, "--lock-on-error")["warnings"])
    commands.do("remove-lock-from-workflow", "--workflow-key", "nightly")
    assert not any("replaces it until" in line for line in lock(commands)["warnings"])


# ── limits ──


LIMIT = ("--limit", "3", "--window-seconds", "60", "--scope-expression", "api")


def test_a_limit_is_added_and_removed_without_a_trace(commands):
    before = commands.snapshot()
    commands.do("add-rate-limit-to-workflow", "--workflow-key", "nightly", *LIMIT, "--on-denied", "stop")
    assert "already has a limit" in commands.refused("add-rate-limit-to-workflow", "--workflow-key", "nightly", *LIMIT)
    commands.do("remove-rate-limit-from-workflow", "--workflow-key", "nightly")
    assert commands.snapshot() == before


def test_a_limit_needs_its_primitive(empty):
    empty.put("nightly")
    line = empty.refused("add-rate-limit-to-workflow", "--workflow-key", "nightly", *LIMIT)
    assert "rate_limit_check is not installed" in line
    assert "--include-rate-limit" in line


def test_an_unknown_on_denied_value_is_refused(commands):
    arguments = ("add-rate-limit-to-workflow", "--workflow-key", "nightly", *LIMIT, "--on-denied", "shout")
    assert "passthrough, stop, error" in commands.refused(*arguments, code=2)


def test_lock_and_limit_can_be_removed_in_either_order(commands):
    before = commands.path("nightly").read_bytes()
    for first, second in (("lock", "rate-limit"), ("rate-limit", "lock")):
        lock(commands)
        commands.do("add-rate-limit-to-workflow", "--workflow-key", "nightly", *LIMIT)
        commands.do(f"remove-{first}-from-workflow", "--workflow-key", "nightly")
        commands.do(f"remove-{second}-from-workflow", "--workflow-key", "nightly")
        assert commands.path("nightly").read_bytes() == before


# ── scopes ──


def test_scopes_are_added_listed_and_removed(empty):
    reply = empty.json("scopes", "add", "a", "b:c d", "--env", "dev")
    assert reply["added"] == {"dev": ["a", "b:c d"]}
    assert empty.json("scopes", "add", "a")["added"] == {"dev": [], "prod": ["a"]}
    assert empty.json("scopes", "ls")["scopes"] == {"dev": ["a", "b:c d"], "prod": ["a"]}
    assert "b:c d" in empty.do("scopes", "ls")
    assert empty.json("scopes", "rm", "a")["removed"] == {"dev": ["a"], "prod": ["a"]}
    assert "not registered in any environment" in empty.refused("scopes", "rm", "a")
    assert "a scope must not be empty" in empty.refused("scopes", "add", "", code=2)


# ── error handlers ──


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
    with_own_handler(commands)
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


# ── hydrate, validate ──


def test_built_workflows_have_no_placeholders_and_call_built_ids(commands):
    lock(commands, "--lock-on-error")
    commands.do("hydrate")
    for env in ("dev", "prod"):
        ids = {key: commands.built(key, env)["id"] for key in KEYS}
        text = json.dumps(commands.built("nightly", env))
        assert "{{@:" not in text
        assert ids["lock_acquisition"] in text
        assert "local-" in text
    again = commands.json("hydrate")
    assert again["changes"] == []


def test_one_workflow_that_cannot_be_built_builds_none(commands):
    flow = json.loads(FLOW)
    flow["name"] = "{{@:env:nowhere.to.be}}"
    commands.put("zzz", flow)
    line = commands.refused("hydrate", "--env", "dev")
    assert "zzz.template.json" in line
    assert "nowhere.to.be" in line
    assert not list((commands.root / "n8n-build/dev").glob("*.json"))


def test_a_build_older_than_the_removal_of_its_lock_is_reported(commands):
    lock(commands)
    commands.do("hydrate")
    commands.do("remove-lock-from-workflow", "--workflow-key", "nightly")
    built = ("validate", "--workflow-key", "nightly", "--env", "dev", "--source", "built", "--json")
    (verdict,) = json.loads(commands.call(*built).stdout)["workflows"]
    assert "stale-build" in [finding["rule"] for finding in verdict["findings"]]
    commands.do("hydrate")
    assert json.loads(commands.call(*built).stdout)["verdict"] == "valid"


def test_validate_exits_with_0_1_or_2(commands):
    lock(commands)
    commands.do("hydrate")
    verdict = commands.json("validate", "--workflow-key", "nightly", "--env", "dev", "--source", "built")
    assert verdict["verdict"] == "valid"
    assert verdict["workflows"][0]["path"] == "n8n-build/dev/nightly.json"
    assert commands.json("validate", "--source", "template")["verdict"] == "valid"

    flow = json.loads(FLOW)
    flow["connections"]["Work"] = {"main": [[{"node": "Nowhere", "type": "main", "index": 0}]]}
    commands.put("wrong", flow)
    done = commands.call("validate", "--workflow-key", "wrong", "--json")
    assert done.exit_code == 1
    verdict = json.loads(done.stdout)
    assert verdict["verdict"] == "invalid"
    assert verdict["workflows"][0]["findings"][0]["level"] == "error"
    assert "Nowhere" in commands.call("validate", "--workflow-key", "wrong").stdout

    commands.put("broken", "{")
    done = commands.call("validate", "--json")
    assert done.exit_code == 2
    verdict = json.loads(done.stdout)
    assert verdict["verdict"] == "unreadable"
    assert {one["workflow_key"]: one["verdict"] for one in verdict["workflows"]}["broken"] == "unreadable"
    assert "does not exist" in commands.call("validate", "--env", "dev", "--workflow-key", "wrong").stdout
    assert commands.call("validate", "--env", "dev", "--workflow-key", "wrong").exit_code == 2
    commands.refused("validate", "--source", "memory", code=2)


def test_validate_names_each_file_once_and_counts_in_the_singular(commands):
    commands.put("half", "{")
    lines = commands.call("validate").stdout.splitlines()
    (line,) = [one for one in lines if "half" in one]
    assert line.count("half.template.json") == 1
    (line,) = [one for one in commands.call("validate", "--env", "dev").stdout.splitlines() if "half" in one]
    assert line.count("n8n-build/dev/half.json") == 1
    commands.put("half", FLOW.replace('"executionOrder": "v1", ', ""))
    assert "valid (1 warning)" in commands.do("validate", "--workflow-key", "half")


# ── doctor ──


def test_the_doctor_reports_unregistered_scopes(commands):
    lock(commands)
    found = commands.json("doctor", "--env", "dev")
    assert found["verdict"] == "warning"  # the ids are local, and there is no API key
    assert not any("lockScopes" in check["what"] for check in found["checks"])
    commands.do("scopes", "rm", "nightly", "--env", "dev")
    found = commands.json("doctor", "--env", "dev")
    assert any("'nightly' is not in lockScopes of dev" in check["what"] for check in found["checks"])
    assert commands.call("doctor", "--env", "dev", "--strict").exit_code == 1
    assert "scopes add nightly --env dev" in commands.do("doctor", "--env", "dev")
    assert "manage-credentials create --env dev --key redis --type redis --env-vars" in commands.do(
        "doctor", "--env", "dev"
    )
    commands.put("broken", "{")
    done = commands.call("doctor", "--env", "dev", "--json")
    assert done.exit_code == 2
    checks = json.loads(done.stdout)["checks"]
    assert [check["name"] for check in checks if check["level"] == "error"] == ["workflow broken"]  # reported once
    assert [check["what"] for check in checks if check["name"] == "n8n"] == ["not checked: fix the errors above first"]


def test_validate_reads_each_workflow_once(commands, monkeypatch):
    for n in range(20):
        commands.put(f"w{n}")
    read = []
    parse = Workflow.parse
    monkeypatch.setattr(
        Workflow, "parse", lambda *given, source="": read.append(source) or parse(*given, source=source)
    )
    commands.do("validate")
    assert len(read) == len(set(read)) >= 20


def test_workflows_that_are_not_built_are_read_from_their_templates(commands):
    """A workflow over http that is built alone is not mistaken for redis, and faults of its body are found."""
    everything = ("--include-error-handler", "--include-rate-limit", "--force-overwrite")
    commands.do("create-lock", "--transport", "http", *everything)
    flow = json.loads(FLOW)
    del flow["settings"]["executionTimeout"]
    commands.put("alone", flow)
    commands.do("add-lock-to-workflow", "--workflow-key", "alone", "--scope-expression", "alone")
    commands.do("hydrate", "--env", "dev", "--workflow-key", "alone")
    (verdict,) = commands.json("validate", "--env", "dev", "--workflow-key", "alone")["workflows"]
    assert [finding["rule"] for finding in verdict["findings"]] == ["no-error-workflow"]


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
