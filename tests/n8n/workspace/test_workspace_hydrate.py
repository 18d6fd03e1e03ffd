"""Hydration resolves placeholders from the workspace and from nowhere else."""

from __future__ import annotations

import json
import uuid

import pytest

from backstay.errors import BadWorkflow, WorkspaceError
from backstay.n8n.workspace.init import create_missing_files
from backstay.n8n.workspace.workspace import Workspace


class WorkspaceFolder:
    """A workspace whose files a test writes directly."""

    def __init__(self, root):
        self.root = root
        with Workspace(root).edit() as view:
            create_missing_files(view, ["dev", "prod"])

    def put(self, path, text):
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text if isinstance(text, str) else json.dumps(text))

    def env(self, text, name="dev"):
        self.put(f"n8n-config/{name}.yml", text)

    def template(self, note, key="flow"):
        """Write a workflow template with this text in a node's note."""
        node = {"name": "Start", "type": "n8n-nodes-base.manualTrigger", "notes": note}
        self.put(f"n8n-workflows-template/{key}.template.json", {"name": "Flow", "nodes": [node], "connections": {}})

    def built(self, env="dev", key="flow", **options):
        return Workspace.open(self.root).hydrate(env, key, **options)

    def note(self, **options):
        return self.built(**options).nodes[0].data["notes"]


@pytest.fixture
def workspace(tmp_path):
    return WorkspaceFolder(tmp_path / "w")


def test_environment_settings_override_common_ones(workspace):
    workspace.put("n8n-config/common.yml", "mail: {to: all@example.org, from: us}\nlist: [1, two]\n")
    workspace.env("mail:\n  to: dev@example.org\n")
    workspace.template("{{@:env:mail.to}} {{@:env:mail.from}} {{ @:env:list.1 }} {{@:env:list}} {{ $json.x }}")
    assert workspace.note() == 'dev@example.org us two [1,"two"] {{ $json.x }}'


VALUES = ['quote " here', "back\\slash", "line\nline", "tab\t", "\u2028 é 𝄞", "</script>", "\x01"]


@pytest.mark.parametrize("value", VALUES)
def test_values_are_escaped_for_json(workspace, value):
    workspace.env("value: " + json.dumps(value))
    workspace.template("<{{@:env:value}}>")
    assert workspace.note() == f"<{value}>"


def test_numbers_and_ids_keep_their_spelling(workspace):
    workspace.env("a: 0123\nb: 1.50\nc: 7\nd: true\n")
    workspace.template("{{@:env:a}} {{@:env:b}} {{@:env:c}} {{@:env:d}}")
    assert workspace.note() == "0123 1.50 7 true"


def test_a_placeholder_outside_a_string_keeps_the_values_type(workspace):
    workspace.env("limits: {each: 5}\nlockScopes: [a]\n")
    text = '{"name": "F", "nodes": [], "connections": {}, "n": {{@:env:limits.each}}, "s": {{@:env:lockScopes}}}'
    workspace.put("n8n-workflows-template/flow.template.json", text)
    assert workspace.built().data["n"] == 5
    assert workspace.built().data["s"] == ["a"]


def test_a_missing_setting_names_the_file_and_the_path(workspace):
    workspace.env("credentials: {redis: {}}\n")
    workspace.template("{{@:env:credentials.redis.id}}")
    with pytest.raises(WorkspaceError) as refusal:
        workspace.built()
    assert str(refusal.value) == (
        "n8n-workflows-template/flow.template.json: {{@:env:credentials.redis.id}}: no 'id' of"
        " credentials.redis.id in n8n-config/dev.yml and n8n-config/common.yml"
    )


@pytest.mark.parametrize(
    ("url", "becomes"),
    [
        ("http://127.0.0.1:3000", "http://127.0.0.1:3000"),
        ("https://example.org/", "https://example.org"),
        ("https://example.org/backstay//", "https://example.org/backstay"),
    ],
)
def test_paths_are_joined_to_the_server_url_with_or_without_a_slash(workspace, url, becomes):
    workspace.env(f"backstay: {{url: {url}}}\n")
    workspace.template("={{@:env:backstay.url}}/api")
    assert workspace.note() == f"={becomes}/api"


@pytest.mark.parametrize("url", ["127.0.0.1:3000", "redis://127.0.0.1", "http://", "https:///x", "https://a b", "17"])
def test_an_invalid_server_url_is_refused(workspace, url):
    workspace.env(f"backstay: {{url: '{url}'}}\n")
    workspace.template("={{@:env:backstay.url}}/api")
    with pytest.raises(WorkspaceError, match="must be an http:// or https:// URL"):
        workspace.built()


@pytest.mark.parametrize("text", ["", "lockScopes: []\n", "lockScopes:\n", "lockScopes: null\n"])
def test_missing_scopes_become_an_empty_list(workspace, text):
    workspace.env(text)
    workspace.template("={{ {{@:env:lockScopes}} }}")
    assert workspace.note() == "={{ [] }}"


def test_scopes_are_json_inside_an_expression(workspace):
    workspace.env('lockScopes: ["it\'s", "a\\"b"]\n')
    workspace.template("={{ {{@:env:lockScopes}} }}")
    assert workspace.note() == '={{ ["it\'s","a\\"b"] }}'


@pytest.mark.parametrize(
    "text", ["lockScopes: nightly\n", "lockScopes: {a: b}\n", "lockScopes: [a, true]\n", "lockScopes: [[a]]\n"]
)
def test_scopes_that_are_not_a_list_of_strings_are_refused(workspace, text):
    """Clean-up would iterate over single letters, or over nothing."""
    workspace.env(text)
    workspace.template("={{ {{@:env:lockScopes}} }}")
    with pytest.raises(WorkspaceError, match="lockScopes must be a list of strings"):
        workspace.built()


def test_a_numeric_scope_becomes_its_digits(workspace):
    workspace.env("lockScopes: [42]\n")
    workspace.template("={{ {{@:env:lockScopes}} }}")
    assert workspace.note() == '={{ ["42"] }}'


def test_a_uuid_is_the_same_for_one_name_in_one_workflow_and_environment(workspace):
    workspace.template("{{@:uuid:hook}} {{@:uuid:hook}} {{@:uuid:other}}")
    workspace.template("{{@:uuid:hook}}", key="second")
    first, again, other = workspace.note().split()
    assert uuid.UUID(first)
    assert first == again == workspace.note().split()[0]
    assert len({first, other, workspace.note(env="prod").split()[0], workspace.note(key="second")}) == 4


def test_files_are_taken_from_the_workspace_and_from_beside_the_templates(workspace):
    workspace.put("prompts/hello.txt", 'Say "hello"\n')
    workspace.put("n8n-workflows-template/beside.html", "<b>&amp;</b>")
    workspace.put("code/run.js", "return 'a\\n' // {{@:env:mail}}\n")
    workspace.put("code/run.py", "print('x')\n")
    workspace.put("data.json", '{ "a": [1, 2.50] }\n')
    workspace.env("mail: x@y\n")
    kinds = ["txt:prompts/hello.txt", "html:beside.html", "js:code/run.js", "py:code/run.py", "json:data.json"]
    workspace.template("|".join(f"{{{{@:{kind}}}}}" for kind in kinds))
    assert workspace.note().split("|") == [
        'Say "hello"\n',
        "<b>&amp;</b>",
        "return 'a\\n' // x@y\n",
        "print('x')\n",
        '{"a":[1,2.50]}',
    ]


@pytest.mark.parametrize(
    "path", ["/etc/hostname", "../secret.txt", "a/../../secret.txt", "~/x", "link.txt", "dir/secret.txt"]
)
def test_a_file_outside_the_workspace_is_not_included(workspace, path):
    outside = workspace.root.parent / "elsewhere"
    outside.mkdir()
    (outside / "secret.txt").write_text("secret")
    (workspace.root / "link.txt").symlink_to(outside / "secret.txt")
    (workspace.root / "dir").symlink_to(outside)
    workspace.template(f"{{{{@:txt:{path}}}}}")
    with pytest.raises(WorkspaceError, match=r"leads out of the workspace|is outside the workspace") as refusal:
        workspace.built()
    assert "flow.template.json" in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{@:txt:none.txt}}", "the workspace has no file none.txt"),
        ("{{@:yaml:x}}", "has an unknown kind (known: env, uuid, txt, json, html, js, py)"),
        ("{{@:env:}}", "does not name anything"),
        ("{{@:txt:loop.txt}}", "includes itself (loop.txt → loop.txt)"),
        ("{{@:json:bad.json}}", "line 1, column 2"),
        ("{{@:txt:bytes.txt}}", "is not UTF-8"),
    ],
)
def test_an_unresolvable_placeholder_is_refused(workspace, text, message):
    workspace.put("loop.txt", "{{@:txt:loop.txt}}")
    workspace.put("bad.json", "{1}")
    (workspace.root / "bytes.txt").write_bytes(b"\xff")
    workspace.template(text)
    with pytest.raises((WorkspaceError, BadWorkflow)) as refusal:
        workspace.built()
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "message"), [("{{@:env:empty}}", "is empty"), ("{{@ env:x}}", "looks like a placeholder")]
)
def test_strict_turns_warnings_into_refusals(workspace, text, message):
    workspace.env("empty:\n")
    workspace.template(text)
    opened = Workspace.open(workspace.root)
    opened.hydrate("dev", "flow")
    assert message in opened.notes[0]
    with pytest.raises(WorkspaceError, match=message):
        workspace.built(strict=True)


def test_workflow_id_and_name_come_from_the_environment(workspace):
    workspace.template("x")
    assert "id" not in workspace.built().data
    workspace.env("workflows: {flow: {id: 12ab, name: Flow (dev)}}\n")
    built = workspace.built()
    assert (built.id, built.name) == ("12ab", "Flow (dev)")
    assert next(iter(built.data)) == "id"


@pytest.mark.parametrize("key", ["../x", "a/b", "", ".", "a.b", "-x", "a b", "x" * 101, "a\n", "ä"])
def test_a_workflow_key_that_is_a_path_is_refused(workspace, key):
    workspace = Workspace.open(workspace.root)
    with pytest.raises(WorkspaceError, match="is not a valid workflow key"):
        workspace.read(key)
    with pytest.raises(WorkspaceError):
        workspace.env(key)
    with pytest.raises(WorkspaceError), workspace.edit() as view:
        view.register("dev", key, name="x")


def test_an_unknown_workflow_is_refused_with_the_known_names(workspace):
    workspace.template("x", key="nightly")
    with pytest.raises(
        WorkspaceError, match=r"no workflow is named 'night': .* \(n8n-workflows-template has nightly\)"
    ):
        Workspace.open(workspace.root).read("night")


def test_a_folder_without_settings_is_not_a_workspace(tmp_path):
    with pytest.raises(WorkspaceError, match="backstay n8n init"):
        Workspace.open(tmp_path / "none")


def test_an_unknown_environment_is_refused_with_the_known_names(workspace):
    with pytest.raises(WorkspaceError, match="no environment is named 'staging': n8n-config has dev, prod"):
        Workspace.open(workspace.root).env("staging")
    with pytest.raises(WorkspaceError, match="is not an environment"):
        Workspace.open(workspace.root).env("common")


def test_common_scopes_remain_when_an_environment_adds_its_own(workspace):
    workspace.put("n8n-config/common.yml", "lockScopes: [everywhere]\n")
    workspace.env("# nothing\n")
    with Workspace.open(workspace.root).edit() as view:
        assert view.add_scope("dev", "here")
        assert not view.add_scope("dev", "everywhere")
    assert Workspace.open(workspace.root).scopes("dev") == ("everywhere", "here")
