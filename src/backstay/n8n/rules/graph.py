"""Rules for nodes and connections: unique names, valid references, and reachability from a trigger."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator

from backstay.n8n.analysis.expressions import expression_tokens, find_referenced_nodes, iter_strings, join_path
from backstay.n8n.analysis.graph import WorkflowGraph
from backstay.n8n.model import MAIN
from backstay.n8n.rules.findings import RuleFinding, ValidationRule

UNKNOWN_NODE = ValidationRule(
    "unknown-node",
    "error",
    "a connection from or to a node that does not exist",
    "Connect it to a node of this workflow, or remove the connection.",
)
DUPLICATE_NAME = ValidationRule(
    "duplicate-name",
    "error",
    "two nodes with the same name: connections and `$('…')` cannot distinguish them",
    "Rename one of them and reconnect it.",
)
DUPLICATE_ID = ValidationRule(
    "duplicate-id",
    "error",
    "two nodes with the same id",
    "Delete the id of one of them; n8n generates a new one.",
)
NO_TRIGGER = ValidationRule(
    "no-trigger",
    "error",
    "nothing starts the workflow: no trigger, or all of them are disabled",
    "Add a trigger; for a sub-workflow, When Executed by Another Workflow.",
)
UNREACHABLE = ValidationRule(
    "unreachable-node",
    "warning",
    "a node that no trigger leads to, so it never runs",
    "Connect it, disable it, or delete it.",
)
INTO_TRIGGER = ValidationRule(
    "edge-into-trigger",
    "error",
    "a connection that leads into a trigger, which takes no input",
    "Connect it to the node after the trigger.",
)
CONNECTED_NOTE = ValidationRule(
    "connected-note",
    "error",
    "a connection from or to a sticky note",
    "Remove the connection; a note does not process items.",
)
UNKNOWN_REFERENCE = ValidationRule(
    "unknown-reference",
    "error",
    "an expression that reads a node that does not exist (`$('…')`, `$node[…]`)",
    "Name a node of this workflow. A sub-workflow sees only its input.",
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


def check(graph: WorkflowGraph) -> Iterator[RuleFinding]:
    yield from _connections(graph)
    yield from _duplicates(graph)
    yield from _reach(graph)
    yield from _references(graph)


def _connections(graph: WorkflowGraph) -> Iterator[RuleFinding]:
    for source in graph.workflow.connections:
        if source not in graph.node_index:
            path = join_path("connections", source)
            yield UNKNOWN_NODE.report(f"connections start at {source!r}, but no node has that name", path=path)
    for source, kinds in graph.workflow.connections.items():
        for kind, outputs in kinds.items():
            for output, targets in enumerate(outputs):
                for number, to in enumerate(targets or ()):
                    path = f"{join_path(join_path('connections', source), kind)}[{output}][{number}]"
                    yield from _connection(graph, source, to["node"], kind, path)


def _connection(graph: WorkflowGraph, source: str, target: str, kind: str, path: str) -> Iterator[RuleFinding]:
    node = graph.node(target)
    if node is None:
        message = f"{source!r} is connected to {target!r}, but no node has that name"
        yield UNKNOWN_NODE.report(message, node=source if source in graph.node_index else "", path=path)
        return
    for end in (graph.node(source), node):
        if end is not None and end.is_note:
            message = f"{source!r} is connected to {target!r}, but {end.name!r} is a sticky note"
            yield CONNECTED_NOTE.report(message, node=end.name, path=path)
            return
    if kind == MAIN and node.is_trigger:
        yield INTO_TRIGGER.report(f"{source!r} leads into the trigger {target!r}", node=target, path=path)


def _duplicates(graph: WorkflowGraph) -> Iterator[RuleFinding]:
    by_name: defaultdict[str, list[int]] = defaultdict(list)
    by_id: defaultdict[str, list[int]] = defaultdict(list)
    for place, node in enumerate(graph.nodes):
        by_name[node.name].append(place)
        if node.id:
            by_id[node.id].append(place)
    for name, places in by_name.items():
        if len(places) > 1:
            message = f"{len(places)} nodes are named {name!r}"
            yield DUPLICATE_NAME.report(message, node=name, path=f"nodes[{places[1]}].name")
    for id_, places in by_id.items():
        if len(places) > 1:
            names = " and ".join(repr(graph.nodes[place].name) for place in places)
            message = f"{names} have the same id, {id_!r}"
            name = graph.nodes[places[1]].name
            yield DUPLICATE_ID.report(message, node=name, path=f"nodes[{places[1]}].id")


def _reach(graph: WorkflowGraph) -> Iterator[RuleFinding]:
    if not graph.workflow.triggers:
        yield NO_TRIGGER.report("no node starts this workflow: it has no enabled trigger", path="nodes")
        return
    reached = {node.name for node in graph.nodes if node.is_trigger}
    todo = deque(reached)
    # Models, memories and tools point to the AI node that uses them, so follow these connections backwards.
    helpers: defaultdict[str, list[str]] = defaultdict(list)
    for edge in graph.edges:
        if edge.kind != MAIN:
            helpers[edge.target].append(edge.source)
    while todo:
        name = todo.popleft()
        for found in [*(edge.target for edge in graph.outgoing[name]), *helpers[name]]:
            if found not in reached:
                reached.add(found)
                todo.append(found)
    for place, node in graph.active_nodes():
        if node.name not in reached:
            yield UNREACHABLE.report(
                f"{node.name!r} never runs: no trigger leads to it", node=node.name, path=f"nodes[{place}]"
            )


def _references(graph: WorkflowGraph) -> Iterator[RuleFinding]:
    for place, node in graph.active_nodes():
        for path, text in iter_strings(node.parameters, f"nodes[{place}].parameters"):
            for name in sorted({name for name, _ in find_referenced_nodes(expression_tokens(text))}):
                if name not in graph.node_index:
                    message = f"{node.name!r} reads {name!r}, but no node has that name"
                    yield UNKNOWN_REFERENCE.report(message, node=node.name, path=path)
