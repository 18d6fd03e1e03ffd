"""Pictures of graphs: the same text for the same workflow, readable XML, no box on another."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from holdfast.n8n.model import Workflow
from holdfast.n8n.picture import HEIGHT, WIDTH, picture

HERE = Path(__file__).parent
FILES = sorted([*(HERE / "good").glob("*.json"), *(HERE / "broken").glob("*.json")])
SVG = "{http://www.w3.org/2000/svg}"


def boxes(svg):
    found = [each for each in ET.fromstring(svg).iter(f"{SVG}rect") if each.get("class") == "box"]  # noqa: S314 - our own
    return [(float(each.get("x", "")), float(each.get("y", ""))) for each in found]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_node_has_a_box_and_none_lies_on_another(path):
    workflow = Workflow.read(path)
    svg = picture(workflow)
    assert svg == picture(Workflow.parse(workflow.text()))
    found = boxes(svg)
    assert len(found) == len({node.name for node in workflow.nodes if not node.is_note})
    for at, (x, y) in enumerate(found):
        assert all(abs(x - u) >= WIDTH or abs(y - v) >= HEIGHT for u, v in found[at + 1 :])


def test_nodes_without_places_are_laid_out_in_columns():
    nodes = [{"name": f"N{at}", "type": "n8n-nodes-base.set"} for at in range(4)]
    edges = {"N0": {"main": [[{"node": "N1"}, {"node": "N2"}]]}, "N2": {"main": [[{"node": "N3"}, {"node": "N0"}]]}}
    found = boxes(picture(Workflow({"nodes": nodes, "connections": edges})))
    assert len({x for x, _ in found}) == 3
    assert len(set(found)) == 4


def test_names_are_text_and_added_nodes_are_marked():
    nodes = [
        {"name": '<b>&"a', "type": "n8n-nodes-base.webhook", "position": [0, 0]},
        {"name": "A name that is much too long for its box", "type": "n8n-nodes-base.set", "position": [300, 0]},
    ]
    workflow = Workflow(
        {"name": "x<y", "nodes": nodes, "connections": {'<b>&"a': {"main": [[{"node": nodes[1]["name"]}]]}}}
    )
    svg = picture(workflow, added=[nodes[1]["name"]])
    root = ET.fromstring(svg)  # noqa: S314 - our own
    assert root.findtext(f"{SVG}title") == "x<y"
    assert [each.get("class") for each in root.iter(f"{SVG}g")] == ["node", "node added"]
    assert [each.findtext(f"{SVG}title") for each in root.iter(f"{SVG}g")] == [node["name"] for node in nodes]
    assert "…" in svg


def test_a_call_says_what_it_calls():
    workflow = Workflow.read(HERE / "good" / "locked.json")
    assert "calls lock_acquisition" in picture(workflow)
    assert json.dumps(workflow.data) == json.dumps(Workflow.read(HERE / "good" / "locked.json").data)


def test_an_empty_workflow_is_an_empty_picture():
    assert boxes(picture(Workflow({"nodes": [], "connections": {}}))) == []
