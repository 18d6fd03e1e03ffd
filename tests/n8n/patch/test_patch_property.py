"""For any graph and file layout, removing a patch restores the original text."""

from __future__ import annotations

import json

from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from backstay import PatchRefused
from backstay.n8n.model import N8nWorkflow
from backstay.n8n.patch.patch import (
    LimitOptions,
    LockOptions,
    add_limit,
    add_lock,
    read_limit_options,
    read_lock_options,
    remove_limit,
    remove_lock,
)

KINDS = ["set", "noOp", "code", "if", "switch", "splitInBatches", "merge", "wait", "redis", "stickyNote", "httpRequest"]
KINDS += ["respondToWebhook"]
TRIGGERS = ["manualTrigger", "scheduleTrigger", "webhook", "executeWorkflowTrigger"]
NAMES = ["A", "B b", "Größe", "D'oh", 'say "x"', "F", "G", "H"]
some = st.booleans()


@st.composite
def graphs(draw):
    starts = [f"Start {number}" for number in range(draw(st.integers(1, 3)))]
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1, max_size=6))
    nodes = [draw(node(name, TRIGGERS)) for name in starts] + [draw(node(name, KINDS)) for name in names]
    nodes = draw(st.permutations(nodes))
    connections = {}
    for source in draw(st.permutations([*starts, *names])):
        if draw(st.integers(0, 4)) or source == starts[0]:
            connections[source] = {"main": draw(outputs(names, least=source == starts[0]))}
    data = {"name": draw(st.sampled_from(["plain", "Mühle"])), "nodes": nodes, "connections": connections}
    data |= draw(
        st.fixed_dictionaries(
            {},
            optional={
                "settings": st.sampled_from(
                    [None, {}, {"executionOrder": "v0"}, {"executionTimeout": 60, "errorWorkflow": "x", "a": 1.50}]
                ),
                "meta": st.sampled_from([None, {}, {"instanceId": "f00"}]),
                "pinData": st.just({}),
                "id": st.just("abc"),
            },
        )
    )
    return data


@st.composite
def node(draw, name, kinds):
    made = {
        "parameters": draw(st.sampled_from([{}, {"value": "={{ $('Start 0').item.json.a }}"}, {"amount": 1.0}])),
        "id": name,
        "name": name,
        "type": f"n8n-nodes-base.{draw(st.sampled_from(kinds))}",
        "typeVersion": draw(st.sampled_from([1, 1.1, 2])),
        "position": [draw(st.integers(-3, 9)) * 110, draw(st.integers(-3, 3)) * 90],
    }
    extras = st.fixed_dictionaries(
        {},
        optional={
            "disabled": some if name != "Start 0" else st.just(False),
            "alwaysOutputData": some,
            "onError": st.sampled_from(["continueRegularOutput", "continueErrorOutput"]),
        },
    )
    return {**made, **draw(extras)}


@st.composite
def outputs(draw, names, *, least):
    target = st.fixed_dictionaries(
        {"node": st.sampled_from(names), "type": st.just("main"), "index": st.integers(0, 1)}
    ) | st.fixed_dictionaries({"node": st.sampled_from(names)})
    found = draw(st.lists(st.lists(target, max_size=2) | st.none(), max_size=3))
    return [draw(st.lists(target, min_size=1, max_size=2)), *found] if least else found


@st.composite
def texts(draw):
    data = draw(graphs())
    style = draw(st.sampled_from(["plain", "compact", "tabs", "crlf", "odd"]))
    ascii_only = draw(some)
    match style:
        case "plain":
            text = json.dumps(data, indent=2, ensure_ascii=ascii_only) + draw(st.sampled_from(["", "\n"]))
        case "compact":
            text = json.dumps(data, separators=(",", ":"), ensure_ascii=ascii_only)
        case "tabs":
            text = json.dumps(data, indent="\t", ensure_ascii=ascii_only)
        case "crlf":
            text = "\ufeff" + json.dumps(data, indent=4, ensure_ascii=ascii_only).replace("\n", "\r\n")
        case _:
            parts = [f" {json.dumps(key)} :{json.dumps(value, ensure_ascii=ascii_only)}" for key, value in data.items()]
            text = "{" + ",\r\n\n".join(parts) + "\t}"
    return text


locks = st.builds(
    LockOptions,
    scope=st.sampled_from(["={{ 'x' }}", "=x-{{ $json.a }}", "global"]),
    fail_fast=some,
    per_item=some,
    transport=st.sampled_from(["redis", "http"]),
    error_workflow=st.sampled_from(["", "tidy"]),
    in_place=some,
    keep_failed=some,
)
limits = st.builds(
    LimitOptions,
    scope=st.just("={{ 'x' }}"),
    limit=st.integers(1, 9),
    window_seconds=st.integers(1, 9),
    on_denied=st.sampled_from(["passthrough", "stop", "error"]),
)


def again(workflow):
    """Return the workflow parsed back from its own text."""
    return N8nWorkflow.parse(workflow.text().encode())


# Shrinking such texts takes minutes and adds little; the failing example is printed unshrunk.
@settings(max_examples=150, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(text=texts(), lock=locks, limit=limits)
def test_removing_lock_and_limit_in_any_order_restores_the_file(text, lock, limit):
    plain = N8nWorkflow.parse(text.encode())
    try:
        locked = add_lock(plain, "k", lock)
    except PatchRefused:
        assume(False)
    others = {key: again(other) for key, other in locked.others.items()}
    limited = again(add_limit(plain, "k", limit).workflow)
    both = add_limit(again(locked.workflow), "k", limit)
    assert plain.text() == text

    assert again(remove_lock(again(locked.workflow), "k", others).workflow).text() == text
    assert remove_limit(limited, "k", {}).workflow.text() == text
    other_way = add_lock(limited, "k", lock)
    assert other_way.workflow.data["nodes"] == both.workflow.data["nodes"]
    assert other_way.workflow.connections == both.workflow.connections
    assert {key: other.data for key, other in other_way.others.items()} == {
        key: other.data for key, other in locked.others.items()
    }
    assert remove_limit(again(both.workflow), "k", {}).workflow.text() == locked.workflow.text()
    assert remove_lock(again(other_way.workflow), "k", others).workflow.text() == limited.text()
    last = remove_limit(again(remove_lock(again(both.workflow), "k", others).workflow), "k", {})
    assert last.workflow.text() == text
    assert read_lock_options(both.workflow) is not None
    assert read_limit_options(both.workflow) == limit
