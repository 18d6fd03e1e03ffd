"""The rate limit before a workflow's first nodes: one check per execution, which lets the trigger's items pass
unchanged or denies them.
"""

from __future__ import annotations

import copy
from typing import Any

from backstay.errors import PatchRefused
from backstay.n8n.analysis.body import BodyEntry, TriggerPath, find_body_entries, trigger_paths
from backstay.n8n.model import MAIN, N8nWorkflow
from backstay.n8n.patch import nodes as make
from backstay.n8n.patch.nodes import LIMIT_ALLOWED, LIMIT_CHECK, LIMIT_DENIED, LIMIT_GATE, link_to, number_name
from backstay.n8n.patch.placement import Placement
from backstay.n8n.patch.record import added_nodes, read_part, remove_part, save_part

_CHECKED = f"$({make.js_string(LIMIT_CHECK)}).first().json"


def add_limit_nodes(workflow: N8nWorkflow, key: str, options: dict[str, Any], scope: str) -> None:
    """Add the nodes of a rate limit to the workflow, which is changed in place. `options` are stored unchanged in the
    workflow's record of its patches (`meta.backstay`).
    """
    found = find_body_entries(workflow, trigger_paths(workflow))
    lock = read_part(workflow, "lock") or {}
    placement = Placement(workflow, added_nodes(workflow), top=lock.get("undo", {}).get("top"))
    inputs = {"scope": scope, "limit": options["limit"], "windowSeconds": options["window_seconds"]}
    nodes = [make.call(key, LIMIT_CHECK, "rate_limit_check", inputs, placement.above(1, len(found)))]
    links: dict[str, Any] = {LIMIT_CHECK: [[link_to(number_name(LIMIT_GATE, place)) for place in range(len(found))]]}
    for place, entry in enumerate(found):
        gate, allowed, denied = (number_name(name, place) for name in (LIMIT_GATE, LIMIT_ALLOWED, LIMIT_DENIED))
        nodes += [
            make.gate(key, gate, placement.above(1, place)),
            make.condition(key, allowed, f"{_CHECKED}.allowed === true", placement.above(2, place)),
        ]
        links[gate] = [[link_to(allowed)]]
        links[allowed] = [entry.targets]
        if options["on_denied"] != "stop":
            nodes.append(_denied(key, denied, options["on_denied"], placement.above(3, place)))
            links[allowed] = [entry.targets, [link_to(denied)]]
        if options["on_denied"] == "passthrough":
            links[denied] = [copy.deepcopy(entry.targets)]
        for node, output in entry.ports:
            workflow.connections[node][MAIN][output] = [link_to(LIMIT_CHECK), link_to(gate, 1)]
    for made in nodes:
        workflow.add(made)
    workflow.connections.update({name: {MAIN: outputs} for name, outputs in links.items()})
    save_part(workflow, "limit", {"options": options, "nodes": [node["name"] for node in nodes]})


def _denied(key: str, name: str, on_denied: str, position: list[int]) -> dict[str, Any]:
    if on_denied == "error":
        text = f"'Rate limit reached for ' + {_CHECKED}.scope + ': ' + {_CHECKED}.count + ' of ' + {_CHECKED}.limit"
        return make.stop_and_error(key, name, text, position)
    return make.set_json(key, name, f"Object.assign({{}}, $json, {{ rate_limit: {_CHECKED} }})", position)


def remove_limit_nodes(workflow: N8nWorkflow) -> None:
    """Undo `add_limit_nodes` in place."""
    known = read_part(workflow, "limit")
    if known is None:
        raise PatchRefused("the workflow has no rate limit")
    require_nodes(workflow, known["nodes"])
    for entry in find_gated_entries(workflow, LIMIT_GATE, known["nodes"]):
        allowed = entry.targets[0]["node"]
        for node, output in entry.ports:
            workflow.connections[node][MAIN][output] = copy.deepcopy(first_output_targets(workflow, allowed))
    for name in known["nodes"]:
        workflow.remove(name)
    remove_part(workflow, "limit")


def require_nodes(workflow: N8nWorkflow, names: list[str]) -> None:
    """Raise PatchRefused when a node that the patch added is missing."""
    for name in names:
        if workflow.find(name) is None:
            raise PatchRefused(f"the node {name!r}, which the patch added, was deleted or renamed")


def first_output_targets(workflow: N8nWorkflow, name: str) -> list[dict[str, Any]]:
    """Return the targets of a node's first output."""
    outputs = workflow.connections.get(name, {}).get(MAIN, [])
    return (outputs[0] or []) if outputs else []


def find_gated_entries(workflow: N8nWorkflow, kind: str, names: list[str]) -> list[BodyEntry]:
    """Return an entry for each Merge node that a lock (`kind` LOCK_GATE) or a limit (`kind` LIMIT_GATE) added to hold
    items back. `names`: the nodes that the patch added. An entry consists of the outputs of other nodes that are
    connected to the Merge node's second input, and of the targets of the Merge node's own output.
    """
    gates = [name for name in names if name == kind or name.startswith(f"{kind} ")]
    found: list[BodyEntry] = []
    for gate in gates:
        ports = tuple((edge.source, edge.output) for edge in workflow.entering(gate) if edge.input == 1)
        found.append(BodyEntry(ports, first_output_targets(workflow, gate), ports[0][0] if ports else ""))
    return found


def body_paths(workflow: N8nWorkflow) -> list[TriggerPath]:
    """Return the node outputs after which a lock's nodes are inserted: the outputs of the rate limit's nodes if the
    workflow has a limit, else the outputs of the triggers.
    """
    known = read_part(workflow, "limit")
    if known is None:
        return trigger_paths(workflow)
    ways: list[TriggerPath] = []
    for entry in find_gated_entries(workflow, LIMIT_GATE, known["nodes"]):
        allowed = entry.targets[0]["node"]
        ports = [(allowed, 0)]
        if known["options"]["on_denied"] == "passthrough":
            ports.append((allowed.replace(LIMIT_ALLOWED, LIMIT_DENIED), 0))
        ways.append(TriggerPath(tuple(ports), entry.trigger))
    return ways
