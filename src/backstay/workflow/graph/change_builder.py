"""Compute the changes that one event makes to a run, without mutating its graph. See `graph.py`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from backstay.job.model import FINAL, State
from backstay.job.run_model import FINISHED
from backstay.workflow.graph.state import RETRYABLE, UNSUCCESSFUL, ChainOutcome, Changes, GraphState, Node


class ChangeBuilder:
    """Accumulates the changes of one event on top of an unchanged `GraphState`."""

    def __init__(self, graph: GraphState) -> None:
        self._graph = graph
        #: New states of the jobs that change state.
        self._states: dict[str, State] = {}
        self._tainted: set[str] = set()
        self._added: dict[str, Node] = {}
        self._tails: dict[str, str] = {}
        self._dependents: dict[str, list[str]] = {}
        self._ended: dict[tuple[str, str], ChainOutcome] = {}
        self._waits: dict[tuple[str, str], None] = {}
        #: By job: how many blockers (and how many failed ones) this event ends, relative to the graph's counts.
        self._ended_delta: dict[str, int] = {}
        self._failed_delta: dict[str, int] = {}
        self._jobs_to_stop: list[str] = []
        self._cancelling: bool | None = None
        self._reopens = False
        self._open = graph.open
        self._failures = graph.failures
        self._edges_visited = 0

    # ── reads ──

    def state(self, id_: str) -> State | None:
        if id_ in self._states:
            return self._states[id_]
        cell = self._graph.jobs.get(id_)
        return None if cell is None else cell.state

    def node(self, id_: str) -> Node:
        return self._added[id_] if id_ in self._added else self._graph.jobs[id_].node

    def _count_open_blockers(self, id_: str) -> int:
        """Count the chains that the job still waits for."""
        cell = self._graph.jobs.get(id_)
        known = len(self.node(id_).after) if cell is None else len(cell.waits)
        return known - self._ended_delta.get(id_, 0)

    def _waits_for(self, id_: str, chain: str) -> bool:
        if (id_, chain) in self._ended:
            return False
        if (id_, chain) in self._waits:
            return True
        cell = self._graph.jobs.get(id_)
        return chain in (self.node(id_).after if cell is None else cell.waits)

    def _has_failed_blocker(self, id_: str) -> bool:
        cell = self._graph.jobs.get(id_)
        known = 0 if cell is None else sum(outcome == "failed" for outcome in cell.uncompleted.values())
        return known + self._failed_delta.get(id_, 0) > 0

    def _tail(self, chain: str) -> str:
        return self._tails.get(chain) or self._graph.tails[chain]

    def _iter_dependents(self, chain: str) -> Iterator[str]:
        for id_ in (*self._graph.dependents.get(chain, ()), *self._dependents.get(chain, ())):
            self._edges_visited += 1
            yield id_

    # ── changes ──

    def move(self, id_: str, state: State) -> None:
        before = self.state(id_)
        node = self.node(id_)
        self._open += (before in FINAL) - (state in FINAL)
        if not node.soft:
            self._failures += (state == "failed") - (before == "failed")
        self._states[id_] = state

    def add(self, node: Node) -> None:
        self._added[node.id] = node
        self._tails[node.chain or node.id] = node.id
        self._states[node.id] = "blocked"
        self._open += 1
        for chain in node.after:
            self._edges_visited += 1
            self._dependents.setdefault(chain, []).append(node.id)
            self._waits[node.id, chain] = None

    def admit(self, id_: str) -> None:
        """Give a new job its first state: cancelled if the run is being cancelled, skipped or blocked by its blockers,
        else pending.
        """
        node = self.node(id_)
        if self.state(id_) in FINAL:
            return
        has_unsuccessful = False
        for chain in node.after:
            self._edges_visited += 1
            tail = self._tail(chain)
            if self.state(tail) in FINAL and self._waits_for(id_, chain):
                outcome = self._outcome(tail)
                self._record_outcome(id_, chain, outcome)
                has_unsuccessful = has_unsuccessful or outcome in UNSUCCESSFUL
        if self._graph.cancelling:
            self.end(id_, "cancelled")
        elif has_unsuccessful and node.when == "all_success":
            self.end(id_, "skipped", tainted=self._has_failed_blocker(id_))
        else:
            self._unblock_or_skip(id_)

    def complete(self, id_: str, following: Node | None, adds: tuple[Node, ...]) -> None:
        for node in adds:
            self.add(node)
        for node in adds:
            self.admit(node.id)
        if following is None:
            self.end(id_, "completed")
            return
        self.move(id_, "completed")
        chain = self._graph.jobs[id_].chain
        self.add(Node(following.id, following.after, following.when, following.soft, chain))
        self.admit(following.id)

    def _outcome(self, id_: str) -> ChainOutcome:
        """Return how the end of a chain's last job counts for the jobs that wait for the chain."""
        state = self.state(id_)
        if state == "completed":
            return "completed"
        if state == "failed":
            return "soft" if self.node(id_).soft else "failed"
        cell = self._graph.jobs.get(id_)
        tainted = id_ in self._tainted if id_ in self._states else cell is not None and cell.tainted
        return "failed" if tainted else "ended"

    def _record_outcome(self, id_: str, chain: str, outcome: ChainOutcome) -> None:
        self._ended[id_, chain] = outcome
        self._ended_delta[id_] = self._ended_delta.get(id_, 0) + 1
        self._failed_delta[id_] = self._failed_delta.get(id_, 0) + (outcome == "failed")

    def _unblock_or_skip(self, id_: str) -> None:
        """Move a job that no blocker skips: to blocked while blockers are open, else to pending; with `any_failure` and
        no failed blocker, to skipped.
        """
        if self._count_open_blockers(id_):
            if self.state(id_) != "blocked":
                self.move(id_, "blocked")
        elif self.node(id_).when == "any_failure" and not self._has_failed_blocker(id_):
            self.end(id_, "skipped")
        else:
            self.move(id_, "pending")

    def end(self, id_: str, state: State, *, tainted: bool = False) -> None:
        """Move a job to a final state, and unblock or skip its dependents, transitively."""
        queue: deque[tuple[str, State, bool]] = deque([(id_, state, tainted)])
        while queue:
            job, final, taint = queue.popleft()
            if self.state(job) in FINAL:
                continue
            self.move(job, final)
            if taint:
                self._tainted.add(job)
            chain = self.node(job).chain or job
            if self._tail(chain) != job:
                continue
            outcome = self._outcome(job)
            for waiter in self._iter_dependents(chain):
                if not self._waits_for(waiter, chain):
                    continue
                self._record_outcome(waiter, chain, outcome)
                if self.state(waiter) != "blocked":
                    continue
                when = self.node(waiter).when
                if when == "all_success" and outcome in UNSUCCESSFUL:
                    queue.append((waiter, "skipped", outcome == "failed"))
                elif not self._count_open_blockers(waiter):
                    if when == "any_failure" and not self._has_failed_blocker(waiter):
                        queue.append((waiter, "skipped", False))
                    else:
                        self.move(waiter, "pending")

    def cancel_run(self) -> None:
        if self._graph.status in FINISHED:
            return
        self._cancelling = True
        idle: list[str] = []
        for id_, cell in self._graph.jobs.items():
            if cell.state == "running":
                self._jobs_to_stop.append(id_)
            elif cell.state not in FINAL:
                idle.append(id_)
        # Cancel all idle jobs before recording outcomes: a cancelled blocker must not skip a job that is to be
        # cancelled.
        for id_ in idle:
            self.move(id_, "cancelled")
        for id_ in idle:
            chain = self.node(id_).chain or id_
            for waiter in self._iter_dependents(chain):
                if self._waits_for(waiter, chain):
                    self._record_outcome(waiter, chain, "ended")

    def retry(self, ids: list[str]) -> None:
        """Reopen these jobs and the jobs that were skipped because of them. Each reopened job waits for every blocker
        that has not ended or is reopened with it. A dependent that failed or was cancelled itself keeps its state, but
        waits for the reopened chain again, so that a later retry of it sees the new outcome.
        """
        if not ids or (self._graph.cancelling and self._graph.status not in FINISHED):
            return
        self._reopens = True
        self._cancelling = False if self._graph.cancelling else None
        for id_ in ids:
            self.move(id_, "blocked")
        left: dict[str, int] = {}
        back: set[str] = set()
        queue = deque(ids)
        while queue:
            id_ = queue.popleft()
            chain = self.node(id_).chain or id_
            for waiter in self._iter_dependents(chain):
                cell = self._graph.jobs[waiter]
                if self.state(waiter) not in RETRYABLE and waiter not in back:
                    continue
                if chain not in cell.uncompleted or (waiter, chain) in self._waits:
                    continue
                self._reopen_dependency(waiter, chain)
                if self.state(waiter) != "skipped":
                    continue
                if waiter not in left:
                    left[waiter] = sum(outcome in UNSUCCESSFUL for outcome in cell.uncompleted.values())
                left[waiter] -= cell.uncompleted[chain] in UNSUCCESSFUL
                if not left[waiter] or cell.node.when != "all_success":
                    self.move(waiter, "blocked")
                    back.add(waiter)
                    queue.append(waiter)
        for id_ in ids:
            for chain in self.node(id_).after:
                self._edges_visited += 1
                if self.state(self._tail(chain)) not in FINAL and not self._waits_for(id_, chain):
                    self._reopen_dependency(id_, chain)
            if not self._count_open_blockers(id_):
                self.move(id_, "pending")

    def _reopen_dependency(self, id_: str, chain: str) -> None:
        self._waits[id_, chain] = None
        self._ended_delta[id_] = self._ended_delta.get(id_, 0) - 1
        if self._graph.jobs[id_].uncompleted.get(chain) == "failed":
            self._failed_delta[id_] = self._failed_delta.get(id_, 0) - 1

    def changes(self) -> Changes:
        graph = self._graph
        cancelling = graph.cancelling if self._cancelling is None else self._cancelling
        status = graph.status
        if self._open == 0 and (status not in FINISHED or self._states):
            status = "cancelled" if cancelling else "failure" if self._failures else "success"
        elif (self._reopens and status in FINISHED) or "running" in self._states.values():
            status = "running"
        return Changes(
            moves=tuple(self._states.items()),
            tainted=frozenset(self._tainted),
            ended=tuple((id_, chain, outcome) for (id_, chain), outcome in self._ended.items()),
            waits=tuple(self._waits),
            added=tuple(self._added.values()),
            stop=tuple(self._jobs_to_stop),
            status=None if status == graph.status else status,
            cancelling=self._cancelling,
            edges_visited=self._edges_visited,
        )
