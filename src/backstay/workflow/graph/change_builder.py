"""Compute the changes that one event makes to a run, without mutating its graph. See `graph.py`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from backstay.job.model import FINAL, State
from backstay.job.run_model import FINISHED
from backstay.job.run_status import final_status
from backstay.workflow.graph.state import RETRYABLE, UNSUCCESSFUL, ChainOutcome, GraphChanges, GraphState, JobNode


class ChangeBuilder:
    """Accumulates the changes of one event on top of an unchanged `GraphState`."""

    def __init__(self, graph: GraphState) -> None:
        self._graph = graph
        #: New states of the jobs that change state.
        self._states: dict[str, State] = {}
        self._tainted: set[str] = set()
        self._added: dict[str, JobNode] = {}
        self._tails: dict[str, str] = {}
        self._dependents: dict[str, list[str]] = {}
        self._ended: dict[tuple[str, str], ChainOutcome] = {}
        self._waits: dict[tuple[str, str], None] = {}
        #: By job: how many of its blockers this event ends, minus those that it reopens.
        self._ended_delta: dict[str, int] = {}
        #: By job: how many of its blockers this event ends as failed, minus the failed ones that it reopens.
        self._failed_delta: dict[str, int] = {}
        self._jobs_to_stop: list[str] = []
        self._cancelling: bool | None = None
        self._reopens = False
        self._open = graph.open
        self._failures = graph.failures
        self._cancelled = graph.cancelled
        self._edges_visited = 0

    # ── reads ──

    def state(self, id_: str) -> State | None:
        if id_ in self._states:
            return self._states[id_]
        cell = self._graph.jobs.get(id_)
        return None if cell is None else cell.state

    def node(self, id_: str) -> JobNode:
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
        self._cancelled += (state == "cancelled") - (before == "cancelled")
        self._states[id_] = state

    def add(self, node: JobNode) -> None:
        self._added[node.id] = node
        self._tails[node.chain or node.id] = node.id
        self._states[node.id] = "blocked"
        self._open += 1
        for chain in node.after:
            self._edges_visited += 1
            self._dependents.setdefault(chain, []).append(node.id)
            self._waits[node.id, chain] = None

    def admit(self, id_: str) -> None:
        """Give a new job its first state. Cancelled: the run is being cancelled. Skipped: the outcomes of its ended
        blockers do not satisfy its `when`. Blocked: a blocker has not ended. Otherwise pending.
        """
        node = self.node(id_)
        if self.state(id_) in FINAL:
            return
        has_unsuccessful = False
        for chain in node.after:
            self._edges_visited += 1
            tail = self._tail(chain)
            if self.state(tail) in FINAL and self._waits_for(id_, chain):
                outcome = self._chain_outcome(tail)
                self._record_outcome(id_, chain, outcome)
                has_unsuccessful = has_unsuccessful or outcome in UNSUCCESSFUL
        if self._graph.cancelling:
            self.end(id_, "cancelled")
        elif has_unsuccessful and node.when == "all_success":
            self.end(id_, "skipped", tainted=self._has_failed_blocker(id_))
        else:
            self._unblock_or_skip(id_)

    def complete(self, id_: str, following: JobNode | None, adds: tuple[JobNode, ...]) -> None:
        for node in adds:
            self.add(node)
        for node in adds:
            self.admit(node.id)
        if following is None:
            self.end(id_, "completed")
            return
        self.move(id_, "completed")
        chain = self._graph.jobs[id_].chain
        self.add(JobNode(following.id, following.after, following.when, following.soft, chain))
        self.admit(following.id)

    def _chain_outcome(self, id_: str) -> ChainOutcome:
        """Return the outcome of a chain whose last job, `id_`, has ended: it decides what happens to its dependents."""
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
        """Move a job to blocked if a blocker is still open. If all have ended, move it to pending or, if it requires
        `any_failure` and none failed, to skipped.
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
            outcome = self._chain_outcome(job)
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

    def retry(self, ids: list[str], *, rerun: bool) -> None:
        """Reopen the jobs `ids`, and the jobs that were skipped because of them. A reopened job waits for each of its
        blockers that has not ended; in a rerun, also for each that is reopened with it. (A job that is retried alone
        starts even if it waits for the chain of a job that was skipped because of it: neither would ever start.) A
        dependent that failed or was cancelled is not reopened. It keeps its state, but it waits for the reopened chain
        again: if it is retried later, it sees the new outcome.
        """
        if not ids or (self._graph.cancelling and self._graph.status not in FINISHED):
            return
        self._reopens = True
        self._cancelling = False if self._graph.cancelling else None
        for id_ in ids:
            self.move(id_, "blocked")
        if not rerun:
            self._reopen_open_blockers(ids)
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
        if rerun:
            self._reopen_open_blockers(ids)
        for id_ in ids:
            if not self._count_open_blockers(id_):
                self.move(id_, "pending")

    def _reopen_open_blockers(self, ids: list[str]) -> None:
        """Make the jobs `ids` wait for each of their blockers that has not ended."""
        for id_ in ids:
            for chain in self.node(id_).after:
                self._edges_visited += 1
                if self.state(self._tail(chain)) not in FINAL and not self._waits_for(id_, chain):
                    self._reopen_dependency(id_, chain)

    def _reopen_dependency(self, id_: str, chain: str) -> None:
        self._waits[id_, chain] = None
        self._ended_delta[id_] = self._ended_delta.get(id_, 0) - 1
        if self._graph.jobs[id_].uncompleted.get(chain) == "failed":
            self._failed_delta[id_] = self._failed_delta.get(id_, 0) - 1

    def changes(self) -> GraphChanges:
        graph = self._graph
        cancelling = graph.cancelling if self._cancelling is None else self._cancelling
        status = graph.status
        if self._open == 0 and (status not in FINISHED or self._states):
            status = final_status(hard_failures=self._failures, cancelled=self._cancelled, cancel_requested=cancelling)
        elif (self._reopens and status in FINISHED) or "running" in self._states.values():
            status = "running"
        return GraphChanges(
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
