"""Where a run stands, what may happen in it, and what that comes to: the data of `graph.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from msgspec import Struct

from backstay.job.model import FINAL, State, When
from backstay.job.run_model import RunStatus

#: What a chain's end is to those who wait for it: completed; failed, and soft; ended without completing; failed, or
#: skipped because of a failure.
End = Literal["completed", "soft", "ended", "failed"]


SPOILT: tuple[End, ...] = ("ended", "failed")
#: Jobs that have ended, and may be tried again.
AGAIN: tuple[State, ...] = ("failed", "cancelled", "skipped")


class Node(Struct, frozen=True):
    """A job as the graph sees it."""

    id: str
    #: Chains that must end before it starts.
    after: tuple[str, ...] = ()
    when: When = "all_success"
    soft: bool = False
    #: The first job of its chain; "": itself.
    chain: str = ""


class Started(Struct, frozen=True):
    """Somebody has it."""

    job: str


class PutOff(Struct, frozen=True):
    """It is to be had again: a retry, a snooze, a lease that ran out."""

    job: str


class Completed(Struct, frozen=True):
    """It is done. With `next`, its chain goes on; `adds` are made before, and `next` may wait for them."""

    job: str
    next: Node | None = None
    adds: tuple[Node, ...] = ()


class Failed(Struct, frozen=True):
    """For good."""

    job: str


class Skipped(Struct, frozen=True):
    """It said itself that it need not be done."""

    job: str


class Cancelled(Struct, frozen=True):
    """Somebody ended this one, or it did itself."""

    job: str


class RunCancelled(Struct, frozen=True):
    """Whatever does not run is cancelled, whatever runs is told to stop."""


class Retried(Struct, frozen=True):
    """One that failed, was cancelled or was skipped is tried again, unless it would be skipped again at once."""

    job: str


class FailedRerun(Struct, frozen=True):
    """All that failed or were cancelled are tried again, once the run has ended."""


Event = (
    Started | PutOff | Completed | Failed | Skipped | Cancelled | RunCancelled | Retried | FailedRerun
)  # one for each way in which a store moves jobs of a run


@dataclass(eq=False, slots=True)
class Cell:
    """Where one job stands."""

    node: Node
    state: State = "blocked"
    #: Chains that have not ended; and of those that ended, the ones that did not complete, and how they ended.
    waits: set[str] = field(default_factory=set[str])
    lost: dict[str, End] = field(default_factory=dict[str, "End"])
    #: It was skipped because one before it failed.
    tainted: bool = False

    @property
    def chain(self) -> str:
        return self.node.chain or self.node.id


class Changes(Struct, frozen=True):
    """What an event comes to. `apply` writes it down."""

    #: Jobs and the states they come to.
    moves: tuple[tuple[str, State], ...] = ()
    #: Those that were skipped because one before them failed.
    tainted: frozenset[str] = frozenset()
    #: Jobs, and a chain that they waited for and that has ended so.
    ended: tuple[tuple[str, str, End], ...] = ()
    #: (job, chain): it has to be waited for again.
    waits: tuple[tuple[str, str], ...] = ()
    added: tuple[Node, ...] = ()
    #: Running jobs that are to be told to stop.
    stop: tuple[str, ...] = ()
    #: None: as it was.
    status: RunStatus | None = None
    cancelling: bool | None = None
    #: Edges that were looked at: the price.
    touched: int = 0


class Standing:
    """A run's jobs and where they stand. Only `apply` changes it."""

    def __init__(self) -> None:
        self.jobs: dict[str, Cell] = {}
        #: Chain → its last job, and the jobs that wait or waited for it.
        self.tails: dict[str, str] = {}
        self.dependents: dict[str, list[str]] = {}
        self.status: RunStatus = "queued"
        self.cancelling = False
        #: Jobs that have not ended, and jobs that failed and are not soft.
        self.open = 0
        self.failures = 0

    @property
    def states(self) -> dict[str, State]:
        return {id_: cell.state for id_, cell in self.jobs.items()}

    def ready(self) -> list[str]:
        """Jobs that can be had."""
        return [id_ for id_, cell in self.jobs.items() if cell.state == "pending"]

    def apply(self, changes: Changes) -> None:
        """Write down what `advance` answered, before the next event is asked about."""
        for node in changes.added:
            cell = Cell(node)
            self.jobs[node.id] = cell
            self.tails[cell.chain] = node.id
            self.open += 1
            for chain in node.after:
                self.dependents.setdefault(chain, []).append(node.id)
        for id_, chain in changes.waits:
            cell = self.jobs[id_]
            cell.waits.add(chain)
            cell.lost.pop(chain, None)
        for id_, chain, how in changes.ended:
            cell = self.jobs[id_]
            cell.waits.discard(chain)
            if how != "completed":
                cell.lost[chain] = how
        for id_, state in changes.moves:
            self._move(self.jobs[id_], state)
            self.jobs[id_].tainted = id_ in changes.tainted
        if changes.status is not None:
            self.status = changes.status
        if changes.cancelling is not None:
            self.cancelling = changes.cancelling

    def _move(self, cell: Cell, state: State) -> None:
        self.open += (cell.state in FINAL) - (state in FINAL)
        if not cell.node.soft:
            self.failures += (state == "failed") - (cell.state == "failed")
        cell.state = state
