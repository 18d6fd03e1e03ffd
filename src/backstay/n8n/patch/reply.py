"""Keep a webhook's final response in the calling workflow when the body moves, and reconnect it when the body
returns.
"""

from __future__ import annotations

import copy
from typing import Any

from backstay.n8n.model import MAIN, Workflow
from backstay.n8n.patch.nodes import link_to
from backstay.n8n.patch.record import restore_key


def detach_reply(workflow: Workflow, answer: str) -> dict[str, Any]:
    """Remove the connections to the response node. Return the previous connections of its sources."""
    before = {edge.source: copy.deepcopy(workflow.connections[edge.source]) for edge in workflow.entering(answer)}
    for source, kinds in before.items():
        restore_key(workflow.connections, source, [left] if (left := _without(kinds, answer)) else [])
    return before


def _without(kinds: dict[str, Any], answer: str) -> dict[str, Any]:
    left = {
        kind: [[one for one in targets or () if one["node"] != answer] for targets in outputs]
        for kind, outputs in kinds.items()
    }
    return {kind: outputs for kind, outputs in left.items() if any(outputs)}


def reattach_reply(workflow: Workflow, answer: str, before: dict[str, Any]) -> None:
    """Restore the connections to the response node, keeping connections that were added to its sources since."""
    names = {node.name for node in workflow.nodes}
    for source, kinds in before.items():
        now = workflow.connections.get(source, {})
        if answer not in names or source not in names:
            continue
        if any(any(outputs) for outputs in now.values()) and now != _without(kinds, answer):
            outputs = now.setdefault(MAIN, [])
            outputs[:] = [[*(outputs[0] or ()), link_to(answer)] if outputs else [link_to(answer)], *outputs[1:]]
        else:
            workflow.connections[source] = copy.deepcopy(kinds)
