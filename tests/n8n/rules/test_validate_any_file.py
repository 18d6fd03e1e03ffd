"""For any file content, validation returns findings or raises BadWorkflow, nothing else."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backstay import BadWorkflow
from backstay.n8n.model import N8nWorkflow
from backstay.n8n.rules.validate import WorkspaceContext, validate

HERE = Path(__file__).parents[1]
FILES = sorted([*(HERE / "good").glob("*.json"), *(HERE / "broken").glob("*.json")])
DATA = [json.loads(path.read_text("utf-8")) for path in FILES]

#: Values of unexpected types.
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10**20),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(
        ["", "=", "={{", "={{ $('", "{{@:env:workflows.x.id}}", "main", "n8n-nodes-base.code", "\ud800", "\x00"]
    ),
    st.text(max_size=5),
    st.builds(list),
    st.builds(dict),
    st.just([[]]),
    st.just([None, {"node": "Work"}, [[{"node": "Work", "index": True}]]]),
    st.just({"value": {"scope": [], "ttl_seconds": {}}}),
)


def places(data, found=None):
    """Return every (container, key) of the data, so that any value can be replaced."""
    found = [] if found is None else found
    entries = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, inner in entries:
        found.append((data, key))
        places(inner, found)
    return found


@st.composite
def mutated(draw):
    data = copy.deepcopy(draw(st.sampled_from(DATA)))
    for _ in range(draw(st.integers(1, 4))):
        found = places(data)
        if not found:
            break
        inside, key = found[draw(st.integers(0, len(found) - 1))]
        match draw(st.sampled_from(["replace", "delete", "copy"])):
            case "replace":
                inside[key] = copy.deepcopy(draw(ODD))
            case "delete":
                del inside[key]
            case _:
                other, source = found[draw(st.integers(0, len(found) - 1))]
                inside[key] = copy.deepcopy(other[source])
    return data


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=mutated(), built=st.booleans(), other=st.sampled_from(DATA))
def test_a_randomly_changed_workflow_is_validated_or_refused(data, built, other):
    around = WorkspaceContext(("orders",), {"lock_acquisition": "a"}, built=built, others={"other": N8nWorkflow(other)})
    try:
        workflow = N8nWorkflow.parse(json.dumps(data))
    except BadWorkflow:
        with pytest.raises(BadWorkflow):
            validate(N8nWorkflow(data), around)
        return
    for finding in validate(workflow, around):
        assert finding.rule
        assert finding.message
        assert isinstance(finding.node, str)
        assert isinstance(finding.path, str)


@pytest.mark.parametrize("data", [None, 7, "x", [], {}, {"nodes": {}}, {"nodes": [None], "connections": {}}])
def test_random_json_is_refused(data):
    with pytest.raises(BadWorkflow):
        validate(N8nWorkflow(data))


def test_a_deep_and_a_large_workflow_are_validated():
    deep: list = []
    for _ in range(400):
        deep = [deep]
    nodes = [{"name": f"N{at}", "type": "n8n-nodes-base.set", "parameters": {"x": deep}} for at in range(500)]
    nodes[0]["type"] = "n8n-nodes-base.webhook"
    line = {f"N{at}": {"main": [[{"node": f"N{at + 1}", "type": "main", "index": 0}]]} for at in range(499)}
    found = validate(N8nWorkflow({"nodes": nodes, "connections": line}))
    assert [finding.rule for finding in found] == ["legacy-order"]
