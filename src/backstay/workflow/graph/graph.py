"""Reference model of a run: `advance(graph, event) -> changes`, a pure function without I/O or clock.

No production code imports it. The stores implement the same transitions in SQL and Lua, and property tests compare
every engine's transitions with this model. `advance` visits only the edges of the jobs whose state it changes, so the
total cost of a run is linear in its jobs and edges.

Jobs wait for chains. A chain is a job and the jobs that continue it; it ends with its last job. A chain that ends
without completing skips its `all_success` dependents at once, even while their other blockers still run. A failed job,
and a job that was skipped because of a failure, satisfy their `any_failure` dependents. The failure of a job with
`soft=True` counts as completed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from backstay.job.model import FINAL, NewJob
from backstay.job.run_model import FINISHED
from backstay.workflow.graph.change_builder import ChangeBuilder
from backstay.workflow.graph.state import (
    RETRYABLE,
    UNSUCCESSFUL,
    FailedRerun,
    GraphChanges,
    GraphEvent,
    GraphState,
    JobCancelled,
    JobCompleted,
    JobFailed,
    JobNode,
    JobRequeued,
    JobRetried,
    JobSkipped,
    JobStarted,
    RunCancelled,
)

__all__ = [
    "FailedRerun",
    "Graph",
    "GraphChanges",
    "GraphEvent",
    "JobCancelled",
    "JobCompleted",
    "JobFailed",
    "JobNode",
    "JobRequeued",
    "JobRetried",
    "JobSkipped",
    "JobStarted",
    "RunCancelled",
    "advance",
    "would_skip_again",
]


class Graph(GraphState):
    """A run's jobs and their states, built from its nodes. Only `apply` mutates it."""

    def __init__(self, nodes: Iterable[JobNode] = ()) -> None:
        super().__init__()
        self.apply(_initial_changes(self, tuple(nodes)))

    @classmethod
    def of(cls, jobs: Sequence[NewJob]) -> Graph:
        """Build the graph of a run's jobs."""
        return cls(JobNode(job.id, job.after, job.when, job.soft, job.chain) for job in jobs)


def advance(graph: Graph, event: GraphEvent) -> GraphChanges:
    """Return the changes of an event. A stale event, such as the end of a job that does not run, changes nothing."""
    builder = ChangeBuilder(graph)
    match event:
        case JobStarted(job):
            if builder.state(job) == "pending":
                builder.move(job, "running")
        case JobRequeued(job):
            if builder.state(job) == "running":
                # A late failure must not requeue a job of a run that is being cancelled.
                builder.end(job, "cancelled") if graph.cancelling else builder.move(job, "pending")
        case JobCompleted(job, following, adds):
            if builder.state(job) == "running":
                builder.complete(job, following, adds)
        case JobFailed(job):
            if builder.state(job) == "running":
                builder.end(job, "cancelled" if graph.cancelling else "failed")
        case JobSkipped(job):
            if builder.state(job) == "running":
                builder.end(job, "cancelled" if graph.cancelling else "skipped")
        case JobCancelled(job):
            if builder.state(job) not in (*FINAL, None):
                builder.end(job, "cancelled")
        case RunCancelled():
            builder.cancel_run()
        case JobRetried(job):
            if builder.state(job) in RETRYABLE and not would_skip_again(graph, job):
                builder.retry([job], rerun=False)
        case FailedRerun():
            if graph.status in FINISHED:
                again = [id_ for id_, cell in graph.jobs.items() if cell.state in ("failed", "cancelled")]
                builder.retry(again, rerun=True)
    return builder.changes()


def would_skip_again(graph: Graph, job: str) -> bool:
    """Whether an ended job would be skipped at once if it were retried. A job with `all_success` would be, if one of
    its blockers has ended without success (and was not reopened since). A job with `any_failure` would be, if all its
    blockers have ended and none failed. A failed job never would be: its condition was satisfied when it started.
    """
    cell = graph.jobs[job]
    if cell.state == "failed" or cell.node.when == "all_done":
        return False
    over = {chain for chain in cell.node.after if graph.jobs[graph.tails[chain]].state in FINAL}
    outcomes = {outcome for chain, outcome in cell.uncompleted.items() if chain in over}
    if cell.node.when == "all_success":
        return not outcomes.isdisjoint(UNSUCCESSFUL)
    return len(over) == len(cell.node.after) and "failed" not in outcomes


def _initial_changes(graph: GraphState, nodes: tuple[JobNode, ...]) -> GraphChanges:
    builder = ChangeBuilder(graph)
    for node in nodes:
        builder.add(node)
    for node in nodes:
        builder.admit(node.id)
    return builder.changes()
