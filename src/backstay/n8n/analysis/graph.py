"""A workflow as the rules see it: nodes by name, edges both ways, and which calls take and free locks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from backstay.n8n.analysis.expressions import WORKFLOW_ID, Text, named_nodes, words
from backstay.n8n.json_types import is_table, table, text
from backstay.n8n.model import MAIN, Edge, Node, Workflow
from backstay.n8n.primitives.identity import KEYS, Identity, identify
from backstay.n8n.rules.findings import Surroundings

ACQUIRE, RELEASE, CLEANUP, LIMIT = KEYS
#: What a call's inputs tell where its workflow is not known: a built file has nothing but an id.
_BY_INPUTS = (
    (ACQUIRE, {"scope", "ttl_seconds", "wait_till_lock_released"}),
    (LIMIT, {"scope", "limit", "windowSeconds"}),
    (RELEASE, {"scope", "lock_id"}),
)
#: Primitives of the same recipe that others made carry no mark of ours; these nodes tell them.
_FOREIGN = (
    (ACQUIRE, {"INCR Acquire Attempt", "Set Lock Meta"}),
    (RELEASE, {"GET Lock Meta", "DEL Lock Counter"}),
    (CLEANUP, {"GET Scope Meta", "DEL Owned Counter"}),
    (LIMIT, {"Build Bucket Key", "Redis INCR"}),
)


@dataclass(frozen=True, slots=True)
class Call:
    """One Execute Workflow node. `primitive` and `transport` are empty where they are not known."""

    node: Node
    target: str
    key: str
    primitive: str
    transport: str
    inputs: dict[str, Any] | None

    @property
    def scope(self) -> Text | None:
        """None: the call does not say it itself, so it comes with the items."""
        return None if self.inputs is None else Text.of(self.inputs.get("scope"))

    def names(self) -> set[str]:
        """The nodes whose data the inputs are made of."""
        found: set[str] = set()
        for value in (self.inputs or {}).values():
            if isinstance(value, str):
                found.update(name for name, _ in named_nodes(words(value)))
        return found


class Reading:
    """Read once, asked by every rule."""

    def __init__(self, workflow: Workflow, around: Surroundings) -> None:
        self.workflow = workflow
        self.around = around
        self.nodes = workflow.nodes
        self.places: dict[str, int] = {}
        for place, node in enumerate(self.nodes):
            self.places.setdefault(node.name, place)
        self.edges = list(workflow.edges())
        self.out: defaultdict[str, list[Edge]] = defaultdict(list)
        self.into: defaultdict[str, list[Edge]] = defaultdict(list)
        for edge in self.edges:
            if edge.kind == MAIN and edge.source in self.places and edge.target in self.places:
                self.out[edge.source].append(edge)
                self.into[edge.target].append(edge)
        self.identity: Identity | None = identify(workflow)
        self.calls = [self._call(node) for node in self.nodes if node.kind == "executeWorkflow"]
        self.acquires = self._calls_of(ACQUIRE)
        self.releases = self._calls_of(RELEASE)
        self.limits = self._calls_of(LIMIT)

    @property
    def is_primitive(self) -> bool:
        """One of ours, or one that was made by the same recipe."""
        return self.identity is not None or self.foreign_primitive is not None

    @property
    def foreign_primitive(self) -> str | None:
        return next(
            (
                key
                for key, names in _FOREIGN
                if all(
                    (node := self.node(name)) is not None and (node.kind == "redis" or name.startswith("Build"))
                    for name in names
                )
            ),
            None,
        )

    def node(self, name: str) -> Node | None:
        place = self.places.get(name)
        return None if place is None else self.nodes[place]

    def path(self, node: Node, *keys: str) -> str:
        return ".".join((f"nodes[{self.places[node.name]}]", *keys))

    def active(self) -> Iterator[tuple[int, Node]]:
        """What runs: no notes, nothing disabled."""
        return ((place, node) for place, node in enumerate(self.nodes) if not node.is_note and not node.disabled)

    def behind(self, name: str) -> set[str]:
        """What can be reached from a node, by one step or more; itself only where a circle leads back."""
        seen: set[str] = set()
        todo = [name]
        while todo:
            found = {edge.target for edge in self.out[todo.pop()]} - seen
            seen |= found
            todo.extend(found)
        return seen

    def _calls_of(self, primitive: str) -> dict[str, Call]:
        return {call.node.name: call for call in self.calls if call.primitive == primitive and not call.node.disabled}

    def _call(self, node: Node) -> Call:
        target = called(node)
        inputs = inputs_of(node)
        key = self.key_of(target)
        primitive, transport = key if key in KEYS else "", ""
        if key in self.around.others and (known := identify(self.around.others[key])) is not None:
            primitive, transport = known.key, known.transport
        if not primitive and inputs is not None:
            primitive = next((name for name, needed in _BY_INPUTS if needed <= inputs.keys()), "")
        return Call(node, target, key, primitive, transport, inputs)

    def key_of(self, target: str) -> str:
        """The workspace's key of a workflow, from its placeholder or its id; "" where it has none."""
        found = WORKFLOW_ID.search(target)
        if found:
            return found[1]
        return next((key for key, known in self.around.workflow_ids.items() if known and known == target), "")


def called(node: Node) -> str:
    """The id, or the placeholder of one, of the workflow that a node calls."""
    found = node.parameters.get("workflowId")
    return text(found.get("value") if is_table(found) else found).strip()


def inputs_of(node: Node) -> dict[str, Any] | None:
    """What a call passes by name; None where it passes its items on as they are."""
    value = table(node.parameters.get("workflowInputs")).get("value")
    return value if is_table(value) else None
