"""Reference model of a run: `advance(graph, event) -> changes`, a pure function without I/O or clock.

No production code imports it. The stores implement the same transitions in SQL and Lua, and property tests hold every
engine's transitions to this model. `advance` visits only the edges of the jobs that it moves, so the total cost of a
run is linear in its jobs and edges.

Jobs wait for chains; a chain ends with its last job. A chain that ends without completing skips its `all_success`
dependents at once, even while their other blockers still run. A failed job, and a job that was skipped because of a
failure, satisfy their `any_failure` dependents. A soft job's failure counts as completed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from backstay.job.model import FINAL, NewJob
from backstay.job.run_model import FINISHED
from backstay.workflow.graph.change_builder import ChangeBuilder
from backstay.workflow.graph.state import (
    RETRYABLE,
    UNSUCCESSFUL,
    Cancelled,
    Changes,
    Completed,
    Event,
    Failed,
    FailedRerun,
    GraphState,
    Node,
    Requeued,
    Retried,
    RunCancelled,
    Skipped,
    Started,
)

__all__ = [
    "Cancelled",
    "Changes",
    "Completed",
    "Event",
    "Failed",
    "FailedRerun",
    "Graph",
    "Node",
    "Requeued",
    "Retried",
    "RunCancelled",
    "Skipped",
    "Started",
    "advance",
    "would_skip_again",
]


class Graph(GraphState):
    """A run's jobs and their states, built from its nodes. Only `apply` mutates it."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        super().__init__()
        self.apply(_initial_changes(self, tuple(nodes)))

    @classmethod
    def of(cls, jobs: Sequence[NewJob]) -> Graph:
        """Build the graph of a run's jobs."""
        return cls(Node(job.id, job.after, job.when, job.soft, job.chain) for job in jobs)


def advance(graph: Graph, event: Event) -> Changes:
    """Return the changes that an event makes. An event that does not fit the job's state (a stale one) changes
    nothing.
    """
    builder = ChangeBuilder(graph)
    match event:
        case Started(job):
            if builder.state(job) == "pending":
                builder.move(job, "running")
        case Requeued(job):
            if builder.state(job) == "running":
                # A late failure must not requeue a job of a run that is being cancelled.
                builder.end(job, "cancelled") if graph.cancelling else builder.move(job, "pending")
        case Completed(job, following, adds):
            if builder.state(job) == "running":
                builder.complete(job, following, adds)
        case Failed(job):
            if builder.state(job) == "running":
                builder.end(job, "cancelled" if graph.cancelling else "failed")
        case Skipped(job):
            if builder.state(job) == "running":
                builder.end(job, "cancelled" if graph.cancelling else "skipped")
        case Cancelled(job):
            if builder.state(job) not in (*FINAL, None):
                builder.end(job, "cancelled")
        case RunCancelled():
            builder.cancel_run()
        case Retried(job):
            if builder.state(job) in RETRYABLE and not would_skip_again(graph, job):
                builder.retry([job])
        case FailedRerun():
            if graph.status in FINISHED:
                again = [id_ for id_, cell in graph.jobs.items() if cell.state in ("failed", "cancelled")]
                builder.retry(again)
    return builder.changes()


def would_skip_again(graph: Graph, job: str) -> bool:
    """Whether a retry of an ended job would skip it again at once: with `all_success`, when a blocker ended without
    success and was not reopened; with `any_failure`, when all blockers ended and none failed. A job that failed did
    start, so it may be retried whatever its blockers' states are.
    """
    cell = graph.jobs[job]
    if cell.state == "failed" or cell.node.when == "all_done":
        return False
    over = {chain for chain in cell.node.after if graph.jobs[graph.tails[chain]].state in FINAL}
    outcomes = {outcome for chain, outcome in cell.uncompleted.items() if chain in over}
    if cell.node.when == "all_success":
        return not outcomes.isdisjoint(UNSUCCESSFUL)
    return len(over) == len(cell.node.after) and "failed" not in outcomes


def _initial_changes(graph: GraphState, nodes: tuple[Node, ...]) -> Changes:
    builder = ChangeBuilder(graph)
    for node in nodes:
        builder.add(node)
    for node in nodes:
        builder.admit(node.id)
    return builder.changes()
