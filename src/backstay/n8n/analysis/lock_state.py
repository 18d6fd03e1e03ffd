"""Data-flow analysis of locks: which locks may be held at each node, and which were certainly taken or released before
it. A lock is identified by its acquire, the node that takes it.

"May be held" is a may analysis: it is true if the lock is held on some path to the node. "Certainly taken" and
"certainly released" are must analyses: they are true if it happened on every path. Each analysis propagates sets of
acquires along the edges until nothing changes. A Merge node that waits for all inputs runs after all
of its branches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from backstay.n8n.analysis.graph import WorkflowCall, WorkflowGraph
from backstay.n8n.json_types import as_list, as_mapping
from backstay.n8n.model import Edge, N8nNode

#: The first version of Loop Over Items (splitInBatches) with a done output.
_DONE_SINCE = 2
#: The first version of Loop Over Items whose done output has index 0.
_DONE_FIRST = 3
_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class DeadEnd:
    """A place in a workflow after which no node runs: a node without a successor (`why` is ""), or an unconnected
    output of a node, which `why` names.
    """

    node: N8nNode
    why: str = ""


class LockState:
    """The locks of one workflow at every node. Sets of locks are sets of acquires: names of the nodes that take the
    locks.
    """

    def __init__(self, graph: WorkflowGraph) -> None:
        self.graph = graph
        #: By the name of a release node: the acquires whose locks it releases.
        self.released_by = {name: self._releases_of(call) for name, call in graph.releases.items()}
        self.must_have_acquired = self._solve_must(self._add_acquired)
        self.must_have_released = self._solve_must(self._add_released)
        self.may_hold = self._solve_may()

    def _releases_of(self, call: WorkflowCall) -> frozenset[str]:
        named = call.referenced_nodes() & self.graph.acquires.keys()
        return frozenset(named or self.graph.acquires)

    def held_after(self, name: str, held: frozenset[str]) -> frozenset[str]:
        """Return the acquires whose locks may be held after a node, if `held` are those before it."""
        if name in self.graph.acquires:
            return held | {name}
        return held - self.released_by.get(name, _NONE)

    def held_along(self, edge: Edge, held: frozenset[str]) -> frozenset[str]:
        """Return the acquires whose locks may be held along one edge, if `held` are those before the edge's source.
        Along the error output of an acquire, the lock of this acquire is not held, because taking it failed.
        """
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
        """Solve a must analysis: return, for each node, the acquires for which a fact (taken, or released) holds on
        every path to the node. `step` computes the set after an edge from the set at the edge's source. The sets start
        with all acquires and shrink until nothing changes.
        """
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
        """Return the places where the workflow may end while the lock of this acquire is held."""
        found: list[DeadEnd] = []
        for _, node in self.graph.active_nodes():
            held = self.held_after(node.name, self.may_hold[node.name])
            if acquire in held:
                found += [DeadEnd(node, why) for why in describe_dead_ends(node, self.graph.outgoing[node.name])]
        return found

    def shortest_path(self, start: str, goal: str) -> list[str]:
        """Return the shortest path from the acquire `start` to `goal`, both included, that does not release its
        lock; empty when there is none. The path has at least one edge, so `start` may be its own goal.
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


def waits_for_all(node: N8nNode) -> bool:
    """Whether the node is a Merge that waits for all inputs. In every other mode a Merge runs as soon as one input has
    items.
    """
    return node.kind == "merge" and node.parameters.get("mode") == "chooseBranch"


def count_outputs(node: N8nNode) -> int:
    """Return the number of outputs, not counting the error output."""
    if node.kind == "if":
        return 2
    if node.kind == "splitInBatches":
        return 2 if node.version >= _DONE_SINCE else 1
    if node.kind == "switch":
        return _switch_outputs(node)
    return 1


def _switch_outputs(node: N8nNode) -> int:
    rules = as_mapping(node.parameters.get("rules"))
    if node.parameters.get("mode") == "expression":
        count = node.parameters.get("numberOutputs", node.parameters.get("outputsAmount", 4))
        return count if isinstance(count, int) and count in range(1, 1000) else 4
    found = as_list(rules.get("values", rules.get("rules")))
    return max(1, len(found)) + (_fallback(node) == "extra")


def describe_dead_ends(node: N8nNode, out: list[Edge]) -> list[str]:
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


def _drops_the_rest(node: N8nNode) -> bool:
    return node.parameters.get("mode", "rules") == "rules" and _fallback(node) in (None, "none", -1)


def _fallback(node: N8nNode) -> object:
    found = as_mapping(node.parameters.get("options")).get("fallbackOutput")
    return node.parameters.get("fallbackOutput", found)
