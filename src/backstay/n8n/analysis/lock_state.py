"""Data-flow analysis of locks: which acquires may be held at each node, and which were certainly taken or released
before it.

Both are fixpoints over the edges: a may analysis and a must analysis. A Merge node that waits for all inputs runs after
all of its branches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from backstay.n8n.analysis.graph import WorkflowCall, WorkflowGraph
from backstay.n8n.json_types import as_list, as_mapping
from backstay.n8n.model import Edge, Node

#: Versions of Loop Over Items (splitInBatches): the first with a done output, and the first with that output at index
#: 0.
_DONE_SINCE = 2
_DONE_FIRST = 3
_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class DeadEnd:
    """A place where items stop. `why` names the unconnected output; "" when the node simply has no successor."""

    node: Node
    why: str = ""


class LockState:
    """The lock state of every node in one workflow. Acquires are identified by their node name."""

    def __init__(self, graph: WorkflowGraph) -> None:
        self.graph = graph
        #: The acquires that each release node releases.
        self.released_by = {name: self._releases_of(call) for name, call in graph.releases.items()}
        self.must_have_acquired = self._solve_must(self._add_acquired)
        self.must_have_released = self._solve_must(self._add_released)
        self.may_hold = self._solve_may()

    def _releases_of(self, call: WorkflowCall) -> frozenset[str]:
        named = call.referenced_nodes() & self.graph.acquires.keys()
        return frozenset(named or self.graph.acquires)

    def held_after(self, name: str, held: frozenset[str]) -> frozenset[str]:
        """Return the acquires that may be held after a node that was entered with `held`."""
        if name in self.graph.acquires:
            return held | {name}
        return held - self.released_by.get(name, _NONE)

    def held_along(self, edge: Edge, held: frozenset[str]) -> frozenset[str]:
        """Return the acquires that may be held along one edge: an acquire's error output took no lock."""
        if edge.source in self.graph.acquires and edge.output >= count_outputs(self.graph.acquires[edge.source].node):
            return held
        return self.held_after(edge.source, held)

    def _solve_may(self) -> dict[str, frozenset[str]]:
        may: dict[str, frozenset[str]] = dict.fromkeys(self.graph.node_index, _NONE)
        todo = deque(self.graph.node_index)
        while todo:
            name = todo.popleft()
            for edge in self.graph.outgoing[name]:
                held = self.held_along(edge, may[name]) | may[edge.target]
                if waits_for_all(self.graph.nodes[self.graph.node_index[edge.target]]):
                    # A waiting Merge runs after its last input, so every lock that one of its branches released is
                    # released.
                    held -= self.must_have_released[edge.target]
                if held != may[edge.target]:
                    may[edge.target] = held
                    todo.append(edge.target)
        return may

    def _solve_must(self, step: Callable[[Edge, frozenset[str]], frozenset[str]]) -> dict[str, frozenset[str]]:
        """Compute what holds on every path to a node. Starts with all acquires and intersects until nothing changes."""
        must = dict.fromkeys(self.graph.node_index, frozenset(self.graph.acquires))
        todo = deque(self.graph.node_index)
        while todo:
            name = todo.popleft()
            node = self.graph.nodes[self.graph.node_index[name]]
            ways: dict[int, list[frozenset[str]]] = {}
            for edge in () if node.is_trigger else self.graph.incoming[name]:
                ways.setdefault(edge.input, []).append(step(edge, must[edge.source]))
            inputs = [each[0].intersection(*each[1:]) for each in ways.values()] or [_NONE]
            first, rest = inputs[0], inputs[1:]
            now = (first.union(*rest) if waits_for_all(node) else first.intersection(*rest)) & must[name]
            if now != must[name]:
                must[name] = now
                todo.extend(edge.target for edge in self.graph.outgoing[name])
        return must

    def _add_acquired(self, edge: Edge, passed: frozenset[str]) -> frozenset[str]:
        took: frozenset[str] = self.held_along(edge, _NONE)
        return passed | took

    def _add_released(self, edge: Edge, freed: frozenset[str]) -> frozenset[str]:
        took: frozenset[str] = self.held_along(edge, _NONE)
        return (freed | self.released_by.get(edge.source, _NONE)) - took

    def dead_ends(self, acquire: str) -> list[DeadEnd]:
        """Return the places where items may stop while this lock is held."""
        found: list[DeadEnd] = []
        for _, node in self.graph.active_nodes():
            held = self.held_after(node.name, self.may_hold[node.name])
            if acquire in held:
                found += [DeadEnd(node, why) for why in describe_dead_ends(node, self.graph.outgoing[node.name])]
        return found

    def shortest_path(self, start: str, goal: str) -> list[str]:
        """Return the shortest path of at least one step that does not release `start`, including both ends; empty when
        there is none.
        """
        came: dict[str, str] = {}
        todo = deque([start])
        while todo and goal not in came:
            name = todo.popleft()
            for edge in self.graph.outgoing[name]:
                freed = start in self.released_by.get(edge.target, _NONE)
                if edge.target not in came and not freed:
                    came[edge.target] = name
                    todo.append(edge.target)
        if goal not in came:
            return []
        steps = [goal, came[goal]]
        while steps[-1] != start:
            steps.append(came[steps[-1]])
        return steps[::-1]


def waits_for_all(node: Node) -> bool:
    """Whether the node is a Merge that waits for all inputs. In every other mode a Merge runs as soon as one input has
    items.
    """
    return node.kind == "merge" and node.parameters.get("mode") == "chooseBranch"


def count_outputs(node: Node) -> int:
    """Return the number of outputs, not counting the error output."""
    if node.kind == "if":
        return 2
    if node.kind == "splitInBatches":
        return 2 if node.version >= _DONE_SINCE else 1
    if node.kind == "switch":
        return _switch_outputs(node)
    return 1


def _switch_outputs(node: Node) -> int:
    rules = as_mapping(node.parameters.get("rules"))
    if node.parameters.get("mode") == "expression":
        count = node.parameters.get("numberOutputs", node.parameters.get("outputsAmount", 4))
        return count if isinstance(count, int) and count in range(1, 1000) else 4
    found = as_list(rules.get("values", rules.get("rules")))
    return max(1, len(found)) + (_fallback(node) == "extra")


def describe_dead_ends(node: Node, out: list[Edge]) -> list[str]:
    """Describe the outputs of a node that lead nowhere; [""] for a node without any successor."""
    used = {edge.output for edge in out}
    if not used:
        return [""]
    missing = [place for place in range(count_outputs(node)) if place not in used]
    if node.kind == "if":
        found = [("the true side", "the false side")[place] for place in missing]
    elif node.kind == "switch":
        found = [f"output {place}" for place in missing]
        if _drops_the_rest(node):
            found.append("the items that match none of its rules")
    elif node.kind == "splitInBatches":
        done = 0 if node.version >= _DONE_FIRST else 1
        found = ["its done output"] if done in missing else []
    else:
        found = []
    if node.data.get("onError") == "continueErrorOutput" and count_outputs(node) not in used:
        found.append("its error output")
    return found


def _drops_the_rest(node: Node) -> bool:
    return node.parameters.get("mode", "rules") == "rules" and _fallback(node) in (None, "none", -1)


def _fallback(node: Node) -> object:
    found = as_mapping(node.parameters.get("options")).get("fallbackOutput")
    return node.parameters.get("fallbackOutput", found)
