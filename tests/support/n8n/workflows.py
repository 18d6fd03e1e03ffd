"""Build small n8n workflows from nodes."""

from __future__ import annotations

import itertools
import json

from backstay.n8n.model import N8nWorkflow


def node(name, kind, parameters=None, **more):
    """Return a node; `kind` without a dot is a type of n8n's base nodes."""
    kind = kind if "." in kind else f"n8n-nodes-base.{kind}"
    made = {"parameters": parameters or {}, "id": name, "name": name, "type": kind, "typeVersion": 1}
    return {**made, "position": [0, 0], **more}


def workflow(*nodes, links=None, **more):
    """Return a workflow. Its nodes form a line, unless `links` has for each node the targets of its outputs."""
    names = [each["name"] for each in nodes]
    links = links or {one: [[two]] for one, two in itertools.pairwise(names)}
    edges = {
        source: {"main": [[{"node": to, "type": "main", "index": 0} for to in targets] for targets in outputs]}
        for source, outputs in links.items()
    }
    return N8nWorkflow.parse(json.dumps({"name": "w", "nodes": list(nodes), "connections": edges, **more}))


START, STEP, STEADY = node("Start", "manualTrigger"), node("Step", "code"), node("Steady", "noOp")
#: The nodes of a workflow that sends its response before its last node, so that its body must stay inline.
ANSWERS = [node("Hook", "webhook"), node("Answer", "respondToWebhook"), node("Set", "set", {"v": "={{ 1 }}"})]
#: The nodes of a workflow that sends its response at its end.
LINE = [
    node("Hook", "webhook"),
    node("Step", "code", {"jsCode": "return $input.all()"}),
    node("Answer", "respondToWebhook", {"v": "={{ $json.n }}"}),
]
