"""Settings in YAML: a change touches its own lines, and what cannot be changed safely is refused."""

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
    """The new lines, when nothing else changed."""
    old, new = before.splitlines(), after.splitlines()
    rest = iter(new)
    assert all(line in rest for line in old), after
    return [line for line in new if line not in old]


def test_a_new_workflow_is_added_behind_the_others_and_every_comment_stays_in_its_place():
    after = changed(("set", ("workflows", "excel"), {"id": "local-1", "name": "Excel: all"})).text()
    assert after == FILE.replace(
        "    name: 'Nightly batch'\n",
        "    name: 'Nightly batch'\n  excel:\n    id: local-1\n    name: \"Excel: all\"\n",
    )


def test_an_empty_table_on_one_line_opens_up_and_keeps_its_comment():
    after = changed(("set", ("credentials", "redis"), {"id": "1", "type": "redis"})).text()
    want = 'credentials:   # none yet\n  redis:\n    id: "1"\n    type: redis\n'
    assert after == FILE.replace("credentials: {}   # none yet\n", want)


def test_a_scope_is_added_at_the_end_of_the_list_and_taken_out_alone():
    file = changed(("set", ("lockScopes",), ["global", "nightly batch", "x:y"]))
    assert added(FILE, file.text()) == ['  - "x:y"']
    file.set(("lockScopes",), ["global", "x:y"])
    assert file.text() == FILE.replace('  - "nightly batch"\n', '  - "x:y"\n')
    file.set(("lockScopes",), [])
    assert file.data["lockScopes"] == []
    assert "# more to come?" in file.text()


def test_a_value_is_replaced_where_it_stands():
    after = changed(("set", ("workflows", "nightly", "id"), "n8nGaveThis")).text()
    assert after == FILE.replace("0123456789abcdef", "n8nGaveThis")


def test_what_is_removed_leaves_the_rest_alone():
    file = changed(("set", ("workflows", "excel"), {"id": "1"}), ("remove", ("workflows", "excel")))
    assert file.text() == FILE
    file.remove(("workflows", "nightly"))
    assert file.data["workflows"] == {}
    assert "# Nobody knows what this is for.\n" in file.text()
    file.remove(("workflows", "nightly"))  # nothing is there: nothing happens


def test_the_same_value_again_changes_nothing():
    file = changed(
        ("set", ("lockScopes",), ["global", "nightly batch"]),
        ("set", ("workflows", "nightly", "name"), "Nightly batch"),
    )
    assert file.text() == FILE


@pytest.mark.parametrize(
    "text", ["", "# only a comment\n", "a: 1", "a: 1\r\nb: 2\r\n", "\ufeffa: 1\n", "{a: 1, b: 2}\n"]
)
def test_it_works_on_files_of_every_shape(text):
    file = changed(("set", ("workflows", "x", "id"), "1"), ("set", ("lockScopes",), ["s"]), text=text)
    again = SettingsFile(file.text(), "dev.yml").data
    assert again["workflows"] == {"x": {"id": "1"}}
    assert again["lockScopes"] == ["s"]
    assert ("\r\n" in text) == ("\r\n" in file.text())
    assert "\n" not in file.text().replace("\r\n", "") or "\r\n" not in text


def test_ids_stay_as_they_are_written():
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
    ("text", "said"),
    [
        ("a:\n\t- b\n", "dev.yml, line 2, column 1: there is a tab; YAML is indented with spaces"),
        ("a:\tb\n", "there is a tab"),
        ("base: &base\n  a: 1\nx: *base\n", "line 1: there is an anchor or alias (base)"),
        ("x:\n  <<: {a: 1}\n", "merge key"),
        ("a: 1\na: 2\n", "line 2: the key 'a' stands twice"),
        ("a: !!binary eA==\n", "line 1: there is a tag"),
        ("- a\n", "it is no table"),
        ("a: [1\n", "dev.yml, line 2"),
        ("a: 1\n---\nb: 1\n", "a second document begins"),
        ("a: {b: 1}\n? [c]\n: d\n", "a key is no text"),
        ("a: \x00\n", "dev.yml"),
        ("a: '\ud800'", "dev.yml"),
    ],
)
def test_what_cannot_be_changed_safely_is_refused_with_its_place(text, said):
    with pytest.raises(WorkspaceError) as refusal:
        SettingsFile(text, "dev.yml")
    assert said in str(refusal.value)


def test_bytes_that_are_no_text_are_refused():
    with pytest.raises(WorkspaceError, match="not UTF-8"):
        SettingsFile.parse(b"a: \xff\n", "dev.yml")
    with pytest.raises(WorkspaceError, match="larger than"):
        SettingsFile.parse(b"#" * 1_000_001, "dev.yml")


def test_a_table_cannot_be_made_where_a_value_is():
    with pytest.raises(WorkspaceError, match="n8n is no table"):
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
def test_whatever_is_changed_the_file_says_it_and_keeps_its_comments(text, changes):
    file = SettingsFile(text, "dev.yml")
    for verb, path, *value in changes:
        try:
            getattr(file, verb)(path, *value)
        except WorkspaceError as refusal:
            assert "is no table" in str(refusal)  # noqa: PT017 - some steps ask for what cannot be
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
