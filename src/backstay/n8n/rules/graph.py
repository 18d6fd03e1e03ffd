"""Nodes and connections: what names what, and what an execution can reach."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator

from backstay.n8n.analysis.expressions import joined, named_nodes, strings_of, words
from backstay.n8n.analysis.graph import Reading
from backstay.n8n.model import MAIN
from backstay.n8n.rules.findings import Finding, Rule

UNKNOWN_NODE = Rule(
    "unknown-node",
    "error",
    "a connection from or to a node that is not there",
    "Connect it to a node of this workflow, or remove the connection.",
)
DUPLICATE_NAME = Rule(
    "duplicate-name",
    "error",
    "two nodes with one name: connections and `$('…')` cannot tell them apart",
    "Give one of them another name, and connect it anew.",
)
DUPLICATE_ID = Rule(
    "duplicate-id",
    "error",
    "two nodes with one id",
    "Give one of them another id; deleting the field is enough, n8n makes a new one.",
)
NO_TRIGGER = Rule(
    "no-trigger",
    "error",
    "nothing starts the workflow: no trigger, or all of them are disabled",
    "Add a trigger; When Executed by Another Workflow for one that others call.",
)
UNREACHABLE = Rule(
    "unreachable-node",
    "warning",
    "a node that no trigger leads to, so it never runs",
    "Connect it, disable it, or delete it.",
)
INTO_TRIGGER = Rule(
    "edge-into-trigger",
    "error",
    "a connection that leads into a trigger, which takes no input",
    "Lead it to the node behind the trigger.",
)
CONNECTED_NOTE = Rule(
    "connected-note",
    "error",
    "a connection from or to a sticky note",
    "Remove the connection; a note takes and gives no items.",
)
UNKNOWN_REFERENCE = Rule(
    "unknown-reference",
    "error",
    "an expression that reads a node that is not there (`$('…')`, `$node[…]`)",
    "Name a node of this workflow. A sub-workflow sees only what is passed to it.",
)

RULES = (
    UNKNOWN_NODE,
    DUPLICATE_NAME,
    DUPLICATE_ID,
    NO_TRIGGER,
    UNREACHABLE,
    INTO_TRIGGER,
    CONNECTED_NOTE,
    UNKNOWN_REFERENCE,
)


def check(reading: Reading) -> Iterator[Finding]:
    yield from _connections(reading)
    yield from _duplicates(reading)
    yield from _reach(reading)
    yield from _references(reading)


def _connections(reading: Reading) -> Iterator[Finding]:
    for source in reading.workflow.connections:
        if source not in reading.places:
            path = joined("connections", source)
            yield UNKNOWN_NODE.found(f"connections leave {source!r}, and there is no such node", path=path)
    for source, kinds in reading.workflow.connections.items():
        for kind, outputs in kinds.items():
            for output, targets in enumerate(outputs):
                for number, to in enumerate(targets or ()):
                    path = f"{joined(joined('connections', source), kind)}[{output}][{number}]"
                    yield from _connection(reading, source, to["node"], kind, path)


def _connection(reading: Reading, source: str, target: str, kind: str, path: str) -> Iterator[Finding]:
    node = reading.node(target)
    if node is None:
        message = f"{source!r} is connected to {target!r}, and there is no such node"
        yield UNKNOWN_NODE.found(message, node=source if source in reading.places else "", path=path)
        return
    for end in (reading.node(source), node):
        if end is not None and end.is_note:
            message = f"{source!r} is connected to {target!r}, and {end.name!r} is a sticky note"
            yield CONNECTED_NOTE.found(message, node=end.name, path=path)
            return
    if kind == MAIN and node.is_trigger:
        yield INTO_TRIGGER.found(f"{source!r} leads into the trigger {target!r}", node=target, path=path)


def _duplicates(reading: Reading) -> Iterator[Finding]:
    by_name: defaultdict[str, list[int]] = defaultdict(list)
    by_id: defaultdict[str, list[int]] = defaultdict(list)
    for place, node in enumerate(reading.nodes):
        by_name[node.name].append(place)
        if node.id:
            by_id[node.id].append(place)
    for name, places in by_name.items():
        if len(places) > 1:
            message = f"{len(places)} nodes are named {name!r}"
            yield DUPLICATE_NAME.found(message, node=name, path=f"nodes[{places[1]}].name")
    for id_, places in by_id.items():
        if len(places) > 1:
            names = " and ".join(repr(reading.nodes[place].name) for place in places)
            message = f"{names} have one id, {id_!r}"
            name = reading.nodes[places[1]].name
            yield DUPLICATE_ID.found(message, node=name, path=f"nodes[{places[1]}].id")


def _reach(reading: Reading) -> Iterator[Finding]:
    if not reading.workflow.triggers:
        yield NO_TRIGGER.found("no node starts this workflow: there is no trigger that is enabled", path="nodes")
        return
    reached = {node.name for node in reading.nodes if node.is_trigger}
    todo = deque(reached)
    # An AI's models, memories and tools hang on it the other way round: they are used by what they lead to.
    helpers: defaultdict[str, list[str]] = defaultdict(list)
    for edge in reading.edges:
        if edge.kind != MAIN:
            helpers[edge.target].append(edge.source)
    while todo:
        name = todo.popleft()
        for found in [*(edge.target for edge in reading.out[name]), *helpers[name]]:
            if found not in reached:
                reached.add(found)
                todo.append(found)
    for place, node in reading.active():
        if node.name not in reached:
            yield UNREACHABLE.found(
                f"{node.name!r} never runs: no trigger leads to it", node=node.name, path=f"nodes[{place}]"
            )


def _references(reading: Reading) -> Iterator[Finding]:
    for place, node in reading.active():
        for path, text in strings_of(node.parameters, f"nodes[{place}].parameters"):
            for name in sorted({name for name, _ in named_nodes(words(text))}):
                if name not in reading.places:
                    message = f"{node.name!r} reads {name!r}, and there is no such node"
                    yield UNKNOWN_REFERENCE.found(message, node=node.name, path=path)
