"""The workflow graph that the lint rules query: nodes by name, edges in both directions, and calls of the lock
primitives.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from backstay.n8n.analysis.expressions import WORKFLOW_ID, ParameterText, expression_tokens, find_referenced_nodes
from backstay.n8n.json_types import as_mapping, as_text, is_mapping
from backstay.n8n.model import MAIN, Edge, N8nNode, N8nWorkflow
from backstay.n8n.primitives.identity import KEYS, PrimitiveIdentity, identify
from backstay.n8n.rules.findings import WorkspaceContext

ACQUIRE, RELEASE, CLEANUP, LIMIT = KEYS
#: Names of inputs that identify the called primitive when the called workflow is unknown. That is so in a file built
#: for one environment: it contains only the id of the called workflow.
_BY_INPUTS = (
    (ACQUIRE, {"scope", "ttl_seconds", "wait_till_lock_released"}),
    (LIMIT, {"scope", "limit", "windowSeconds"}),
    (RELEASE, {"scope", "lock_id"}),
)
#: Node names that identify compatible primitives made by other tools, which carry no Backstay marker.
_FOREIGN = (
    (ACQUIRE, {"INCR Acquire Attempt", "Set Lock Meta"}),
    (RELEASE, {"GET Lock Meta", "DEL Lock Counter"}),
    (CLEANUP, {"GET Scope Meta", "DEL Owned Counter"}),
    (LIMIT, {"Build Bucket Key", "Redis INCR"}),
)


@dataclass(frozen=True, slots=True)
class WorkflowCall:
    """A call of another workflow: one Execute Workflow node. `primitive`: which Backstay primitive it calls,
    `transport`: whether that primitive uses "redis" or "http"; each is "" when it is unknown.
    """

    node: N8nNode
    target: str
    key: str
    primitive: str
    transport: str
    inputs: dict[str, Any] | None

    @property
    def scope(self) -> ParameterText | None:
        """The input `scope` of the call, which names the lock or limit. None when the call passes no inputs by name:
        then the scope is in its items, which are not known before the workflow runs.
        """
        return None if self.inputs is None else ParameterText.of(self.inputs.get("scope"))

    def referenced_nodes(self) -> set[str]:
        """Return the names of the nodes that the expressions in the inputs read."""
        found: set[str] = set()
        for value in (self.inputs or {}).values():
            if isinstance(value, str):
                found.update(name for name, _ in find_referenced_nodes(expression_tokens(value)))
        return found


class WorkflowGraph:
    """The index of one workflow: its nodes, its edges in both directions, and its calls of primitives."""

    def __init__(self, workflow: N8nWorkflow, context: WorkspaceContext) -> None:
        self.workflow = workflow
        self.context = context
        self.nodes = workflow.nodes
        self.node_index: dict[str, int] = {}
        for place, node in enumerate(self.nodes):
            self.node_index.setdefault(node.name, place)
        self.edges = list(workflow.edges())
        self.outgoing: defaultdict[str, list[Edge]] = defaultdict(list)
        self.incoming: defaultdict[str, list[Edge]] = defaultdict(list)
        for edge in self.edges:
            if edge.kind == MAIN and edge.source in self.node_index and edge.target in self.node_index:
                self.outgoing[edge.source].append(edge)
                self.incoming[edge.target].append(edge)
        self.identity: PrimitiveIdentity | None = identify(workflow)
        self.calls = [self._call(node) for node in self.nodes if node.kind == "executeWorkflow"]
        self.acquires = self._calls_of(ACQUIRE)
        self.releases = self._calls_of(RELEASE)
        self.limits = self._calls_of(LIMIT)

    @property
    def is_primitive(self) -> bool:
        """Whether the workflow is a Backstay primitive or a compatible one made by another tool."""
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

    def node(self, name: str) -> N8nNode | None:
        place = self.node_index.get(name)
        return None if place is None else self.nodes[place]

    def path(self, node: N8nNode, *keys: str) -> str:
        return ".".join((f"nodes[{self.node_index[node.name]}]", *keys))

    def active_nodes(self) -> Iterator[tuple[int, N8nNode]]:
        """Yield the nodes that can run, with their index: no sticky notes and no disabled nodes."""
        return ((place, node) for place, node in enumerate(self.nodes) if not node.is_note and not node.disabled)

    def descendants(self, name: str) -> set[str]:
        """Return the nodes reachable from a node in one step or more; the node itself only when a cycle leads back to
        it.
        """
        seen: set[str] = set()
        todo = [name]
        while todo:
            found = {edge.target for edge in self.outgoing[todo.pop()]} - seen
            seen |= found
            todo.extend(found)
        return seen

    def _calls_of(self, primitive: str) -> dict[str, WorkflowCall]:
        return {call.node.name: call for call in self.calls if call.primitive == primitive and not call.node.disabled}

    def _call(self, node: N8nNode) -> WorkflowCall:
        target = called_workflow(node)
        inputs = inputs_of(node)
        key = self.key_of(target)
        primitive, transport = key if key in KEYS else "", ""
        if key in self.context.others and (known := identify(self.context.others[key])) is not None:
            primitive, transport = known.key, known.transport
        if not primitive and inputs is not None:
            primitive = next((name for name, needed in _BY_INPUTS if needed <= inputs.keys()), "")
        return WorkflowCall(node, target, key, primitive, transport, inputs)

    def key_of(self, target: str) -> str:
        """Return the key under which the workspace lists a workflow; "" when the workspace does not know the workflow.
        `target`: the workflow's id, or the placeholder that stands for the id in a template.
        """
        found = WORKFLOW_ID.search(target)
        if found:
            return found[1]
        return next((key for key, known in self.context.workflow_ids.items() if known and known == target), "")


def called_workflow(node: N8nNode) -> str:
    """Return the id of the workflow that a node calls; in a template, the placeholder that stands for the id."""
    found = node.parameters.get("workflowId")
    return as_text(found.get("value") if is_mapping(found) else found).strip()


def inputs_of(node: N8nNode) -> dict[str, Any] | None:
    """Return the inputs that an Execute Workflow node passes by name; None when it passes its items unchanged."""
    value = as_mapping(node.parameters.get("workflowInputs")).get("value")
    return value if is_mapping(value) else None
