"""Workflow files round-trip byte for byte; invalid ones are refused with the reason."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstay import BadWorkflow
from backstay.n8n.model import Edge, N8nWorkflow

PLAIN = {
    "name": "Mühle",
    "nodes": [
        {"parameters": {}, "id": "a", "name": "Start", "type": "n8n-nodes-base.webhook", "position": [0, -20.5]},
        {"parameters": {"x": [1.0, 1e3]}, "id": "b", "name": "Work", "type": "n8n-nodes-base.set", "new": {}},
    ],
    "connections": {"Start": {"main": [[{"node": "Work", "type": "main", "index": 0}]]}},
    "unknown": {"kept": [None, True, []]},
}


def parsed(data=PLAIN, **style):
    return N8nWorkflow.parse(json.dumps(data, **style))


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(PLAIN, indent=2, ensure_ascii=False),
        json.dumps(PLAIN, indent=2, ensure_ascii=False) + "\n",
        json.dumps(PLAIN, indent=4),
        json.dumps(PLAIN, indent="\t", ensure_ascii=False),
        json.dumps(PLAIN),
        json.dumps(PLAIN, separators=(",", ":"), ensure_ascii=False),
        "\ufeff" + json.dumps(PLAIN, indent=2).replace("\n", "\r\n") + "\r\n",
        json.dumps(PLAIN, indent=2).replace("1000.0", "1e3").replace("-20.5", "-20.50"),
        json.dumps({**PLAIN, "half": "\ud83d and \x01 and \u2028"}, indent=2),
    ],
)
def test_a_workflow_is_written_as_it_was_read(text):
    read = N8nWorkflow.parse(text.encode("utf-8"))
    assert read.exact
    assert read.text() == text


texts = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(extra=texts, indent=st.sampled_from([None, 1, 2, 4, "\t"]), ascii_only=st.booleans())
def test_any_workflow_round_trips_and_keeps_its_meaning_after_a_change(extra, indent, ascii_only):
    text = json.dumps({**PLAIN, "extra": extra}, indent=indent, ensure_ascii=ascii_only)
    read = N8nWorkflow.parse(text)
    assert read.text() == text
    read.data["unknown"] = 1
    assert json.loads(read.text()) == {**json.loads(text), "unknown": 1}
    assert N8nWorkflow.parse(read.text()).text() == read.text()


def test_an_unknown_layout_is_kept_until_the_data_changes():
    text = '{ "nodes" :[ ],\n\n"connections": {}}'
    read = N8nWorkflow.parse(text)
    assert not read.exact
    assert read.copy().text() == read.text() == text
    read.data["name"] = "new"
    assert read.text() == '{"nodes":[],"connections":{},"name":"new"}'


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "Expecting value"),
        (b"{", "line 1"),
        (b"\xff{}", "not UTF-8"),
        (b"[]", "a list"),
        (b"7", "not an n8n workflow"),
        (b'{"nodes": {}}', "not an n8n workflow"),
        (b'{"nodes": [1], "connections": {}}', r"nodes\[0\] is not an object"),
        (b'{"nodes": [{"name": "", "type": "x"}], "connections": {}}', r"nodes\[0\] has no name"),
        (b'{"nodes": []}', "connections must be an object"),
        (b'{"nodes": [], "connections": {"a": []}}', "'a' are not an object"),
        (b'{"nodes": [], "connections": {"a": {"main": {}}}}', "not a list of lists"),
        (b'{"nodes": [], "connections": {"a": {"main": [[{"index": 1}]]}}}', "does not name a node"),
        (b'{"nodes": [], "connections": {"a": {"main": [[{"node": "b", "index": -1}]]}}}', "must be an integer from 0"),
        (b'{"nodes": [], "nodes": []}', "'nodes' appears twice"),
        (b'{"nodes": [NaN]}', "NaN is not valid JSON"),
        (b'{"nodes": [1e999]}', "too large"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_an_invalid_workflow_file_is_refused_with_the_reason(raw, why):
    with pytest.raises(BadWorkflow, match=why) as caught:
        N8nWorkflow.parse(raw, source="orders.json")
    assert "orders.json" in str(caught.value)


def test_connecting_and_disconnecting_restore_the_data():
    read = parsed()
    changed = read.copy()
    for edge in (Edge("Work", "Start", output=2), Edge("Work", "Start", output=0, input=1), Edge("Start", "Start")):
        changed.connect(edge)
        changed.connect(edge)
        assert changed.entering(edge.target).count(edge) == 1
        changed.disconnect(edge)
    assert changed.data == read.data
    changed.remove("Work")
    assert list(changed.edges()) == []
    assert [node.name for node in changed.nodes] == ["Start"]
    assert read.find("Work") is not None


def test_triggers_are_neither_notes_nor_disabled():
    def node(name, kind, **more):
        return {"name": name, "type": f"n8n-nodes-base.{kind}", **more}

    read = parsed(
        {
            "nodes": [
                node("note", "stickyNote"),
                node("off", "webhook", disabled=True),
                node("hook", "webhook"),
                node("called", "executeWorkflowTrigger"),
                {"name": "chat", "type": "@n8n/n8n-nodes-langchain.chatTrigger"},
                node("work", "set"),
            ],
            "connections": {},
        }
    )
    assert [one.name for one in read.triggers] == ["hook", "called", "chat"]
