"""SVG pictures of workflows: deterministic, well-formed XML, no overlapping boxes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from backstay.n8n.model import N8nWorkflow
from backstay.n8n.patch.patch import LockOptions, add_lock
from backstay.n8n.picture import HEIGHT, WIDTH, picture

HERE = Path(__file__).parent
FILES = sorted([*(HERE / "good").glob("*.json"), *(HERE / "broken").glob("*.json")])
ROUND = re.compile(r"M([-\d.e]+) ([-\d.e]+) h([\d.e]+) V([-\d.e]+) H([-\d.e]+) V([-\d.e]+) H[-\d.e]+")
SVG = "{http://www.w3.org/2000/svg}"


def boxes(svg):
    found = [each for each in ET.fromstring(svg).iter(f"{SVG}rect") if each.get("class") == "box"]  # noqa: S314 - from our own code
    return [(float(each.get("x", "")), float(each.get("y", ""))) for each in found]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_node_has_a_box_and_boxes_do_not_overlap(path):
    workflow = N8nWorkflow.read(path)
    svg = picture(workflow)
    assert svg == picture(N8nWorkflow.parse(workflow.text()))
    found = boxes(svg)
    assert len(found) == len({node.name for node in workflow.nodes if not node.is_note})
    for at, (x, y) in enumerate(found):
        assert all(abs(x - u) >= WIDTH or abs(y - v) >= HEIGHT for u, v in found[at + 1 :])


def long_ways(workflow, svg):
    """Return the target and the three segments (axis, at, from, to) of each edge that is routed around nodes."""
    edges = [edge for edge in workflow.edges() if workflow.find(edge.target) and workflow.find(edge.source)]
    drawn = [each for each in ET.fromstring(svg).iter(f"{SVG}path") if "edge" in each.get("class", "")]  # noqa: S314 - from our own code
    for edge, path in zip(edges, drawn, strict=True):
        found = ROUND.fullmatch(path.get("d", ""))
        if found is not None:
            x, y, out, low, into, end = map(float, found.groups())
            lines = [("x", x + out, y, low), ("y", low, x + out, into), ("x", into, low, end)]
            yield (edge.target, edge.input), [(axis, at, min(a, b), max(a, b)) for axis, at, a, b in lines]


def run_along(one, other):
    return one[0] == other[0] and abs(one[1] - other[1]) < 2 and min(one[3], other[3]) > max(one[2], other[2])


@pytest.mark.parametrize("transport", ["redis", "http"])
@pytest.mark.parametrize("key", ["excel_report", "nightly_batch"])
def test_long_edges_overlap_only_when_they_share_a_target(key, transport):
    before = N8nWorkflow.read(HERE.parents[1] / "examples" / "n8n" / "before" / f"{key}.template.json")
    patched = add_lock(before, key, LockOptions(scope="x", transport=transport))
    for workflow in (patched.workflow, *patched.others.values()):
        svg = picture(workflow)
        ways = list(long_ways(workflow, svg))
        assert transport == "redis" or workflow is not patched.workflow or len(ways) > 3
        for at, (place, lines) in enumerate(ways):
            for other, others in ways[at + 1 :]:
                assert place == other or not any(run_along(one, two) for one in lines for two in others)
        height = float(ET.fromstring(svg).get("height", ""))  # noqa: S314 - from our own code
        assert all(line[1] < height for _, lines in ways for line in lines if line[0] == "y")


def test_nodes_without_positions_are_laid_out_in_columns():
    nodes = [{"name": f"N{at}", "type": "n8n-nodes-base.set"} for at in range(4)]
    edges = {"N0": {"main": [[{"node": "N1"}, {"node": "N2"}]]}, "N2": {"main": [[{"node": "N3"}, {"node": "N0"}]]}}
    found = boxes(picture(N8nWorkflow({"nodes": nodes, "connections": edges})))
    assert len({x for x, _ in found}) == 3
    assert len(set(found)) == 4


def test_names_are_escaped_and_added_nodes_are_marked():
    nodes = [
        {"name": '<b>&"a', "type": "n8n-nodes-base.webhook", "position": [0, 0]},
        {"name": "A name that is much too long for its box", "type": "n8n-nodes-base.set", "position": [300, 0]},
    ]
    workflow = N8nWorkflow(
        {"name": "x<y", "nodes": nodes, "connections": {'<b>&"a': {"main": [[{"node": nodes[1]["name"]}]]}}}
    )
    svg = picture(workflow, added=[nodes[1]["name"]])
    root = ET.fromstring(svg)  # noqa: S314 - from our own code
    assert root.findtext(f"{SVG}title") == "x<y"
    assert [each.get("class") for each in root.iter(f"{SVG}g")] == ["node", "node added"]
    assert [each.findtext(f"{SVG}title") for each in root.iter(f"{SVG}g")] == [node["name"] for node in nodes]
    assert "…" in svg


def test_a_call_node_names_the_called_workflow():
    workflow = N8nWorkflow.read(HERE / "good" / "locked.json")
    assert "calls lock_acquisition" in picture(workflow)
    assert json.dumps(workflow.data) == json.dumps(N8nWorkflow.read(HERE / "good" / "locked.json").data)


def test_an_empty_workflow_is_an_empty_picture():
    assert boxes(picture(N8nWorkflow({"nodes": [], "connections": {}}))) == []
