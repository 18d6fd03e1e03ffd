"""Data types of the reference model in `graph.py`: nodes, events, changes and the state of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from msgspec import Struct

from backstay.job.model import FINAL, State, When
from backstay.job.run_model import RunStatus

#: The outcome of an ended chain, for the jobs that wait for it. It follows from the last job of the chain:
#: "completed": the job completed. "soft": it failed, but it has `soft=True`. "failed": it failed, or it was skipped
#: because a job upstream failed. "ended": it was cancelled, or skipped for another reason.
ChainOutcome = Literal["completed", "soft", "ended", "failed"]


UNSUCCESSFUL: tuple[ChainOutcome, ...] = ("ended", "failed")
#: Final states from which a job may be retried.
RETRYABLE: tuple[State, ...] = ("failed", "cancelled", "skipped")


class JobNode(Struct, frozen=True):
    """A job with the fields that the graph needs."""

    id: str
    #: Chains that must end before the job starts. A chain is a job and the jobs that continue it.
    after: tuple[str, ...] = ()
    when: When = "all_success"
    soft: bool = False
    #: The id of the first job of the chain that this job belongs to; "": this job is the first.
    chain: str = ""


class JobStarted(Struct, frozen=True):
    """A worker claimed the job."""

    job: str


class JobRequeued(Struct, frozen=True):
    """The job became claimable again: a retry, a snooze or an expired lease."""

    job: str


class JobCompleted(Struct, frozen=True):
    """The job completed.

    next: the job that continues its chain; None: the chain ends.
    adds: further jobs that are added to the run. They are added before `next`, so `next` may wait for them.
    """

    job: str
    next: JobNode | None = None
    adds: tuple[JobNode, ...] = ()


class JobFailed(Struct, frozen=True):
    """The job failed, with no attempts left."""

    job: str


class JobSkipped(Struct, frozen=True):
    """The job's handler skipped it."""

    job: str


class JobCancelled(Struct, frozen=True):
    """The job was cancelled, by a caller or by its own handler."""

    job: str


class RunCancelled(Struct, frozen=True):
    """The run was cancelled: running jobs are asked to stop, all other unfinished jobs are cancelled."""


class JobRetried(Struct, frozen=True):
    """A failed, cancelled or skipped job is retried. No effect if its blockers would skip it at once."""

    job: str


class FailedRerun(Struct, frozen=True):
    """All failed and cancelled jobs of a finished run are retried."""


GraphEvent = (
    JobStarted
    | JobRequeued
    | JobCompleted
    | JobFailed
    | JobSkipped
    | JobCancelled
    | RunCancelled
    | JobRetried
    | FailedRerun
)


@dataclass(eq=False, slots=True)
class NodeState:
    """A node with its current state."""

    node: JobNode
    state: State = "blocked"
    #: Chains that the job waits for and that have not ended.
    waits: set[str] = field(default_factory=set[str])
    #: By chain: the outcomes of those chains that this job waited for and that ended without completing.
    uncompleted: dict[str, ChainOutcome] = field(default_factory=dict[str, "ChainOutcome"])
    #: True: the job was skipped because a job upstream failed.
    tainted: bool = False

    @property
    def chain(self) -> str:
        return self.node.chain or self.node.id


class GraphChanges(Struct, frozen=True):
    """The changes that one event makes. `GraphState.apply` writes them."""

    #: (job, new state).
    moves: tuple[tuple[str, State], ...] = ()
    #: Jobs that are skipped because a job upstream failed.
    tainted: frozenset[str] = frozenset()
    #: (job, chain that it waited for, outcome of that chain).
    ended: tuple[tuple[str, str, ChainOutcome], ...] = ()
    #: (job, chain): from now on the job waits for the chain, because the job is new or a retry reopened the chain.
    waits: tuple[tuple[str, str], ...] = ()
    added: tuple[JobNode, ...] = ()
    #: Running jobs to be asked to stop.
    stop: tuple[str, ...] = ()
    #: None: unchanged.
    status: RunStatus | None = None
    cancelling: bool | None = None
    #: Number of edges that `advance` visited, its cost.
    edges_visited: int = 0


class GraphState:
    """The mutable state of a run: its jobs, their states and counters. Only `apply` mutates it."""

    def __init__(self) -> None:
        self.jobs: dict[str, NodeState] = {}
        #: The last job of each chain.
        self.tails: dict[str, str] = {}
        #: By chain: the jobs that wait or waited for it.
        self.dependents: dict[str, list[str]] = {}
        self.status: RunStatus = "queued"
        self.cancelling = False
        #: Number of jobs that have not ended.
        self.open = 0
        #: Number of failed jobs that are not soft.
        self.failures = 0
        #: Number of cancelled jobs.
        self.cancelled = 0

    @property
    def states(self) -> dict[str, State]:
        return {id_: cell.state for id_, cell in self.jobs.items()}

    def ready(self) -> list[str]:
        """Return the jobs that a worker can claim."""
        return [id_ for id_, cell in self.jobs.items() if cell.state == "pending"]

    def apply(self, changes: GraphChanges) -> None:
        """Write the changes that `advance` returned. Call it before the next `advance`."""
        for node in changes.added:
            cell = NodeState(node)
            self.jobs[node.id] = cell
            self.tails[cell.chain] = node.id
            self.open += 1
            for chain in node.after:
                self.dependents.setdefault(chain, []).append(node.id)
        for id_, chain in changes.waits:
            cell = self.jobs[id_]
            cell.waits.add(chain)
            cell.uncompleted.pop(chain, None)
        for id_, chain, outcome in changes.ended:
            cell = self.jobs[id_]
            cell.waits.discard(chain)
            if outcome != "completed":
                cell.uncompleted[chain] = outcome
        for id_, state in changes.moves:
            self._move(self.jobs[id_], state)
            self.jobs[id_].tainted = id_ in changes.tainted
        if changes.status is not None:
            self.status = changes.status
        if changes.cancelling is not None:
            self.cancelling = changes.cancelling

    def _move(self, cell: NodeState, state: State) -> None:
        self.open += (cell.state in FINAL) - (state in FINAL)
        if not cell.node.soft:
            self.failures += (state == "failed") - (cell.state == "failed")
        self.cancelled += (state == "cancelled") - (cell.state == "cancelled")
        cell.state = state
