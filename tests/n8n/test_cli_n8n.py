"""`backstay n8n`: every command on a real workspace, without a network."""

from __future__ import annotations

import json
import re
import shutil

import pytest
from desk_commands import COMMAND, FLOW, Commands

from backstay.n8n.model import Workflow
from backstay.n8n.primitives import KEYS, primitive

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
    """Made by commands, once: a workspace without a workflow, and one with a workflow and all primitives."""
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
    """One with a workflow and all primitives."""
    return Commands(shutil.copytree(made[1], tmp_path / "flows"))


def lock(commands, *more, scope="={{ 'nightly' }}", key="nightly"):
    return commands.json("add-lock-to-workflow", "--workflow-key", key, "--scope-expression", scope, *more)


# ── all of them ──


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_the_common_options_and_teaches_by_example(empty, command):
    options = {name for parameter in COMMANDS[command].params for name in parameter.opts}
    assert {"--workspace", "--json", "--dry-run"} <= options
    shown = empty.do(*command.split(), "--help")
    assert "Examples" in shown
    assert f"backstay n8n {command}" in " ".join(shown.split())
    # A shell would take what is not escaped for a variable of its own.
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
def test_a_folder_that_is_no_workspace_is_refused_and_left_alone(tmp_path, arguments):
    commands = Commands(tmp_path)
    line = commands.refused(*arguments)
    assert "is no workspace" in line
    told = json.loads(commands.call(*arguments, "--json").stdout)["error"]
    assert (told["kind"], told["exit_code"]) == ("WorkspaceError", 1)
    assert told["message"] in line
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
def test_what_is_refused_is_json_where_json_was_asked_for(commands, arguments, kind, code):
    commands.refused(*arguments, code=code)
    before = commands.snapshot()
    done = commands.call(*arguments, "--json")
    told = json.loads(done.stdout)["error"]
    assert (done.exit_code, told["kind"], told["exit_code"]) == (code, kind, code)
    assert told["message"]
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
def test_a_record_that_cannot_be_read_is_told_of_by_its_own_workflows_name(commands, record):
    """Written by a newer Backstay, or edited: no traceback, and no other workflow is blamed for it."""
    commands.put("odd", {**json.loads(FLOW), "meta": {"backstay": {"before": {}, **record}}})
    kind = next(name for name in record if name != "version")
    off = {"lock": "remove-lock-from-workflow", "limit": "remove-rate-limit-from-workflow"}[kind]
    for typed in (
        ("add-lock-to-workflow", "--workflow-key", "nightly", "--scope-expression", "x"),
        ("create-lock",),
        (off, "--workflow-key", "odd"),
        ("add-lock-to-workflow", "--workflow-key", "odd", "--scope-expression", "x"),
    ):
        line = commands.refused(*typed)
        assert line.startswith("backstay: odd: "), line
        assert "meta.backstay" in line
    assert not isinstance(commands.call("picture", "--workflow-key", "odd").exception, Exception)
    done = commands.call("doctor", "--env", "dev", "--json")
    assert done.exit_code == 2
    assert [one["name"] for one in json.loads(done.stdout)["checks"] if one["level"] == "error"] == ["workflow odd"]
    assert "unreadable-record" in commands.call("validate", "--workflow-key", "odd").stdout


def test_a_body_that_lost_its_record_is_not_put_back_and_nothing_changes(commands):
    """As the editor's download of it has."""
    lock(commands)
    body = json.loads(commands.path("nightly_body").read_text())
    body["meta"] = {"templateCredsSetupCompleted": True}
    commands.put("nightly_body", body)
    line = commands.refused("remove-lock-from-workflow", "--workflow-key", "nightly")
    assert "nightly_body" in line
    assert "meta.backstay" in line


@pytest.mark.parametrize("key", ["../x", "/etc/passwd", "a/b", "..", "a.b", ""])
def test_a_key_is_no_path(commands, key):
    for arguments in (
        ("add-lock-to-workflow", "--workflow-key", key, "--scope-expression", "x"),
        ("remove-lock-from-workflow", "--workflow-key", key),
        ("register-error-handler", "--workflow-key", "nightly", "--handler-key", key),
        ("hydrate", "--workflow-key", key),
    ):
        assert "is no workflow key" in commands.refused(*arguments)
    assert "is no workflow key" in commands.refused("validate", "--workflow-key", key, code=2)
    for arguments in (("hydrate", "--env", key), ("scopes", "add", "x", "--env", key)):
        assert "is no environment" in commands.refused(*arguments)


BAD_SETTINGS = [("\tworkflows: {}\n", "there is a tab"), ("a: &x 1\nb: *x\n", "anchor"), ("a: [\n", "line 2")]


@pytest.mark.parametrize(("text", "said"), BAD_SETTINGS)
def test_settings_that_cannot_be_changed_are_refused_before_anything_is_written(commands, text, said):
    (commands.root / "n8n-config/prod.yml").write_text(text)
    for arguments in (
        ("create-lock", "--force-overwrite"),
        ("add-lock-to-workflow", "--workflow-key", "nightly", "--scope-expression", "nightly"),
        ("scopes", "add", "x"),
        ("hydrate",),
    ):
        line = commands.refused(*arguments)
        assert said in line
        assert "n8n-config/prod.yml" in line


# ── init ──


def test_init_makes_a_workspace_and_spares_what_is_there(tmp_path):
    commands = Commands(tmp_path / "new" / "flows")
    told = commands.json("init", "--env", "dev", "--dry-run")
    assert told["dry_run"]
    assert "+++ n8n-config/dev.yml" in told["diff"]
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


def test_init_refuses_a_place_where_something_else_is(tmp_path):
    (tmp_path / "n8n-config").write_text("a file")
    assert "is in the way" in Commands(tmp_path).refused("init")


# ── create-lock, copy-primitive ──


def test_create_lock_installs_the_pair_and_registers_it(empty):
    told = empty.json("create-lock")
    assert told["written"] == ["lock_acquisition", "lock_release"]
    assert told["transport"] == "redis"
    for env in ("dev", "prod"):
        assert set(told["ids"][env]) == {"lock_acquisition", "lock_release"}
        for made in told["ids"][env].values():
            assert len(made) <= 16
            assert made in empty.settings(env)
    assert empty.path("lock_release").read_text() == primitive("lock_release", "redis").text()
    assert not empty.path("rate_limit_check").exists()
    again = empty.json("create-lock")
    assert again["changes"] == []
    assert again["kept"] == ["lock_acquisition", "lock_release"]


def test_create_lock_can_be_for_one_environment(empty):
    empty.do("create-lock", "--env", "prod")
    assert "lock_release" in empty.settings("prod")
    assert "lock_release" not in empty.settings("dev")
    assert "there is no environment 'staging'" in empty.refused("create-lock", "--env", "staging")


def test_a_file_that_is_there_is_kept_unless_forced_and_an_older_one_is_named(empty):
    empty.do("create-lock")
    empty.put("lock_release", FLOW)
    older = primitive("lock_acquisition", "redis")
    older.data["meta"]["backstay"]["version"] = 0
    empty.put("lock_acquisition", older.text())
    before = empty.snapshot()
    told = empty.json("create-lock")
    assert empty.snapshot() == before
    assert any("lock_acquisition.template.json is version 0" in line for line in told["warnings"])
    assert any("lock_release.template.json is none of Backstay's" in line for line in told["warnings"])
    assert empty.json("create-lock", "--force-overwrite")["warnings"] == []
    assert empty.path("lock_release").read_text() == primitive("lock_release", "redis").text()
    empty.put("lock_release", "not even JSON")
    assert "lock_release.template.json" in empty.refused("create-lock")
    empty.do("create-lock", "--force-overwrite")
    assert empty.path("lock_release").read_text() == primitive("lock_release", "redis").text()


def test_a_workspace_speaks_one_transport(commands):
    line = commands.refused("create-lock", "--transport", "http")
    assert "do not see each other's locks" in line
    lock(commands)
    everything = ("--include-error-handler", "--include-rate-limit", "--force-overwrite")
    assert "nightly: woven for another transport" in commands.refused("create-lock", "--transport", "http", *everything)
    commands.do("remove-lock-from-workflow", "--workflow-key", "nightly")
    assert commands.json("create-lock", "--transport", "http", *everything)["transport"] == "http"
    assert 'url: "http://127.0.0.1:3000"' in commands.settings()
    assert commands.json("create-lock")["transport"] == "http"
    assert "neither redis nor http" in commands.refused("create-lock", "--transport", "carrier-pigeon", code=2)


def test_a_pair_of_two_transports_takes_no_lock(commands):
    commands.put("lock_release", primitive("lock_release", "http").text())
    line = commands.refused("add-lock-to-workflow", "--workflow-key", "nightly", "--scope-expression", "x")
    assert "lock_release speaks http" in line


def test_copy_primitive_lists_and_copies_and_registers_nothing(empty):
    assert [one["here"] for one in empty.json("copy-primitive", "--list")["primitives"]] == [False] * 4
    before = empty.settings()
    assert empty.json("copy-primitive", "--name", "rate_limit_check")["written"] == ["rate_limit_check"]
    assert empty.settings() == before
    assert [one["here"] for one in empty.json("copy-primitive", "--list")["primitives"]] == [False, False, False, True]
    assert "rate_limit_check" in empty.do("copy-primitive", "--list")
    assert empty.json("copy-primitive", "--name", "rate_limit_check")["kept"] == ["rate_limit_check"]
    assert "there is no primitive" in empty.refused("copy-primitive", "--name", "mutex", code=2)
    assert "--name" in empty.refused("copy-primitive", code=2)


# ── locks ──


def test_a_lock_is_added_registered_and_taken_off_again_to_the_byte(commands):
    before = commands.snapshot()
    told = lock(commands)
    assert told["static_scope"] == "nightly"
    for env in ("dev", "prod"):
        assert commands.settings(env).endswith("lockScopes:\n  - nightly\n")
        assert "  nightly:\n    id: local-" in commands.settings(env)  # who holds a lock says its id
    line = commands.refused("add-lock-to-workflow", "--workflow-key", "nightly", "--scope-expression", "y")
    assert "nightly: it has a lock already" in line
    assert commands.do("remove-lock-from-workflow", "--workflow-key", "nightly").startswith("nightly: the lock is off.")
    after = commands.snapshot()
    changed = [path for path in {**before, **after} if before.get(path) != after.get(path)]
    assert sorted(changed) == ["n8n-config/dev.yml", "n8n-config/prod.yml"]
    for env in ("dev", "prod"):  # the scope stays, and nothing else
        assert (
            commands.settings(env).replace("lockScopes:\n  - nightly\n", "lockScopes: []\n").encode()
            == before[f"n8n-config/{env}.yml"]
        )
    assert "has no lock" in commands.refused("remove-lock-from-workflow", "--workflow-key", "nightly")


def test_a_dry_run_of_a_lock_shows_the_diff_and_changes_nothing(commands):
    before = commands.snapshot()
    told = lock(commands, "--dry-run")
    assert "+++ n8n-workflows-template/nightly.template.json" in told["diff"]
    assert "+  - nightly" in told["diff"]
    assert commands.snapshot() == before
    shown = commands.do(
        "add-lock-to-workflow", "--workflow-key", "nightly", "--scope-expression", "nightly", "--dry-run"
    )
    assert "Nothing was changed: --dry-run." in shown
    assert "+  - nightly" in shown


def test_a_scope_that_differs_from_run_to_run_is_not_registered_and_says_what_to_add(commands):
    told = commands.do(
        "add-lock-to-workflow", "--workflow-key", "nightly", "--scope-expression", "={{ 'excel-' + $json.fileId }}"
    )
    assert "backstay n8n scopes add VALUE" in told
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


def test_options_of_a_lock_reach_the_graph(commands):
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
def test_numbers_and_scopes_that_cannot_be_are_refused(commands, arguments, code):
    commands.refused(
        "add-lock-to-workflow", "--workflow-key", "nightly", "--scope-expression", "x", *arguments, code=code
    )


def test_primitives_and_files_that_are_no_workflow_take_no_lock(commands):
    scope = ("--scope-expression", "x")
    assert "primitives" in commands.refused("add-lock-to-workflow", "--workflow-key", "lock_release", *scope)
    for text in ("not json", "[]", "{}", '{"nodes": []}', '{"nodes": [], "connections": {}}'):
        commands.put("bad", text)
        commands.refused("add-lock-to-workflow", "--workflow-key", "bad", *scope)
    assert "there is no workflow 'none'" in commands.refused("add-lock-to-workflow", "--workflow-key", "none", *scope)


def test_a_body_of_its_own_does_not_take_the_place_of_a_file(commands):
    commands.put("nightly_body")
    line = commands.refused("add-lock-to-workflow", "--workflow-key", "nightly", "--scope-expression", "x")
    assert "nightly_body.template.json is in the way" in line


def test_another_error_handler_is_named_when_lock_on_error_takes_its_place(commands):
    flow = json.loads(FLOW)
    flow["settings"]["errorWorkflow"] = "abc"
    commands.put("nightly", flow)
    before = commands.path("nightly").read_bytes()
    told = lock(commands, "--lock-on-error")
    assert any("abc" in line for line in told["warnings"])
    commands.do("remove-lock-from-workflow", "--workflow-key", "nightly")
    assert commands.path("nightly").read_bytes() == before


def must_stay(commands):
    """Over http, and it waits for an answer, which n8n does not tell the caller of a sub-workflow of."""
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


def test_over_http_a_body_that_must_stay_is_refused_with_the_reason_and_the_ways_out(commands):
    must_stay(commands)
    asked = ("add-lock-to-workflow", "--workflow-key", "nightly", "--scope-expression", "x", "--lock-on-error")
    for more in ((), ("--dry-run",), ("--fail-fast",)):
        line = " ".join(commands.refused(*asked, *more).split())
        for part in ("nightly", "'Pause'", "queue mode", "without the lock", "less than 65 s", "--in-place"):
            assert part in line
        told = json.loads(commands.call(*asked, *more, "--json").stdout)["error"]
        assert (told["kind"], told["exit_code"]) == ("PatchRefused", 1)
        assert told["message"] in line
    assert "without --per-item" in commands.refused(*asked, "--per-item", "--in-place")
    commands.do("add-rate-limit-to-workflow", "--workflow-key", "nightly", *LIMIT)
    assert "--in-place" in commands.refused(*asked)
    commands.do("validate")


KEEP = "--keep-failed-executions"


@pytest.mark.parametrize("more", [("--in-place",), (KEEP,), ("--in-place", KEEP)])
def test_over_http_failed_executions_of_a_body_that_must_stay_are_kept_on_request_alone(commands, more):
    must_stay(commands)
    before = commands.snapshot()
    assert "nightly" in commands.do(
        *("add-lock-to-workflow", "--workflow-key", "nightly", "--scope-expression", "x"),
        *("--lock-on-error", "--dry-run", *more),
    )
    assert commands.snapshot() == before
    told = lock(commands, "--lock-on-error", *more)
    assert told["wiring"] == "inline"
    saved = json.loads(commands.path("nightly").read_text())["settings"].get("saveDataErrorExecution")
    assert saved == (None if KEEP in more else "none")
    assert any("without the lock" in line for line in told["warnings"])
    once = commands.snapshot()
    again = ("add-lock-to-workflow", "--workflow-key", "nightly", "--scope-expression", "={{ 'nightly' }}")
    assert "lock already" in commands.refused(*again, "--lock-on-error", *more)
    assert commands.snapshot() == once
    (verdict,) = commands.json("validate", "--workflow-key", "nightly")["workflows"]
    assert (verdict["errors"], "retry-without-lock" in {one["rule"] for one in verdict["findings"]}) == (0, True)
    commands.do("remove-lock-from-workflow", "--workflow-key", "nightly")
    plain = "n8n-workflows-template/nightly.template.json"
    assert commands.snapshot()[plain] == before[plain]


def with_own_handler(commands):
    """A workflow that hears of its own failures: n8n starts its Error Trigger as long as no error workflow is named."""
    flow = json.loads(FLOW)
    trigger = {"parameters": {}, "id": "own", "type": "n8n-nodes-base.errorTrigger", "typeVersion": 1}
    flow["nodes"].append({**trigger, "name": "When It Fails", "position": [0, 600]})
    flow["connections"]["When It Fails"] = {"main": [[{"node": flow["nodes"][1]["name"], "type": "main", "index": 0}]]}
    commands.put("nightly", flow)


def test_an_error_trigger_of_its_own_is_named_when_lock_on_error_takes_its_place(commands):
    with_own_handler(commands)
    assert any("When It Fails" in line for line in lock(commands, "--lock-on-error")["warnings"])
    commands.do("remove-lock-from-workflow", "--workflow-key", "nightly")
    assert not any("takes its place" in line for line in lock(commands)["warnings"])


# ── limits ──


LIMIT = ("--limit", "3", "--window-seconds", "60", "--scope-expression", "api")


def test_a_limit_is_added_and_taken_off_again_to_the_byte(commands):
    before = commands.snapshot()
    commands.do("add-rate-limit-to-workflow", "--workflow-key", "nightly", *LIMIT, "--on-denied", "stop")
    assert "limit already" in commands.refused("add-rate-limit-to-workflow", "--workflow-key", "nightly", *LIMIT)
    commands.do("remove-rate-limit-from-workflow", "--workflow-key", "nightly")
    assert commands.snapshot() == before


def test_a_limit_needs_its_primitive(empty):
    empty.put("nightly")
    line = empty.refused("add-rate-limit-to-workflow", "--workflow-key", "nightly", *LIMIT)
    assert "rate_limit_check is not installed" in line
    assert "--include-rate-limit" in line


def test_only_three_things_can_become_of_the_denied(commands):
    arguments = ("add-rate-limit-to-workflow", "--workflow-key", "nightly", *LIMIT, "--on-denied", "shout")
    assert "passthrough, stop, error" in commands.refused(*arguments, code=2)


def test_lock_and_limit_together_come_off_in_either_order(commands):
    before = commands.path("nightly").read_bytes()
    for first, second in (("lock", "rate-limit"), ("rate-limit", "lock")):
        lock(commands)
        commands.do("add-rate-limit-to-workflow", "--workflow-key", "nightly", *LIMIT)
        commands.do(f"remove-{first}-from-workflow", "--workflow-key", "nightly")
        commands.do(f"remove-{second}-from-workflow", "--workflow-key", "nightly")
        assert commands.path("nightly").read_bytes() == before


# ── scopes ──


def test_scopes_are_added_listed_and_removed(empty):
    told = empty.json("scopes", "add", "a", "b:c d", "--env", "dev")
    assert told["added"] == {"dev": ["a", "b:c d"]}
    assert empty.json("scopes", "add", "a")["added"] == {"dev": [], "prod": ["a"]}
    assert empty.json("scopes", "ls")["scopes"] == {"dev": ["a", "b:c d"], "prod": ["a"]}
    assert "b:c d" in empty.do("scopes", "ls")
    assert empty.json("scopes", "rm", "a")["removed"] == {"dev": ["a"], "prod": ["a"]}
    assert "registered nowhere" in empty.refused("scopes", "rm", "a")
    assert "a scope is empty" in empty.refused("scopes", "add", "", code=2)


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
    assert "it was left alone" in commands.refused(*arguments)
    assert commands.json(*arguments, "--force")["replaced"] == "theirs"


def test_an_error_trigger_of_its_own_is_replaced_only_by_force(commands):
    with_own_handler(commands)
    arguments = ("register-error-handler", "--workflow-key", "nightly", "--handler-key", "error_handler_lock_cleanup")
    before = commands.snapshot()
    assert "'When It Fails'" in commands.refused(*arguments)
    assert commands.snapshot() == before
    assert "'When It Fails'" in commands.json(*arguments, "--force")["replaced"]
    assert not commands.json(*arguments)["changed"]


def test_what_cannot_handle_errors_is_refused(commands):
    commands.put("other")
    arguments = ("register-error-handler", "--workflow-key", "nightly", "--handler-key")
    assert "no Error Trigger" in commands.refused(*arguments, "other")
    assert "its own error handler" in commands.refused(*arguments, "nightly")
    assert "there is no workflow" in commands.refused(*arguments, "none")


# ── hydrate, validate ──


def test_what_is_built_has_no_placeholder_left_and_calls_what_is_built(commands):
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


def test_one_that_cannot_be_built_builds_none(commands):
    flow = json.loads(FLOW)
    flow["name"] = "{{@:env:nowhere.to.be}}"
    commands.put("zzz", flow)
    line = commands.refused("hydrate", "--env", "dev")
    assert "zzz.template.json" in line
    assert "nowhere.to.be" in line
    assert not list((commands.root / "n8n-build/dev").glob("*.json"))


def test_a_build_from_before_its_lock_was_removed_is_told(commands):
    lock(commands)
    commands.do("hydrate")
    commands.do("remove-lock-from-workflow", "--workflow-key", "nightly")
    built = ("validate", "--workflow-key", "nightly", "--env", "dev", "--source", "built", "--json")
    (verdict,) = json.loads(commands.call(*built).stdout)["workflows"]
    assert "stale-build" in [finding["rule"] for finding in verdict["findings"]]
    commands.do("hydrate")
    assert json.loads(commands.call(*built).stdout)["verdict"] == "valid"


def test_validate_says_0_1_and_2(commands):
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
    assert "is not there" in commands.call("validate", "--env", "dev", "--workflow-key", "wrong").stdout
    assert commands.call("validate", "--env", "dev", "--workflow-key", "wrong").exit_code == 2
    commands.refused("validate", "--source", "memory", code=2)


def test_validate_names_each_file_once_and_counts_as_people_do(commands):
    commands.put("half", "{")
    lines = commands.call("validate").stdout.splitlines()
    (line,) = [one for one in lines if "half" in one]
    assert line.count("half.template.json") == 1
    (line,) = [one for one in commands.call("validate", "--env", "dev").stdout.splitlines() if "half" in one]
    assert line.count("n8n-build/dev/half.json") == 1
    commands.put("half", FLOW.replace('"executionOrder": "v1", ', ""))
    assert "valid (1 warning)" in commands.do("validate", "--workflow-key", "half")


# ── doctor ──


def test_the_doctor_tells_of_scopes_that_are_not_registered(commands):
    lock(commands)
    found = commands.json("doctor", "--env", "dev")
    assert found["verdict"] == "warning"  # ids are made up, and there is no API key
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
    assert [check["name"] for check in checks if check["level"] == "error"] == ["workflow broken"]  # told once
    assert [check["what"] for check in checks if check["name"] == "n8n"] == ["not looked at: mend what is wrong first"]


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


def test_what_was_not_built_is_known_by_its_template(commands):
    """Built by itself, a workflow over http is not taken for one over redis, and its body's faults are found."""
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
    "typed",
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
def test_half_a_character_in_a_name_breaks_nothing(commands, typed, more):
    """JavaScript cuts texts in the midst of an emoji, and JSON carries that."""
    commands.put("half", HALF)
    done = commands.call(*typed, "--workflow-key", "half", *more)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code in (0, 1)
    if "--dry-run" not in typed and typed[0].startswith("add-") and done.exit_code == 0:
        commands.do(typed[0].replace("add", "remove").replace("-to-", "-from-"), "--workflow-key", "half")
    if typed[0].startswith("add-"):
        assert commands.path("half").read_text() == HALF


def test_half_a_character_is_drawn_as_a_question(commands, tmp_path):
    commands.put("half", HALF)
    out = tmp_path / "half.svg"
    commands.do("picture", "--workflow-key", "half", "--out", str(out))
    assert ">W?rk<" in out.read_text("utf-8")
