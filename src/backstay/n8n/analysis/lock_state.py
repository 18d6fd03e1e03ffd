"""Where in a graph a lock is held: which acquires may be held at a node, and which were surely passed or freed before.

These are the usual fixpoints over the edges. A Merge that waits for all its inputs runs behind all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from backstay.n8n.analysis.graph import Call, Reading
from backstay.n8n.json_types import items, table
from backstay.n8n.model import Edge, Node

#: Loop Over Items: the version that got an output for its end, and the one that put it first.
_DONE_SINCE = 2
_DONE_FIRST = 3
_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class End:
    """A place where items stop. `why` says which way they went, "" when the node is simply the last one."""

    node: Node
    why: str = ""


class Held:
    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        #: Which acquires each release frees.
        self.frees = {name: self._freed(call) for name, call in reading.releases.items()}
        self.passed = self._surely(self._pass)
        self.freed = self._surely(self._free)
        self.may = self._may()

    def _freed(self, call: Call) -> frozenset[str]:
        named = call.names() & self.reading.acquires.keys()
        return frozenset(named or self.reading.acquires)

    def after(self, name: str, held: frozenset[str]) -> frozenset[str]:
        """What may be held behind a node that was entered with these."""
        if name in self.reading.acquires:
            return held | {name}
        return held - self.frees.get(name, _NONE)

    def along(self, edge: Edge, held: frozenset[str]) -> frozenset[str]:
        """The same for one way out: nothing was taken where the acquire failed."""
        if edge.source in self.reading.acquires and edge.output >= outputs(self.reading.acquires[edge.source].node):
            return held
        return self.after(edge.source, held)

    def _may(self) -> dict[str, frozenset[str]]:
        may: dict[str, frozenset[str]] = dict.fromkeys(self.reading.places, _NONE)
        todo = deque(self.reading.places)
        while todo:
            name = todo.popleft()
            for edge in self.reading.out[name]:
                held = self.along(edge, may[name]) | may[edge.target]
                if waits_for_all(self.reading.nodes[self.reading.places[edge.target]]):
                    # It runs when the last of its inputs is there, so behind whatever one of them has freed.
                    held -= self.freed[edge.target]
                if held != may[edge.target]:
                    may[edge.target] = held
                    todo.append(edge.target)
        return may

    def _surely(self, step: Callable[[Edge, frozenset[str]], frozenset[str]]) -> dict[str, frozenset[str]]:
        """What has happened on every way to a node. Starts from "all of them" and takes away what some way lacks."""
        surely = dict.fromkeys(self.reading.places, frozenset(self.reading.acquires))
        todo = deque(self.reading.places)
        while todo:
            name = todo.popleft()
            node = self.reading.nodes[self.reading.places[name]]
            ways: dict[int, list[frozenset[str]]] = {}
            for edge in () if node.is_trigger else self.reading.into[name]:
                ways.setdefault(edge.input, []).append(step(edge, surely[edge.source]))
            inputs = [each[0].intersection(*each[1:]) for each in ways.values()] or [_NONE]
            first, rest = inputs[0], inputs[1:]
            now = (first.union(*rest) if waits_for_all(node) else first.intersection(*rest)) & surely[name]
            if now != surely[name]:
                surely[name] = now
                todo.extend(edge.target for edge in self.reading.out[name])
        return surely

    def _pass(self, edge: Edge, passed: frozenset[str]) -> frozenset[str]:
        took: frozenset[str] = self.along(edge, _NONE)
        return passed | took

    def _free(self, edge: Edge, freed: frozenset[str]) -> frozenset[str]:
        took: frozenset[str] = self.along(edge, _NONE)
        return (freed | self.frees.get(edge.source, _NONE)) - took

    def ends(self, acquire: str) -> list[End]:
        """Where items may stop while this lock is held."""
        found: list[End] = []
        for _, node in self.reading.active():
            held = self.after(node.name, self.may[node.name])
            if acquire in held:
                found += [End(node, why) for why in dead_ends(node, self.reading.out[node.name])]
        return found

    def way(self, start: str, goal: str) -> list[str]:
        """The shortest way (of one step at least) that frees nothing, both ends included; empty where there is none."""
        came: dict[str, str] = {}
        todo = deque([start])
        while todo and goal not in came:
            name = todo.popleft()
            for edge in self.reading.out[name]:
                freed = start in self.frees.get(edge.target, _NONE)
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
    """A Merge runs when one of its inputs has something, except in this mode."""
    return node.kind == "merge" and node.parameters.get("mode") == "chooseBranch"


def outputs(node: Node) -> int:
    """How many outputs a node has, without the one for errors."""
    if node.kind == "if":
        return 2
    if node.kind == "splitInBatches":
        return 2 if node.version >= _DONE_SINCE else 1
    if node.kind == "switch":
        return _switch_outputs(node)
    return 1


def _switch_outputs(node: Node) -> int:
    rules = table(node.parameters.get("rules"))
    if node.parameters.get("mode") == "expression":
        count = node.parameters.get("numberOutputs", node.parameters.get("outputsAmount", 4))
        return count if isinstance(count, int) and count in range(1, 1000) else 4
    found = items(rules.get("values", rules.get("rules")))
    return max(1, len(found)) + (_fallback(node) == "extra")


def dead_ends(node: Node, out: list[Edge]) -> list[str]:
    """The ways out of a node that lead nowhere, in words; [""] for a node that is simply the last."""
    used = {edge.output for edge in out}
    if not used:
        return [""]
    missing = [place for place in range(outputs(node)) if place not in used]
    if node.kind == "if":
        found = [("the true side", "the false side")[place] for place in missing]
    elif node.kind == "switch":
        found = [f"output {place}" for place in missing]
        if _drops_the_rest(node):
            found.append("what fits none of its rules")
    elif node.kind == "splitInBatches":
        done = 0 if node.version >= _DONE_FIRST else 1
        found = ["its end (done)"] if done in missing else []
    else:
        found = []
    if node.data.get("onError") == "continueErrorOutput" and outputs(node) not in used:
        found.append("its error output")
    return found


def _drops_the_rest(node: Node) -> bool:
    return node.parameters.get("mode", "rules") == "rules" and _fallback(node) in (None, "none", -1)


def _fallback(node: Node) -> object:
    found = table(node.parameters.get("options")).get("fallbackOutput")
    return node.parameters.get("fallbackOutput", found)
