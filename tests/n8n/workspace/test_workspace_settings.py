"""YAML settings: a change touches only its own lines, and an unsafe change is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backstay.errors import WorkspaceError
from backstay.n8n.workspace.settings_file import SettingsFile

FILE = """\
# The development n8n.
n8n:
  url: "http://127.0.0.1:5678"   # no slash at the end

workflows:
  nightly:
    id: 0123456789abcdef   # as n8n says
    name: 'Nightly batch'

# Nobody knows what this is for.
credentials: {}   # none yet
lockScopes:
  - global  # the first one
  - "nightly batch"
  # more to come?

other: >-
  folded
  text
"""


def changed(*steps, text=FILE):
    file = SettingsFile(text, "dev.yml")
    for verb, *arguments in steps:
        getattr(file, verb)(*arguments)
    return file


def added(before, after):
    """Return the added lines; check that all other lines are unchanged."""
    old, new = before.splitlines(), after.splitlines()
    rest = iter(new)
    assert all(line in rest for line in old), after
    return [line for line in new if line not in old]


def test_a_new_workflow_is_added_after_the_others_and_comments_stay():
    after = changed(("set", ("workflows", "excel"), {"id": "local-1", "name": "Excel: all"})).text()
    assert after == FILE.replace(
        "    name: 'Nightly batch'\n",
        "    name: 'Nightly batch'\n  excel:\n    id: local-1\n    name: \"Excel: all\"\n",
    )


def test_an_empty_inline_mapping_becomes_a_block_and_keeps_its_comment():
    after = changed(("set", ("credentials", "redis"), {"id": "1", "type": "redis"})).text()
    want = 'credentials:   # none yet\n  redis:\n    id: "1"\n    type: redis\n'
    assert after == FILE.replace("credentials: {}   # none yet\n", want)


def test_a_scope_is_appended_to_the_list_and_removed_alone():
    file = changed(("set", ("lockScopes",), ["global", "nightly batch", "x:y"]))
    assert added(FILE, file.text()) == ['  - "x:y"']
    file.set(("lockScopes",), ["global", "x:y"])
    assert file.text() == FILE.replace('  - "nightly batch"\n', '  - "x:y"\n')
    file.set(("lockScopes",), [])
    assert file.data["lockScopes"] == []
    assert "# more to come?" in file.text()


def test_a_value_is_replaced_in_place():
    after = changed(("set", ("workflows", "nightly", "id"), "n8nGaveThis")).text()
    assert after == FILE.replace("0123456789abcdef", "n8nGaveThis")


def test_removing_an_entry_leaves_the_rest_unchanged():
    file = changed(("set", ("workflows", "excel"), {"id": "1"}), ("remove", ("workflows", "excel")))
    assert file.text() == FILE
    file.remove(("workflows", "nightly"))
    assert file.data["workflows"] == {}
    assert "# Nobody knows what this is for.\n" in file.text()
    file.remove(("workflows", "nightly"))  # removing a missing entry does nothing


def test_setting_the_same_value_changes_nothing():
    file = changed(
        ("set", ("lockScopes",), ["global", "nightly batch"]),
        ("set", ("workflows", "nightly", "name"), "Nightly batch"),
    )
    assert file.text() == FILE


@pytest.mark.parametrize(
    "text", ["", "# only a comment\n", "a: 1", "a: 1\r\nb: 2\r\n", "\ufeffa: 1\n", "{a: 1, b: 2}\n"]
)
def test_settings_files_of_every_layout_can_be_changed(text):
    file = changed(("set", ("workflows", "x", "id"), "1"), ("set", ("lockScopes",), ["s"]), text=text)
    again = SettingsFile(file.text(), "dev.yml").data
    assert again["workflows"] == {"x": {"id": "1"}}
    assert again["lockScopes"] == ["s"]
    assert ("\r\n" in text) == ("\r\n" in file.text())
    assert "\n" not in file.text().replace("\r\n", "") or "\r\n" not in text


def test_ids_keep_their_spelling():
    text = "a: 0123\nb: 1e5\nc: 0x1f\nd: 12\ne: 1.50\nf: 2026-11-17\ng: yes\nh: true\ni: ~\nj: '12'\nk: 1_000\n"
    assert SettingsFile(text, "dev.yml").data == {
        "a": "0123",
        "b": "1e5",
        "c": "0x1f",
        "d": 12,
        "e": 1.5,
        "f": "2026-11-17",
        "g": "yes",
        "h": True,
        "i": None,
        "j": "12",
        "k": "1_000",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a:\n\t- b\n", "dev.yml, line 2, column 1: tab character found; YAML must be indented with spaces"),
        ("a:\tb\n", "tab character found"),
        ("base: &base\n  a: 1\nx: *base\n", "line 1: anchor or alias (base) found"),
        ("x:\n  <<: {a: 1}\n", "merge key"),
        ("a: 1\na: 2\n", "line 2: the key 'a' appears twice"),
        ("a: !!binary eA==\n", "line 1: tag ("),
        ("- a\n", "must be a mapping"),
        ("a: [1\n", "dev.yml, line 2"),
        ("a: 1\n---\nb: 1\n", "a second document begins"),
        ("a: {b: 1}\n? [c]\n: d\n", "mapping keys must be strings"),
        ("a: \x00\n", "dev.yml"),
        ("a: '\ud800'", "dev.yml"),
    ],
)
def test_an_unsafe_change_is_refused_with_its_position(text, message):
    with pytest.raises(WorkspaceError) as refusal:
        SettingsFile(text, "dev.yml")
    assert message in str(refusal.value)


def test_a_settings_file_that_is_not_utf8_is_refused():
    with pytest.raises(WorkspaceError, match="not UTF-8"):
        SettingsFile.parse(b"a: \xff\n", "dev.yml")
    with pytest.raises(WorkspaceError, match="larger than"):
        SettingsFile.parse(b"#" * 1_000_001, "dev.yml")


def test_a_mapping_cannot_replace_a_scalar():
    with pytest.raises(WorkspaceError, match="n8n is not a mapping"):
        changed(("set", ("n8n", "url"), "x"), text="n8n: soon\n")


names = st.text("abcdefghij-_", min_size=1, max_size=6)
words = st.text(min_size=0, max_size=12).filter(lambda text: text.isprintable())
steps = st.one_of(
    st.tuples(
        st.just("set"), st.tuples(st.just("workflows"), names), st.fixed_dictionaries({"id": words, "name": words})
    ),
    st.tuples(st.just("set"), st.tuples(st.just("workflows"), names, st.just("id")), words),
    st.tuples(st.just("set"), st.just(("lockScopes",)), st.lists(words, max_size=4)),
    st.tuples(st.just("set"), st.tuples(names), st.one_of(words, st.integers(-5, 5), st.booleans())),
    st.tuples(st.just("remove"), st.tuples(st.just("workflows"), names)),
    st.tuples(st.just("remove"), st.just(("lockScopes",))),
)
SHAPES = (
    FILE,
    "",
    "workflows:\nlockScopes:\n",
    "workflows: {a: {id: 1}}\nlockScopes: [a, b]\n",
    "lockScopes:\n- a\n- b\n",
)


@settings(max_examples=80, deadline=None)
@given(text=st.sampled_from(SHAPES), changes=st.lists(steps, max_size=8))
def test_any_change_is_readable_from_the_file_and_keeps_its_comments(text, changes):
    file = SettingsFile(text, "dev.yml")
    for verb, path, *value in changes:
        try:
            getattr(file, verb)(path, *value)
        except WorkspaceError as refusal:
            assert "is not a mapping" in str(refusal)  # noqa: PT017 - some steps ask for what cannot be
            file = SettingsFile(file.text(), "dev.yml")
            continue
        if verb == "set":
            found = file.data
            for key in path:
                found = found[key]
            assert found == value[0]
    assert SettingsFile(file.text(), "dev.yml").data == file.data
    comments = [line.strip() for line in text.splitlines() if line.strip().startswith("#")]
    assert all(comment in file.text() for comment in comments)
