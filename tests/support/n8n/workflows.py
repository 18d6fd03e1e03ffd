"""Small workflows for tests, built of nodes."""

from __future__ import annotations

import itertools
import json

from backstay.n8n.model import Workflow


def node(name, kind, parameters=None, **more):
    kind = kind if "." in kind else f"n8n-nodes-base.{kind}"
    made = {"parameters": parameters or {}, "id": name, "name": name, "type": kind, "typeVersion": 1}
    return {**made, "position": [0, 0], **more}


def workflow(*nodes, links=None, **more):
    """Connect the nodes in a line unless `links` is given."""
    names = [each["name"] for each in nodes]
    links = links or {one: [[two]] for one, two in itertools.pairwise(names)}
    edges = {
        source: {"main": [[{"node": to, "type": "main", "index": 0} for to in targets] for targets in outputs]}
        for source, outputs in links.items()
    }
    return Workflow.parse(json.dumps({"name": "w", "nodes": list(nodes), "connections": edges, **more}))


#: It answers in its midst, so it must stay.
ANSWERS = [node("Hook", "webhook"), node("Answer", "respondToWebhook"), node("Set", "set", {"v": "={{ 1 }}"})]
LINE = [
    node("Hook", "webhook"),
    node("Step", "code", {"jsCode": "return $input.all()"}),
    node("Answer", "respondToWebhook", {"v": "={{ $json.n }}"}),
]
