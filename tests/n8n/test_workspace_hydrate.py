"""Placeholders get their values, and nothing else gets in."""

from __future__ import annotations

import json
import uuid

import pytest

from backstay.errors import BadWorkflow, WorkspaceError
from backstay.n8n.workspace.init import lay_out
from backstay.n8n.workspace.workspace import Workspace


class Place:
    """A workspace to write into by hand."""

    def __init__(self, root):
        self.root = root
        with Workspace(root).edit() as view:
            lay_out(view, ["dev", "prod"])

    def put(self, path, text):
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text if isinstance(text, str) else json.dumps(text))

    def env(self, text, name="dev"):
        self.put(f"n8n-config/{name}.yml", text)

    def template(self, note, key="flow"):
        """A workflow whose name and one node's note hold something."""
        node = {"name": "Start", "type": "n8n-nodes-base.manualTrigger", "notes": note}
        self.put(f"n8n-workflows-template/{key}.template.json", {"name": "Flow", "nodes": [node], "connections": {}})

    def built(self, env="dev", key="flow", **options):
        return Workspace.open(self.root).hydrate(env, key, **options)

    def note(self, **options):
        return self.built(**options).nodes[0].data["notes"]


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path / "w")


def test_settings_come_from_the_environment_over_what_is_common(place):
    place.put("n8n-config/common.yml", "mail: {to: all@example.org, from: us}\nlist: [1, two]\n")
    place.env("mail:\n  to: dev@example.org\n")
    place.template("{{@:env:mail.to}} {{@:env:mail.from}} {{ @:env:list.1 }} {{@:env:list}} {{ $json.x }}")
    assert place.note() == 'dev@example.org us two [1,"two"] {{ $json.x }}'


VALUES = ['quote " here', "back\\slash", "line\nline", "tab\t", "\u2028 é 𝄞", "</script>", "\x01"]


@pytest.mark.parametrize("value", VALUES)
def test_values_are_escaped_as_json_wants_it(place, value):
    place.env("value: " + json.dumps(value))
    place.template("<{{@:env:value}}>")
    assert place.note() == f"<{value}>"


def test_numbers_and_ids_come_out_as_they_were_written(place):
    place.env("a: 0123\nb: 1.50\nc: 7\nd: true\n")
    place.template("{{@:env:a}} {{@:env:b}} {{@:env:c}} {{@:env:d}}")
    assert place.note() == "0123 1.50 7 true"


def test_outside_of_a_text_a_value_keeps_its_type(place):
    place.env("limits: {each: 5}\nlockScopes: [a]\n")
    text = '{"name": "F", "nodes": [], "connections": {}, "n": {{@:env:limits.each}}, "s": {{@:env:lockScopes}}}'
    place.put("n8n-workflows-template/flow.template.json", text)
    assert place.built().data["n"] == 5
    assert place.built().data["s"] == ["a"]


def test_a_missing_setting_names_the_file_and_the_path(place):
    place.env("credentials: {redis: {}}\n")
    place.template("{{@:env:credentials.redis.id}}")
    with pytest.raises(WorkspaceError) as refusal:
        place.built()
    assert str(refusal.value) == (
        "n8n-workflows-template/flow.template.json: {{@:env:credentials.redis.id}}: there is no 'id' of"
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
def test_paths_fit_behind_the_servers_address_however_it_ends(place, url, becomes):
    place.env(f"backstay: {{url: {url}}}\n")
    place.template("={{@:env:backstay.url}}/api")
    assert place.note() == f"={becomes}/api"


@pytest.mark.parametrize("url", ["127.0.0.1:3000", "redis://127.0.0.1", "http://", "https:///x", "https://a b", "17"])
def test_what_is_no_address_of_a_server_is_refused(place, url):
    place.env(f"backstay: {{url: '{url}'}}\n")
    place.template("={{@:env:backstay.url}}/api")
    with pytest.raises(WorkspaceError, match="no http:// or https:// address"):
        place.built()


@pytest.mark.parametrize("text", ["", "lockScopes: []\n", "lockScopes:\n", "lockScopes: null\n"])
def test_no_scopes_are_an_empty_list(place, text):
    place.env(text)
    place.template("={{ {{@:env:lockScopes}} }}")
    assert place.note() == "={{ [] }}"


def test_scopes_are_json_inside_an_expression(place):
    place.env('lockScopes: ["it\'s", "a\\"b"]\n')
    place.template("={{ {{@:env:lockScopes}} }}")
    assert place.note() == '={{ ["it\'s","a\\"b"] }}'


@pytest.mark.parametrize(
    "text", ["lockScopes: nightly\n", "lockScopes: {a: b}\n", "lockScopes: [a, true]\n", "lockScopes: [[a]]\n"]
)
def test_scopes_that_are_no_list_of_texts_are_refused(place, text):
    """Clean-up would look through letters, or through nothing."""
    place.env(text)
    place.template("={{ {{@:env:lockScopes}} }}")
    with pytest.raises(WorkspaceError, match="lockScopes is no list of texts"):
        place.built()


def test_a_scope_that_is_a_number_is_its_digits(place):
    place.env("lockScopes: [42]\n")
    place.template("={{ {{@:env:lockScopes}} }}")
    assert place.note() == '={{ ["42"] }}'


def test_a_uuid_is_the_same_for_one_name_in_one_workflow_and_environment(place):
    place.template("{{@:uuid:hook}} {{@:uuid:hook}} {{@:uuid:other}}")
    place.template("{{@:uuid:hook}}", key="second")
    first, again, other = place.note().split()
    assert uuid.UUID(first)
    assert first == again == place.note().split()[0]
    assert len({first, other, place.note(env="prod").split()[0], place.note(key="second")}) == 4


def test_files_are_taken_from_the_workspace_and_from_beside_the_templates(place):
    place.put("prompts/hello.txt", 'Say "hello"\n')
    place.put("n8n-workflows-template/beside.html", "<b>&amp;</b>")
    place.put("code/run.js", "return 'a\\n' // {{@:env:mail}}\n")
    place.put("code/run.py", "print('x')\n")
    place.put("data.json", '{ "a": [1, 2.50] }\n')
    place.env("mail: x@y\n")
    kinds = ["txt:prompts/hello.txt", "html:beside.html", "js:code/run.js", "py:code/run.py", "json:data.json"]
    place.template("|".join(f"{{{{@:{kind}}}}}" for kind in kinds))
    assert place.note().split("|") == [
        'Say "hello"\n',
        "<b>&amp;</b>",
        "return 'a\\n' // x@y\n",
        "print('x')\n",
        '{"a":[1,2.50]}',
    ]


@pytest.mark.parametrize(
    "path", ["/etc/hostname", "../secret.txt", "a/../../secret.txt", "~/x", "link.txt", "dir/secret.txt"]
)
def test_no_file_from_elsewhere_gets_in(place, path):
    outside = place.root.parent / "elsewhere"
    outside.mkdir()
    (outside / "secret.txt").write_text("secret")
    (place.root / "link.txt").symlink_to(outside / "secret.txt")
    (place.root / "dir").symlink_to(outside)
    place.template(f"{{{{@:txt:{path}}}}}")
    with pytest.raises(WorkspaceError, match="leads out of the workspace") as refusal:
        place.built()
    assert "flow.template.json" in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{{@:txt:none.txt}}", "there is no file none.txt"),
        ("{{@:yaml:x}}", "is of no kind that there is (env, uuid, txt, json, html, js, py)"),
        ("{{@:env:}}", "names nothing"),
        ("{{@:txt:loop.txt}}", "includes itself (loop.txt → loop.txt)"),
        ("{{@:json:bad.json}}", "line 1, column 2"),
        ("{{@:txt:bytes.txt}}", "is not UTF-8"),
    ],
)
def test_what_cannot_be_resolved_is_refused(place, text, said):
    place.put("loop.txt", "{{@:txt:loop.txt}}")
    place.put("bad.json", "{1}")
    (place.root / "bytes.txt").write_bytes(b"\xff")
    place.template(text)
    with pytest.raises((WorkspaceError, BadWorkflow)) as refusal:
        place.built()
    assert said in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "said"), [("{{@:env:empty}}", "is empty"), ("{{@ env:x}}", "looks like a placeholder")]
)
def test_strict_refuses_what_is_otherwise_a_warning(place, text, said):
    place.env("empty:\n")
    place.template(text)
    workspace = Workspace.open(place.root)
    workspace.hydrate("dev", "flow")
    assert said in workspace.notes[0]
    with pytest.raises(WorkspaceError, match=said):
        place.built(strict=True)


def test_id_and_name_are_those_of_the_environment(place):
    place.template("x")
    assert "id" not in place.built().data
    place.env("workflows: {flow: {id: 12ab, name: Flow (dev)}}\n")
    built = place.built()
    assert (built.id, built.name) == ("12ab", "Flow (dev)")
    assert next(iter(built.data)) == "id"


@pytest.mark.parametrize("key", ["../x", "a/b", "", ".", "a.b", "-x", "a b", "x" * 101, "a\n", "ä"])
def test_keys_are_names_and_no_paths(place, key):
    workspace = Workspace.open(place.root)
    with pytest.raises(WorkspaceError, match="is no workflow key"):
        workspace.read(key)
    with pytest.raises(WorkspaceError):
        workspace.env(key)
    with pytest.raises(WorkspaceError), workspace.edit() as view:
        view.register("dev", key, name="x")


def test_a_workflow_that_is_not_there_names_those_that_are(place):
    place.template("x", key="nightly")
    with pytest.raises(WorkspaceError, match=r"no workflow 'night': .* \(n8n-workflows-template has nightly\)"):
        Workspace.open(place.root).read("night")


def test_a_folder_without_settings_is_no_workspace(tmp_path):
    with pytest.raises(WorkspaceError, match="backstay n8n init"):
        Workspace.open(tmp_path / "none")


def test_an_environment_that_is_not_there_names_those_that_are(place):
    with pytest.raises(WorkspaceError, match="there is no environment 'staging': n8n-config has dev, prod"):
        Workspace.open(place.root).env("staging")
    with pytest.raises(WorkspaceError, match="is not an environment"):
        Workspace.open(place.root).env("common")


def test_a_scope_that_is_common_stays_when_an_environment_gets_its_own(place):
    place.put("n8n-config/common.yml", "lockScopes: [everywhere]\n")
    place.env("# nothing\n")
    with Workspace.open(place.root).edit() as view:
        assert view.add_scope("dev", "here")
        assert not view.add_scope("dev", "everywhere")
    assert Workspace.open(place.root).scopes("dev") == ("everywhere", "here")
