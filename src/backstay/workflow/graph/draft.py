"""What an event changes in a run, worked out beside a graph that stays as it is. See `graph.py`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from backstay.job.model import FINAL, State
from backstay.job.run_model import FINISHED
from backstay.workflow.graph.state import AGAIN, SPOILT, Changes, End, Node, Standing


class Draft:
    """What an event changes, beside a graph that stays as it is."""

    def __init__(self, graph: Standing) -> None:
        self._graph = graph
        #: Jobs that move, and where to.
        self._now: dict[str, State] = {}
        self._tainted: set[str] = set()
        self._added: dict[str, Node] = {}
        self._tails: dict[str, str] = {}
        self._dependents: dict[str, list[str]] = {}
        self._ended: dict[tuple[str, str], End] = {}
        self._waits: dict[tuple[str, str], None] = {}
        #: By job: how many more blockers have ended than the graph knows.
        self._fewer: dict[str, int] = {}
        self._failing: dict[str, int] = {}
        self._stop: list[str] = []
        self._cancelling: bool | None = None
        self._reopens = False
        self._open = graph.open
        self._failures = graph.failures
        self._touched = 0

    # ── looking ──

    def state(self, id_: str) -> State | None:
        if id_ in self._now:
            return self._now[id_]
        cell = self._graph.jobs.get(id_)
        return None if cell is None else cell.state

    def node(self, id_: str) -> Node:
        return self._added[id_] if id_ in self._added else self._graph.jobs[id_].node

    def _waiting(self, id_: str) -> int:
        """How many chains it still waits for."""
        cell = self._graph.jobs.get(id_)
        known = len(self.node(id_).after) if cell is None else len(cell.waits)
        return known - self._fewer.get(id_, 0)

    def _waits_for(self, id_: str, chain: str) -> bool:
        if (id_, chain) in self._ended:
            return False
        if (id_, chain) in self._waits:
            return True
        cell = self._graph.jobs.get(id_)
        return chain in (self.node(id_).after if cell is None else cell.waits)

    def _is_failing(self, id_: str) -> bool:
        cell = self._graph.jobs.get(id_)
        known = 0 if cell is None else sum(how == "failed" for how in cell.lost.values())
        return known + self._failing.get(id_, 0) > 0

    def _tail(self, chain: str) -> str:
        return self._tails.get(chain) or self._graph.tails[chain]

    def _waiters(self, chain: str) -> Iterator[str]:
        for id_ in (*self._graph.dependents.get(chain, ()), *self._dependents.get(chain, ())):
            self._touched += 1
            yield id_

    # ── moving ──

    def move(self, id_: str, state: State) -> None:
        before = self.state(id_)
        node = self.node(id_)
        self._open += (before in FINAL) - (state in FINAL)
        if not node.soft:
            self._failures += (state == "failed") - (before == "failed")
        self._now[id_] = state

    def add(self, node: Node) -> None:
        self._added[node.id] = node
        self._tails[node.chain or node.id] = node.id
        self._now[node.id] = "blocked"
        self._open += 1
        for chain in node.after:
            self._touched += 1
            self._dependents.setdefault(chain, []).append(node.id)
            self._waits[node.id, chain] = None

    def place(self, id_: str) -> None:
        """A new job: cancelled, if the run is to end; to be had, unless it has to wait."""
        node = self.node(id_)
        if self.state(id_) in FINAL:
            return
        spoilt = False
        for chain in node.after:
            self._touched += 1
            tail = self._tail(chain)
            if self.state(tail) in FINAL and self._waits_for(id_, chain):
                how = self._meaning(tail)
                self._note(id_, chain, how)
                spoilt = spoilt or how in SPOILT
        if self._graph.cancelling:
            self.end(id_, "cancelled")
        elif spoilt and node.when == "all_success":
            self.end(id_, "skipped", tainted=self._is_failing(id_))
        else:
            self._settle(id_)

    def complete(self, id_: str, following: Node | None, adds: tuple[Node, ...]) -> None:
        for node in adds:
            self.add(node)
        for node in adds:
            self.place(node.id)
        if following is None:
            self.end(id_, "completed")
            return
        self.move(id_, "completed")
        chain = self._graph.jobs[id_].chain
        self.add(Node(following.id, following.after, following.when, following.soft, chain))
        self.place(following.id)

    def _meaning(self, id_: str) -> End:
        """Of a chain's last job that has ended: what that is to others."""
        state = self.state(id_)
        if state == "completed":
            return "completed"
        if state == "failed":
            return "soft" if self.node(id_).soft else "failed"
        cell = self._graph.jobs.get(id_)
        tainted = id_ in self._tainted if id_ in self._now else cell is not None and cell.tainted
        return "failed" if tainted else "ended"

    def _note(self, id_: str, chain: str, how: End) -> None:
        self._ended[id_, chain] = how
        self._fewer[id_] = self._fewer.get(id_, 0) + 1
        self._failing[id_] = self._failing.get(id_, 0) + (how == "failed")

    def _settle(self, id_: str) -> None:
        """Nobody skips it: it waits, is to be had, or has nothing to do."""
        if self._waiting(id_):
            if self.state(id_) != "blocked":
                self.move(id_, "blocked")
        elif self.node(id_).when == "any_failure" and not self._is_failing(id_):
            self.end(id_, "skipped")
        else:
            self.move(id_, "pending")

    def end(self, id_: str, state: State, *, tainted: bool = False) -> None:
        """Into a final state, and what follows from it."""
        queue: deque[tuple[str, State, bool]] = deque([(id_, state, tainted)])
        while queue:
            job, how, taint = queue.popleft()
            if self.state(job) in FINAL:
                continue
            self.move(job, how)
            if taint:
                self._tainted.add(job)
            chain = self.node(job).chain or job
            if self._tail(chain) != job:
                continue
            meaning = self._meaning(job)
            for waiter in self._waiters(chain):
                if not self._waits_for(waiter, chain):
                    continue
                self._note(waiter, chain, meaning)
                if self.state(waiter) != "blocked":
                    continue
                when = self.node(waiter).when
                if when == "all_success" and meaning in SPOILT:
                    queue.append((waiter, "skipped", meaning == "failed"))
                elif not self._waiting(waiter):
                    if when == "any_failure" and not self._is_failing(waiter):
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
                self._stop.append(id_)
            elif cell.state not in FINAL:
                idle.append(id_)
        # All of them first: none is to be skipped because another one was cancelled.
        for id_ in idle:
            self.move(id_, "cancelled")
        for id_ in idle:
            chain = self.node(id_).chain or id_
            for waiter in self._waiters(chain):
                if self._waits_for(waiter, chain):
                    self._note(waiter, chain, "ended")

    def retry(self, ids: list[str]) -> None:
        """Open again, and so are those that were skipped because of them. Each waits for whatever has not ended, and
        for all of its blockers that come back with it. One that failed or was cancelled itself stays so, and hears anew
        what becomes of them: it may be tried again after them.
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
            for waiter in self._waiters(chain):
                cell = self._graph.jobs[waiter]
                if self.state(waiter) not in AGAIN and waiter not in back:
                    continue
                if chain not in cell.lost or (waiter, chain) in self._waits:
                    continue
                self._wait_again(waiter, chain)
                if self.state(waiter) != "skipped":
                    continue
                if waiter not in left:
                    left[waiter] = sum(how in SPOILT for how in cell.lost.values())
                left[waiter] -= cell.lost[chain] in SPOILT
                if not left[waiter] or cell.node.when != "all_success":
                    self.move(waiter, "blocked")
                    back.add(waiter)
                    queue.append(waiter)
        for id_ in ids:
            for chain in self.node(id_).after:
                self._touched += 1
                if self.state(self._tail(chain)) not in FINAL and not self._waits_for(id_, chain):
                    self._wait_again(id_, chain)
            if not self._waiting(id_):
                self.move(id_, "pending")

    def _wait_again(self, id_: str, chain: str) -> None:
        self._waits[id_, chain] = None
        self._fewer[id_] = self._fewer.get(id_, 0) - 1
        if self._graph.jobs[id_].lost.get(chain) == "failed":
            self._failing[id_] = self._failing.get(id_, 0) - 1

    def changes(self) -> Changes:
        graph = self._graph
        cancelling = graph.cancelling if self._cancelling is None else self._cancelling
        status = graph.status
        if self._open == 0 and (status not in FINISHED or self._now):
            status = "cancelled" if cancelling else "failure" if self._failures else "success"
        elif (self._reopens and status in FINISHED) or "running" in self._now.values():
            status = "running"
        return Changes(
            moves=tuple(self._now.items()),
            tainted=frozenset(self._tainted),
            ended=tuple((id_, chain, how) for (id_, chain), how in self._ended.items()),
            waits=tuple(self._waits),
            added=tuple(self._added.values()),
            stop=tuple(self._stop),
            status=None if status == graph.status else status,
            cancelling=self._cancelling,
            touched=self._touched,
        )
