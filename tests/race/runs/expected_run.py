"""The expected end of a run: a seed decides the outcomes of its jobs, and the pure graph computes the states."""

from __future__ import annotations

import random
from typing import Any

from chaos_flows import LENGTH, WIDTH

from backstay.workflow.graph.graph import Graph, JobCompleted, JobFailed, JobNode, JobSkipped, JobStarted, advance

KINDS = ("diamond", "chain", "fan", "diamond", "chain", "spread")
KEYS = {
    "diamond": ("top", "left", "right", "join", "on-failure", "report", "extra"),
    "chain": tuple(f"link-{n}" for n in range(LENGTH)),
    "fan": ("top", *(f"part-{n}" for n in range(WIDTH)), "join"),
    "spread": ("split", *(f"part ({n})" for n in range(WIDTH))),
}
#: The percentage of a workflow's jobs that fail at first.
FLAKY = {"diamond": 25, "chain": 15, "fan": 4, "spread": 4}
#: The suffix for the name of an internal job: one that evaluates a condition, expands a map, or gathers its results.
MARKS = {"backstay.decide": "?", "backstay.map": "*", "backstay.gather": "="}


class ExpectedRun:
    """A planned run: its workflow, its inputs, and the end that the graph computes for it."""

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
            self.inputs["extra"] = dice.choice(("yes", "no"))
        #: The jobs that exist when the run starts.
        self.first = self._nodes()
        self.graph = Graph(self.first)
        self._play()

    @property
    def status(self) -> str:
        return self.graph.status

    @property
    def states(self) -> dict[str, str]:
        return dict(self.graph.states)

    def _nodes(self) -> list[JobNode]:
        def node(key: str, *after: str, **options: Any) -> JobNode:
            return JobNode(key, after, soft=self.outcomes.get(key) == "soft", **options)

        match self.kind:
            case "diamond":
                return [
                    node("top"),
                    node("left", "top"),
                    node("right", "top"),
                    node("join", "left", "right"),
                    node("on-failure", "join", when="any_failure"),
                    node("report", "left", "right", when="all_done"),
                    node("extra?", "join"),
                ]
            case "chain":
                links = [node(f"link-{n}", *([f"link-{n - 1}"] if n else [])) for n in range(LENGTH)]
                return [*links, node("on-failure", links[-1].id, when="any_failure")]
            case "fan":
                parts = [node(f"part-{n}", "top") for n in range(WIDTH)]
                ends = [node("join", *(part.id for part in parts)), node("on-failure", "join", when="any_failure")]
                return [node("top"), *parts, *ends]
            case _:
                ends = [node("join", "part*"), node("on-failure", "part*", when="any_failure")]
                return [node("split"), node("part*", "split"), *ends]

    def _play(self) -> None:
        while ready := self.graph.ready():
            for key in ready:
                self.graph.apply(advance(self.graph, JobStarted(key)))
                self.graph.apply(advance(self.graph, self._end(key)))

    def _end(self, key: str) -> Any:
        match key:
            case "extra?":
                after = self.graph.jobs[key].node.after
                following = JobNode("extra", after, "all_done", chain=key)
                return JobCompleted(key, following) if self.inputs["extra"] == "yes" else JobSkipped(key)
            case "part*":
                parts = tuple(JobNode(f"part ({n})") for n in range(WIDTH))
                after = tuple(part.id for part in parts)
                return JobCompleted(key, JobNode("part=", after, "all_done", chain=key), parts)
            case "part=":
                lost = any(self.graph.states[f"part ({n})"] != "completed" for n in range(WIDTH))
                return JobFailed(key) if lost else JobCompleted(key)
            case _:
                return JobFailed(key) if self.outcomes.get(key) in ("fail", "soft") else JobCompleted(key)
