"""An answer to a webhook that ends a body stays with the webhook when the body moves; and how both are tied again."""

from __future__ import annotations

import copy
from typing import Any

from backstay.n8n.model import MAIN, Workflow
from backstay.n8n.patch.nodes import to
from backstay.n8n.patch.record import put_back


def cut_off(workflow: Workflow, answer: str) -> dict[str, Any]:
    """What leads to the answer leads nowhere from now on; answers how it looked."""
    before = {edge.source: copy.deepcopy(workflow.connections[edge.source]) for edge in workflow.entering(answer)}
    for source, kinds in before.items():
        put_back(workflow.connections, source, [left] if (left := _without(kinds, answer)) else [])
    return before


def _without(kinds: dict[str, Any], answer: str) -> dict[str, Any]:
    left = {
        kind: [[one for one in targets or () if one["node"] != answer] for targets in outputs]
        for kind, outputs in kinds.items()
    }
    return {kind: outputs for kind, outputs in left.items() if any(outputs)}


def tie_again(workflow: Workflow, answer: str, before: dict[str, Any]) -> None:
    """Whoever has tied something else to that end since keeps it; then the answer follows as well."""
    names = {node.name for node in workflow.nodes}
    for source, kinds in before.items():
        now = workflow.connections.get(source, {})
        if answer not in names or source not in names:
            continue
        if any(any(outputs) for outputs in now.values()) and now != _without(kinds, answer):
            outputs = now.setdefault(MAIN, [])
            outputs[:] = [[*(outputs[0] or ()), to(answer)] if outputs else [to(answer)], *outputs[1:]]
        else:
            workflow.connections[source] = copy.deepcopy(kinds)
