"""A lock around a body that stays where it is: acquire, gate, body, release. Right for a line that always arrives."""

from __future__ import annotations

import copy
from typing import Any

from backstay.n8n.analysis.body import Entry, tails
from backstay.n8n.model import MAIN, Workflow
from backstay.n8n.patch import nodes as stitches
from backstay.n8n.patch.limit import guarded
from backstay.n8n.patch.nodes import ACQUIRE, CONFIRM, GATE, HELD_RESULT, RELEASE, numbered, to
from backstay.n8n.patch.placement import Places
from backstay.n8n.patch.record import our_nodes, put_back

GRANT = f"$({stitches.quoted(ACQUIRE)}).first().json"
#: Who takes the lock, as itself would say it.
CALLER = {
    "execution_id": "={{ $execution.id }}",
    "workflow_id": "={{ $workflow.id }}",
    "workflow_name": "={{ $workflow.name }}",
}


def weave_inline(
    workflow: Workflow, key: str, options: dict[str, Any], scope: str, found: list[Entry], *, result: bool
) -> dict[str, Any]:
    """In place; answers what to write down."""
    ends = tails(workflow, found)
    places = Places(workflow, our_nodes(workflow))
    nodes, links = acquiring(key, options, scope, [numbered(GATE, place) for place in range(len(found))], places)
    for place, entry in enumerate(found):
        gate = numbered(GATE, place)
        nodes.append(stitches.gate(key, gate, places.take(2, place)))
        links[gate] = [entry.targets]
        for node, output in entry.ports:
            workflow.connections[node][MAIN][output] = [to(ACQUIRE), to(gate, 1)]
    behind = [to(RELEASE)]
    nodes.append(releasing(key, places, 3))
    if result:
        behind.append(to(HELD_RESULT, 1))
        links[RELEASE] = [[to(HELD_RESULT)]]
        nodes.append(stitches.gate(key, HELD_RESULT, places.take(4)))
    before = {name: copy.deepcopy(workflow.connections.get(name)) for name in ends}
    for name in ends:
        workflow.connections[name] = {**(before[name] or {}), MAIN: [copy.deepcopy(behind)]}
    add(workflow, nodes, links)
    return {"nodes": [node["name"] for node in nodes], "undo": {"ends": before}}


def unweave_inline(workflow: Workflow, noted: dict[str, Any]) -> None:
    for entry in guarded(workflow, GATE, noted["nodes"]):
        for node, output in entry.ports:
            workflow.connections[node][MAIN][output] = copy.deepcopy(entry.targets)
    for name, before in noted["undo"]["ends"].items():
        outputs = workflow.connections.get(name, {}).get(MAIN, [])
        left = [[one for one in targets or () if one["node"] not in noted["nodes"]] for targets in outputs]
        if any(left):
            # Whoever has tied something to that end since keeps it.
            workflow.connections[name][MAIN] = left
        else:
            put_back(workflow.connections, name, [] if before is None else [before])
    for name in noted["nodes"]:
        workflow.remove(name)


def acquiring(
    key: str,
    options: dict[str, Any],
    scope: str,
    gates: list[str],
    places: Places,
    column: int = 1,
    holder: dict[str, str] = CALLER,
    *,
    goes_on: bool = False,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The nodes that take the lock, and how they lead to the gates.

    `goes_on`: also when the grant could not be confirmed; whoever wants that looks behind the gates whether it was.
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
    nodes = [stitches.call(key, ACQUIRE, "lock_acquisition", inputs, places.take(column, -1))]
    links: dict[str, Any] = {ACQUIRE: [[to(gate) for gate in gates]]}
    if options["transport"] == "http":
        # An execution that was stopped while it waited never comes here, and its grant lapses.
        confirm = _confirming(key, options, places.take(column + 1, -1))
        nodes.append({**confirm, "onError": "continueErrorOutput"} if goes_on else confirm)
        ways = 2 if goes_on else 1
        links = {ACQUIRE: [[to(CONFIRM)]], CONFIRM: [[to(gate) for gate in gates] for _ in range(ways)]}
    return nodes, links


def _confirming(key: str, options: dict[str, Any], position: list[int]) -> dict[str, Any]:
    return stitches.node(
        key,
        CONFIRM,
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


def releasing(key: str, places: Places, column: float) -> dict[str, Any]:
    """The scope is that of the grant: computed once, when the lock was taken."""
    inputs = {"scope": f"={{{{ {GRANT}.scope }}}}", "lock_id": f"={{{{ {GRANT}.lock_id }}}}"}
    return stitches.call(key, RELEASE, "lock_release", inputs, places.take(column))


def add(workflow: Workflow, nodes: list[dict[str, Any]], links: dict[str, Any]) -> None:
    for node in nodes:
        workflow.add(node)
    workflow.connections.update({name: {MAIN: outputs} for name, outputs in links.items()})
