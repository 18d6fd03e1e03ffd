"""Keep a webhook's final response node in the workflow when the body (the nodes under a lock) moves to a sub-workflow,
because only the workflow with the webhook can respond. Reconnect the node when the body moves back.
"""

from __future__ import annotations

import copy
from typing import Any

from backstay.n8n.model import MAIN, N8nWorkflow
from backstay.n8n.patch.nodes import link_to
from backstay.n8n.patch.record import restore_key


def detach_reply(workflow: N8nWorkflow, answer: str) -> dict[str, Any]:
    """Remove the connections to the response node. Return all previous connections of the nodes that led to it."""
    before = {edge.source: copy.deepcopy(workflow.connections[edge.source]) for edge in workflow.entering(answer)}
    for source, kinds in before.items():
        restore_key(workflow.connections, source, [left] if (left := _remove_links(kinds, answer)) else [])
    return before


def _remove_links(kinds: dict[str, Any], answer: str) -> dict[str, Any]:
    left = {
        kind: [[one for one in targets or () if one["node"] != answer] for targets in outputs]
        for kind, outputs in kinds.items()
    }
    return {kind: outputs for kind, outputs in left.items() if any(outputs)}


def reattach_reply(workflow: N8nWorkflow, answer: str, before: dict[str, Any]) -> None:
    """Restore the connections to the response node. Connections that the user added to the same nodes in the meantime
    are kept.
    """
    names = {node.name for node in workflow.nodes}
    for source, kinds in before.items():
        now = workflow.connections.get(source, {})
        if answer not in names or source not in names:
            continue
        if any(any(outputs) for outputs in now.values()) and now != _remove_links(kinds, answer):
            outputs = now.setdefault(MAIN, [])
            outputs[:] = [[*(outputs[0] or ()), link_to(answer)] if outputs else [link_to(answer)], *outputs[1:]]
        else:
            workflow.connections[source] = copy.deepcopy(kinds)
