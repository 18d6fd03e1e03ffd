"""What a run does next, and nothing else: `advance(graph, event) -> changes`. No I/O, no clock.

It is the meaning of a run, readable in one sitting; stores do the same in their own words, and a property test demands
that they agree. A call looks only at the edges of jobs that it moves: a run of any size costs what it is made of.

A chain is one thing to wait for: it ends with its last job. A blocker that did not complete skips those who wait for it
with `all_success` at once, though others of theirs still run; `failed` and whatever was skipped because of it *fail*
those who wait with `any_failure`. A job's own failure, if it is soft, counts as completed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from backstay.job.model import FINAL, NewJob
from backstay.job.run_model import FINISHED
from backstay.workflow.graph.draft import Draft
from backstay.workflow.graph.state import (
    AGAIN,
    SPOILT,
    Cancelled,
    Changes,
    Completed,
    Event,
    Failed,
    FailedRerun,
    Node,
    PutOff,
    Retried,
    RunCancelled,
    Skipped,
    Standing,
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
    "PutOff",
    "Retried",
    "RunCancelled",
    "Skipped",
    "Started",
    "advance",
    "is_held_back",
]


class Graph(Standing):
    """A run's jobs and where they stand. Only `apply` changes it."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        super().__init__()
        self.apply(_begin(self, tuple(nodes)))

    @classmethod
    def of(cls, jobs: Sequence[NewJob]) -> Graph:
        """The graph of a run's jobs."""
        return cls(Node(job.id, job.after, job.when, job.soft, job.chain) for job in jobs)


def advance(graph: Graph, event: Event) -> Changes:
    """What an event comes to. Events that do not suit a job's state change nothing: the store calls them stale."""
    draft = Draft(graph)
    match event:
        case Started(job):
            if draft.state(job) == "pending":
                draft.move(job, "running")
        case PutOff(job):
            if draft.state(job) == "running":
                # Cancelled work must not be brought back by its own late failure.
                draft.end(job, "cancelled") if graph.cancelling else draft.move(job, "pending")
        case Completed(job, following, adds):
            if draft.state(job) == "running":
                draft.complete(job, following, adds)
        case Failed(job):
            if draft.state(job) == "running":
                draft.end(job, "cancelled" if graph.cancelling else "failed")
        case Skipped(job):
            if draft.state(job) == "running":
                draft.end(job, "cancelled" if graph.cancelling else "skipped")
        case Cancelled(job):
            if draft.state(job) not in (*FINAL, None):
                draft.end(job, "cancelled")
        case RunCancelled():
            draft.cancel_run()
        case Retried(job):
            if draft.state(job) in AGAIN and not is_held_back(graph, job):
                draft.retry([job])
        case FailedRerun():
            if graph.status in FINISHED:
                again = [id_ for id_, cell in graph.jobs.items() if cell.state in ("failed", "cancelled")]
                draft.retry(again)
    return draft.changes()


def is_held_back(graph: Graph, job: str) -> bool:
    """Whether one that has ended would be skipped again at once: with `all_success`, something that it waits for did
    not succeed, and has not begun anew; with `any_failure`, all of it has ended, and nothing failed. One that failed
    had its turn, and may have it again whatever has been mended since.
    """
    cell = graph.jobs[job]
    if cell.state == "failed" or cell.node.when == "all_done":
        return False
    over = {chain for chain in cell.node.after if graph.jobs[graph.tails[chain]].state in FINAL}
    hows = {how for chain, how in cell.lost.items() if chain in over}
    if cell.node.when == "all_success":
        return not hows.isdisjoint(SPOILT)
    return len(over) == len(cell.node.after) and "failed" not in hows


def _begin(graph: Standing, nodes: tuple[Node, ...]) -> Changes:
    draft = Draft(graph)
    for node in nodes:
        draft.add(node)
    for node in nodes:
        draft.place(node.id)
    return draft.changes()
