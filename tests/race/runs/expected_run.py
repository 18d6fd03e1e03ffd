"""How a run must end: its outcomes are drawn from a seed, and played on the pure graph."""

from __future__ import annotations

import random
from typing import Any

from chaos_flows import LENGTH, WIDTH

from backstay.workflow.graph.graph import Completed, Failed, Graph, Node, Skipped, Started, advance

KINDS = ("diamond", "chain", "fan", "diamond", "chain", "spread")
KEYS = {
    "diamond": ("top", "left", "right", "join", "mend", "tell", "more"),
    "chain": tuple(f"link-{n}" for n in range(LENGTH)),
    "fan": ("top", *(f"part-{n}" for n in range(WIDTH)), "join"),
    "spread": ("deal", *(f"part ({n})" for n in range(WIDTH))),
}
#: How many keys of a run fail at first, in a hundred.
FLAKY = {"diamond": 25, "chain": 15, "fan": 4, "spread": 4}
#: What follows an internal job's name: it decides, it spreads, it gathers.
MARKS = {"backstay.decide": "?", "backstay.map": "*", "backstay.gather": "="}


class ExpectedRun:
    """A planned run: its workflow, its inputs, and its expected end by the graph."""

    def __init__(self, seed: int, nth: int) -> None:
        dice = random.Random(f"{seed}-{nth}")
        self.kind = KINDS[nth % len(KINDS)]
        self.name = f"{self.kind}-{nth}"
        keys = KEYS[self.kind]
        outcomes = {key: f"flaky:{dice.choice((1, 1, 2))}" for key in keys if dice.randrange(100) < FLAKY[self.kind]}
        if dice.random() < 0.5:
            outcomes[dice.choice(keys)] = "fail"
            if self.kind == "diamond" and dice.random() < 0.5:
                outcomes[dice.choice(("left", "right"))] = "soft"
        self.outcomes = outcomes
        self.inputs: dict[str, Any] = {"run": self.name, "outcomes": outcomes}
        if self.kind == "diamond":
            self.inputs["more"] = dice.choice(("yes", "no"))
        #: The jobs that it begins with.
        self.first = self._nodes()
        self.graph = Graph(self.first)
        self._play()

    @property
    def status(self) -> str:
        return self.graph.status

    @property
    def states(self) -> dict[str, str]:
        return dict(self.graph.states)

    def _nodes(self) -> list[Node]:
        def node(key: str, *after: str, **options: Any) -> Node:
            return Node(key, after, soft=self.outcomes.get(key) == "soft", **options)

        match self.kind:
            case "diamond":
                return [
                    node("top"),
                    node("left", "top"),
                    node("right", "top"),
                    node("join", "left", "right"),
                    node("mend", "join", when="any_failure"),
                    node("tell", "left", "right", when="all_done"),
                    node("more?", "join"),
                ]
            case "chain":
                links = [node(f"link-{n}", *([f"link-{n - 1}"] if n else [])) for n in range(LENGTH)]
                return [*links, node("mend", links[-1].id, when="any_failure")]
            case "fan":
                parts = [node(f"part-{n}", "top") for n in range(WIDTH)]
                ends = [node("join", *(part.id for part in parts)), node("mend", "join", when="any_failure")]
                return [node("top"), *parts, *ends]
            case _:
                ends = [node("join", "part*"), node("mend", "part*", when="any_failure")]
                return [node("deal"), node("part*", "deal"), *ends]

    def _play(self) -> None:
        while ready := self.graph.ready():
            for key in ready:
                self.graph.apply(advance(self.graph, Started(key)))
                self.graph.apply(advance(self.graph, self._end(key)))

    def _end(self, key: str) -> Any:
        match key:
            case "more?":
                after = self.graph.jobs[key].node.after
                following = Node("more", after, "all_done", chain=key)
                return Completed(key, following) if self.inputs["more"] == "yes" else Skipped(key)
            case "part*":
                parts = tuple(Node(f"part ({n})") for n in range(WIDTH))
                after = tuple(part.id for part in parts)
                return Completed(key, Node("part=", after, "all_done", chain=key), parts)
            case "part=":
                lost = any(self.graph.states[f"part ({n})"] != "completed" for n in range(WIDTH))
                return Failed(key) if lost else Completed(key)
            case _:
                return Failed(key) if self.outcomes.get(key) in ("fail", "soft") else Completed(key)
