"""The inline lock: the nodes that acquire and release the lock are in the same workflow as the nodes that it protects.

The body (the nodes under the lock) must be linear and always reach its end. Before it is a node `Lock Gate`: an n8n
Merge node that passes on the trigger's items once the lock is granted.
"""

from __future__ import annotations

import copy
from typing import Any

from backstay.n8n.analysis.body import BodyEntry, find_body_ends
from backstay.n8n.model import MAIN, N8nWorkflow
from backstay.n8n.patch import nodes as make
from backstay.n8n.patch.limit import find_gated_entries
from backstay.n8n.patch.nodes import (
    LOCK_ACQUIRE,
    LOCK_CONFIRM,
    LOCK_GATE,
    LOCK_RELEASE,
    LOCK_RESULT,
    link_to,
    number_name,
)
from backstay.n8n.patch.placement import Placement
from backstay.n8n.patch.record import added_nodes, restore_key

GRANT = f"$({make.js_string(LOCK_ACQUIRE)}).first().json"
#: n8n expressions for the identity of the lock's holder: the execution and the workflow in which the Acquire node runs.
CALLER = {
    "execution_id": "={{ $execution.id }}",
    "workflow_id": "={{ $workflow.id }}",
    "workflow_name": "={{ $workflow.name }}",
}


def add_inline_lock(
    workflow: N8nWorkflow, key: str, options: dict[str, Any], scope: str, found: list[BodyEntry], *, result: bool
) -> dict[str, Any]:
    """Add the nodes of an inline lock to the workflow, which is changed in place. Return the data that
    `remove_inline_lock` needs (`recorded`).
    """
    ends = find_body_ends(workflow, found)
    placement = Placement(workflow, added_nodes(workflow))
    nodes, links = build_acquire(
        key, options, scope, [number_name(LOCK_GATE, place) for place in range(len(found))], placement
    )
    for place, entry in enumerate(found):
        gate = number_name(LOCK_GATE, place)
        nodes.append(make.gate(key, gate, placement.take(2, place)))
        links[gate] = [entry.targets]
        for node, output in entry.ports:
            workflow.connections[node][MAIN][output] = [link_to(LOCK_ACQUIRE), link_to(gate, 1)]
    behind = [link_to(LOCK_RELEASE)]
    nodes.append(build_release(key, placement, 3))
    if result:
        behind.append(link_to(LOCK_RESULT, 1))
        links[LOCK_RELEASE] = [[link_to(LOCK_RESULT)]]
        nodes.append(make.gate(key, LOCK_RESULT, placement.take(4)))
    before = {name: copy.deepcopy(workflow.connections.get(name)) for name in ends}
    for name in ends:
        workflow.connections[name] = {**(before[name] or {}), MAIN: [copy.deepcopy(behind)]}
    add_nodes(workflow, nodes, links)
    return {"nodes": [node["name"] for node in nodes], "undo": {"ends": before}}


def remove_inline_lock(workflow: N8nWorkflow, recorded: dict[str, Any]) -> None:
    """Undo `add_inline_lock` in place."""
    for entry in find_gated_entries(workflow, LOCK_GATE, recorded["nodes"]):
        for node, output in entry.ports:
            workflow.connections[node][MAIN][output] = copy.deepcopy(entry.targets)
    for name, before in recorded["undo"]["ends"].items():
        outputs = workflow.connections.get(name, {}).get(MAIN, [])
        left = [[one for one in targets or () if one["node"] not in recorded["nodes"]] for targets in outputs]
        if any(left):
            # The user has connected `name`, a last node of the body, to further nodes after the lock was added: keep
            # those connections.
            workflow.connections[name][MAIN] = left
        else:
            restore_key(workflow.connections, name, [] if before is None else [before])
    for name in recorded["nodes"]:
        workflow.remove(name)


def build_acquire(
    key: str,
    options: dict[str, Any],
    scope: str,
    gates: list[str],
    placement: Placement,
    column: int = 1,
    holder: dict[str, str] = CALLER,
    *,
    continue_on_error: bool = False,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the nodes that acquire the lock, and their connections to `gates`: the names of the Merge nodes that hold
    the items back until the lock is granted.

    With the http transport, a node confirms to the server that the execution got its grant. `continue_on_error`: the
    items also pass the Merge nodes when this node failed. A later node must then check whether it failed.
    """
    inputs = {
        "scope": scope,
        "ttl_seconds": options["ttl_seconds"],
        "execution_id": holder["execution_id"],
        "wait_till_lock_released": not options["fail_fast"],
        "max_wait_seconds": options["max_wait_seconds"],
        "workflow_id": holder["workflow_id"],
        "workflow_name": holder["workflow_name"],
    }
    nodes = [make.call(key, LOCK_ACQUIRE, "lock_acquisition", inputs, placement.take(column, -1))]
    links: dict[str, Any] = {LOCK_ACQUIRE: [[link_to(gate) for gate in gates]]}
    if options["transport"] == "http":
        # The confirmation makes the grant valid. An execution that was stopped while it waited sends none, so its grant
        # lapses and does not block the lock.
        confirm = _confirm_node(key, options, placement.take(column + 1, -1))
        nodes.append({**confirm, "onError": "continueErrorOutput"} if continue_on_error else confirm)
        outputs = 2 if continue_on_error else 1
        links = {
            LOCK_ACQUIRE: [[link_to(LOCK_CONFIRM)]],
            LOCK_CONFIRM: [[link_to(gate) for gate in gates] for _ in range(outputs)],
        }
    return nodes, links


def _confirm_node(key: str, options: dict[str, Any], position: list[int]) -> dict[str, Any]:
    return make.node(
        key,
        LOCK_CONFIRM,
        "httpRequest",
        4.2,
        {
            "method": "POST",
            "url": f"={{{{@:env:backstay.url}}}}/api/locks/{{{{ encodeURIComponent({GRANT}.scope) }}}}/confirm",
            "authentication": "genericCredentialType",
            "genericAuthType": "httpHeaderAuth",
            "sendBody": True,
            "specifyBody": "json",
            "jsonBody": f"={{{{ {{ lock_id: {GRANT}.lock_id, ttl_seconds: {options['ttl_seconds']} }} }}}}",
            "options": {"timeout": 20000},
        },
        position,
        executeOnce=True,
        retryOnFail=True,
        maxTries=3,
        credentials={
            "httpHeaderAuth": {
                "id": "{{@:env:credentials.backstay.id}}",
                "name": "{{@:env:credentials.backstay.name}}",
            }
        },
    )


def build_release(key: str, placement: Placement, column: float) -> dict[str, Any]:
    """Build the Release node. It reads the scope from the output of the Acquire node. If it evaluated the scope
    expression again, after the body, the value could differ from the scope that was locked.
    """
    inputs = {"scope": f"={{{{ {GRANT}.scope }}}}", "lock_id": f"={{{{ {GRANT}.lock_id }}}}"}
    return make.call(key, LOCK_RELEASE, "lock_release", inputs, placement.take(column))


def add_nodes(workflow: N8nWorkflow, nodes: list[dict[str, Any]], links: dict[str, Any]) -> None:
    """Add nodes and their outgoing connections to a workflow."""
    for node in nodes:
        workflow.add(node)
    workflow.connections.update({name: {MAIN: outputs} for name, outputs in links.items()})
