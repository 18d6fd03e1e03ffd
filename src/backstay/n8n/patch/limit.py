"""A rate limit before everything else: each trigger asks once, and its items go on as they came, or do not."""

from __future__ import annotations

import copy
from typing import Any

from backstay.errors import PatchRefused
from backstay.n8n.analysis.body import Entry, Way, entries, trigger_ways
from backstay.n8n.model import MAIN, Workflow
from backstay.n8n.patch import nodes as stitches
from backstay.n8n.patch.nodes import ALLOWED, CHECK, DENIED, LIMIT_GATE, numbered, to
from backstay.n8n.patch.placement import Places
from backstay.n8n.patch.record import forget, note, our_nodes, part

_SAID = f"$({stitches.quoted(CHECK)}).first().json"


def weave_limit(workflow: Workflow, key: str, options: dict[str, Any], scope: str) -> None:
    """In place. `options` are written down as they are."""
    found = entries(workflow, trigger_ways(workflow))
    lock = part(workflow, "lock") or {}
    places = Places(workflow, our_nodes(workflow), top=lock.get("undo", {}).get("top"))
    inputs = {"scope": scope, "limit": options["limit"], "windowSeconds": options["window_seconds"]}
    nodes = [stitches.call(key, CHECK, "rate_limit_check", inputs, places.above(1, len(found)))]
    links: dict[str, Any] = {CHECK: [[to(numbered(LIMIT_GATE, place)) for place in range(len(found))]]}
    for place, entry in enumerate(found):
        gate, allowed, denied = (numbered(name, place) for name in (LIMIT_GATE, ALLOWED, DENIED))
        nodes += [
            stitches.gate(key, gate, places.above(1, place)),
            stitches.choice(key, allowed, f"{_SAID}.allowed === true", places.above(2, place)),
        ]
        links[gate] = [[to(allowed)]]
        links[allowed] = [entry.targets]
        if options["on_denied"] != "stop":
            nodes.append(_denied(key, denied, options["on_denied"], places.above(3, place)))
            links[allowed] = [entry.targets, [to(denied)]]
        if options["on_denied"] == "passthrough":
            links[denied] = [copy.deepcopy(entry.targets)]
        for node, output in entry.ports:
            workflow.connections[node][MAIN][output] = [to(CHECK), to(gate, 1)]
    for made in nodes:
        workflow.add(made)
    workflow.connections.update({name: {MAIN: outputs} for name, outputs in links.items()})
    note(workflow, "limit", {"options": options, "nodes": [node["name"] for node in nodes]})


def _denied(key: str, name: str, on_denied: str, position: list[int]) -> dict[str, Any]:
    if on_denied == "error":
        text = f"'Rate limit reached for ' + {_SAID}.scope + ': ' + {_SAID}.count + ' of ' + {_SAID}.limit"
        return stitches.stop(key, name, text, position)
    return stitches.rewrite(key, name, f"Object.assign({{}}, $json, {{ rate_limit: {_SAID} }})", position)


def unweave_limit(workflow: Workflow) -> None:
    known = part(workflow, "limit")
    if known is None:
        raise PatchRefused("it has no rate limit")
    require(workflow, known["nodes"])
    for entry in guarded(workflow, LIMIT_GATE, known["nodes"]):
        allowed = entry.targets[0]["node"]
        for node, output in entry.ports:
            workflow.connections[node][MAIN][output] = copy.deepcopy(first_output(workflow, allowed))
    for name in known["nodes"]:
        workflow.remove(name)
    forget(workflow, "limit")


def require(workflow: Workflow, names: list[str]) -> None:
    for name in names:
        if workflow.find(name) is None:
            raise PatchRefused(f"the node {name!r}, which was added with it, is gone or has another name now")


def first_output(workflow: Workflow, name: str) -> list[dict[str, Any]]:
    outputs = workflow.connections.get(name, {}).get(MAIN, [])
    return (outputs[0] or []) if outputs else []


def guarded(workflow: Workflow, kind: str, names: list[str]) -> list[Entry]:
    """For each gate of a kind: what leads to its second input, and what it leads to."""
    gates = [name for name in names if name == kind or name.startswith(f"{kind} ")]
    found: list[Entry] = []
    for gate in gates:
        ports = tuple((edge.source, edge.output) for edge in workflow.entering(gate) if edge.input == 1)
        found.append(Entry(ports, first_output(workflow, gate), ports[0][0] if ports else ""))
    return found


def body_ways(workflow: Workflow) -> list[Way]:
    """Where a lock belongs: behind the limit if there is one, else behind the triggers."""
    known = part(workflow, "limit")
    if known is None:
        return trigger_ways(workflow)
    ways: list[Way] = []
    for entry in guarded(workflow, LIMIT_GATE, known["nodes"]):
        allowed = entry.targets[0]["node"]
        ports = [(allowed, 0)]
        if known["options"]["on_denied"] == "passthrough":
            ports.append((allowed.replace(ALLOWED, DENIED), 0))
        ways.append(Way(tuple(ports), entry.trigger))
    return ways
