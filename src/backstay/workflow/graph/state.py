"""Data types of the reference model in `graph.py`: nodes, events, changes and the state of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from msgspec import Struct

from backstay.job.model import FINAL, State, When
from backstay.job.run_model import RunStatus

#: How a chain's end counts for the jobs that wait for it. "completed"; "soft": failed, but soft; "ended": cancelled or
#: skipped without a failure; "failed": failed, or skipped because of a failure.
ChainOutcome = Literal["completed", "soft", "ended", "failed"]


UNSUCCESSFUL: tuple[ChainOutcome, ...] = ("ended", "failed")
#: Final states from which a job may be retried.
RETRYABLE: tuple[State, ...] = ("failed", "cancelled", "skipped")


class Node(Struct, frozen=True):
    """A job with the fields that the graph needs."""

    id: str
    #: Chains that must end before it starts.
    after: tuple[str, ...] = ()
    when: When = "all_success"
    soft: bool = False
    #: The first job of its chain; "": itself.
    chain: str = ""


class Started(Struct, frozen=True):
    """A worker claimed the job."""

    job: str


class Requeued(Struct, frozen=True):
    """The job became claimable again: a retry, a snooze or an expired lease."""

    job: str


class Completed(Struct, frozen=True):
    """The job completed. `next` continues its chain; `adds` are created first, so `next` may wait for them."""

    job: str
    next: Node | None = None
    adds: tuple[Node, ...] = ()


class Failed(Struct, frozen=True):
    """The job failed, with no attempts left."""

    job: str


class Skipped(Struct, frozen=True):
    """The job's handler skipped it."""

    job: str


class Cancelled(Struct, frozen=True):
    """The job was cancelled, by a caller or by its own handler."""

    job: str


class RunCancelled(Struct, frozen=True):
    """The run was cancelled: idle jobs are cancelled, running jobs are asked to stop."""


class Retried(Struct, frozen=True):
    """A failed, cancelled or skipped job is retried, unless it would be skipped again at once."""

    job: str


class FailedRerun(Struct, frozen=True):
    """All failed and cancelled jobs of a finished run are retried."""


Event = Started | Requeued | Completed | Failed | Skipped | Cancelled | RunCancelled | Retried | FailedRerun


@dataclass(eq=False, slots=True)
class NodeState:
    """A node with its current state."""

    node: Node
    state: State = "blocked"
    #: Chains that have not ended.
    waits: set[str] = field(default_factory=set[str])
    #: Ended chains that did not complete, and their outcomes.
    uncompleted: dict[str, ChainOutcome] = field(default_factory=dict[str, "ChainOutcome"])
    #: It was skipped because a job upstream failed.
    tainted: bool = False

    @property
    def chain(self) -> str:
        return self.node.chain or self.node.id


class Changes(Struct, frozen=True):
    """The changes that one event makes. `GraphState.apply` writes them."""

    #: (job, new state).
    moves: tuple[tuple[str, State], ...] = ()
    #: Jobs that are skipped because a job upstream failed.
    tainted: frozenset[str] = frozenset()
    #: (job, chain that it waited for, outcome of that chain).
    ended: tuple[tuple[str, str, ChainOutcome], ...] = ()
    #: (job, chain): the job waits for the chain (again).
    waits: tuple[tuple[str, str], ...] = ()
    added: tuple[Node, ...] = ()
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
        #: By chain: its last job; and the jobs that wait or waited for it.
        self.tails: dict[str, str] = {}
        self.dependents: dict[str, list[str]] = {}
        self.status: RunStatus = "queued"
        self.cancelling = False
        #: Number of jobs that have not ended, and of failed jobs that are not soft.
        self.open = 0
        self.failures = 0

    @property
    def states(self) -> dict[str, State]:
        return {id_: cell.state for id_, cell in self.jobs.items()}

    def ready(self) -> list[str]:
        """Return the jobs that a worker can claim."""
        return [id_ for id_, cell in self.jobs.items() if cell.state == "pending"]

    def apply(self, changes: Changes) -> None:
        """Write the changes that `advance` returned. Must happen before the next `advance`."""
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
        cell.state = state
