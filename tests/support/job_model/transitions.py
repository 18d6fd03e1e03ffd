"""State transitions of the model's jobs: each updates the run's counts and events in the same operation."""

from __future__ import annotations

import functools
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec, TypeVar

import msgspec

from backstay.engine.base import Micros, Op, StoreOperation, Wake
from backstay.errors import ConfigError
from backstay.hub.protocol import channel
from backstay.job.model import FINAL, Enqueued, Failure, NewJob, State, Unique
from backstay.job.run_model import EventKind, RunEvent
from support.job_model.row import Row, RunRow

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound="Transitions")

#: Flags of `watched`: a caller waits for this job; for its chain.
THIS, CHAIN = 1, 2


def verb(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Op[T]]:
    """Makes an operation of a verb: it happens when the engine carries it out. Runs that are over by then end."""

    @functools.wraps(method)
    def ask(self: S, /, *args: P.args, **named: P.kwargs) -> Op[T]:
        def work() -> T:
            self.begin()
            answer = method(self, *args, **named)
            self.settle()
            return answer

        return StoreOperation(work)

    return ask


class Transitions:
    """All jobs and runs of one shard, and the ways from state to state."""

    def __init__(self, prefix: str = "model") -> None:
        self.now: Micros = 0
        #: The announcements since the last read.
        self.wakes: list[Wake] = []
        self._prefix = prefix
        self._rows: dict[str, Row] = {}
        #: Who ever waited for a chain.
        self._behind: defaultdict[str, dict[str, Row]] = defaultdict(dict)
        self._runs: dict[str, RunRow] = {}
        #: Of all runs, each with its number.
        self._events: list[tuple[int, RunEvent]] = []
        self._told = 0
        #: Who has a unique key, and until when (0: until it is given back).
        self._unique: dict[str, tuple[str, Micros]] = {}
        #: Jobs that the verb under way made pending, with their types; runs that it changed.
        self._ready: dict[str, str] = {}
        self._touched: dict[str, RunRow] = {}

    def begin(self) -> None:
        self._ready = {}

    # ── into a state ──

    def _move(self, row: Row, state: State, why: str = "", worker: str = "") -> None:
        """The one way into a state."""
        before, row.state = row.state, state
        run = self._runs.get(row.new.run)
        if run is None:
            return
        if run.is_finished and state not in FINAL:
            self._reopen_run(run)
        run.counts[before] -= 1
        if not row.followed_by:  # else its chain goes on, and what carries it on is counted
            run.counts[state] += 1
        if state == "running":
            run.status, run.started = "running", run.started or self.now
        match state:
            case "pending":
                self._tell(run, "ready", row, why, worker)
            case "running":
                self._tell(run, "started", row, why, worker)
            case "blocked":
                self._touched[run.new.id] = run
            case "scheduled" | "completed" | "failed" | "cancelled" | "skipped":
                self._tell(run, state, row, why, worker)

    def _place(self, row: Row, why: str = "", worker: str = "") -> None:
        """Where a job belongs that neither runs nor has ended."""
        state: State = "blocked" if row.waits else "scheduled" if row.due > self.now else "pending"
        self._move(row, state, why, worker)
        if state == "pending":
            self._ready[row.new.id] = row.new.type

    def _end(self, row: Row, state: State, why: str = "", worker: str = "") -> None:
        """The only way into a final state, for a job and for the dependents skipped with it."""
        self._close(row, state, why, worker)
        self._release([row])

    def _release(self, rows: list[Row]) -> None:
        """These jobs have ended: release or skip the dependents of their chains."""
        ended = deque(rows)
        while ended:
            last = ended.popleft()
            if last.followed_by:
                continue
            for waiter in [waiter for waiter in self._behind[last.chain].values() if last.chain in waiter.waits]:
                self._hear(waiter, last)
                if waiter.state == "blocked" and self._must_skip(waiter, last):
                    waiter.blamed = last.has_failed
                    self._close(waiter, "skipped")
                    ended.append(waiter)
                elif waiter.state == "blocked" and not waiter.waits:
                    self._place(waiter)

    def _must_skip(self, row: Row, last: Row) -> bool:
        """Whether the end of one chain, of those it waited for, leaves it nothing to do."""
        if row.new.when == "all_success":
            return not last.has_succeeded
        return row.new.when == "any_failure" and not row.waits and not row.blame

    def _close(self, row: Row, state: State, why: str = "", worker: str = "") -> None:
        self._move(row, state, why, worker)
        row.finished = self.now
        row.keep_until = self.now + (row.new.keep_failed if state == "failed" else row.new.keep)
        self._ready.pop(row.new.id, None)
        if row.new.unique is not None and row.new.unique.scope != "window":
            self._free_key(row)
        if row.watched & THIS and (row.followed_by or row.new.id != row.chain):
            self._announce("jobc", row.new.id)
        if row.watched and not row.followed_by:
            self._announce("chainc", row.chain)

    def _hear(self, waiter: Row, last: Row) -> None:
        """A chain has ended, and this job waited for it."""
        chain = last.chain
        waiter.waits.discard(chain)
        waiter.upstream[chain] = last.result if last.state == "completed" else None
        if not last.has_succeeded:
            waiter.spoilt.add(chain)
        if last.has_failed:
            waiter.blame.add(chain)

    # ── new ──

    def _check_blockers(self, jobs: Sequence[NewJob], known: set[str]) -> None:
        """Each blocker must be known or come earlier in the list; these jobs are added to `known`."""
        for new in jobs:
            missing = [chain for chain in new.after if chain not in known]
            if missing and new.id not in self._rows:
                raise ConfigError(f"job {new.id} waits for {missing[0]}, which does not exist")
            known.add(new.id)

    def _enqueue(self, new: NewJob, watched: int = 0, *, follows: bool = False) -> Enqueued:
        """`follows`: made by the step that ends another job, which must not be refused. Its unique key gives way if
        another has it, and an unknown blocker counts as one that failed.
        """
        if row := self._rows.get(new.id):
            return Enqueued(new.id, row.state)
        if new.unique is not None and (holder := self._holder(new.unique)):
            if not follows:
                return Enqueued(holder.new.id, holder.state, deduplicated=True)
            new = msgspec.structs.replace(new, unique=None)  # a chain goes on all the same
        if new.unique is not None:
            window = new.unique.scope == "window"
            self._unique[new.unique.key] = new.id, self.now + new.unique.window if window else 0
        row = Row(new, new.chain or new.id, self.now, new.due or self.now + new.delay, watched=watched)
        self._rows[new.id] = row
        for chain in new.after:
            self._behind[chain][new.id] = row
            last = self._last(chain)
            if last is None:
                row.upstream[chain] = None
                row.spoilt.add(chain)
                row.blame.add(chain)
            elif last.state in FINAL:
                self._hear(row, last)
            else:
                row.waits.add(chain)
        run = self._runs.get(new.run)
        if run is not None:
            run.jobs.append(row)
            run.counts[row.state] += 1  # it leaves that state at once
        if run is not None and run.cancel is not None and not run.is_finished:
            self._cancel(row, reason=run.cancel)
        elif (new.when == "all_success" and row.spoilt) or (
            new.when == "any_failure" and not row.waits and not row.blame
        ):
            row.blamed = bool(row.blame)
            self._end(row, "skipped")
        else:
            self._place(row)
        return Enqueued(new.id, row.state)

    def _cancel(self, *rows: Row, reason: str) -> None:
        """Cancel all rows before any dependent is updated."""
        for row in rows:
            row.error = Failure("Cancelled", reason, at=self.now)
            self._close(row, "cancelled", reason)
        self._release(list(rows))

    def _last(self, chain: str) -> Row | None:
        """The job that a chain has come to. Those before it may be forgotten by now."""
        row = self._rows.get(chain)
        while row is not None and row.followed_by:
            row = self._rows.get(row.followed_by)
        if row is None:
            row = next((one for one in self._rows.values() if one.chain == chain and not one.followed_by), None)
        return row

    def _held(self, job: str, fence: int) -> Row | None:
        row = self._rows.get(job)
        return row if row and row.state == "running" and row.fence == fence else None

    # ── unique keys ──

    def _holder(self, unique: Unique) -> Row | None:
        id_, until = self._unique.get(unique.key, ("", 0))
        return self._rows.get(id_) if not until or until > self.now else None

    def _free_key(self, row: Row) -> None:
        unique = row.new.unique
        if unique is not None and self._unique.get(unique.key, ("", 0))[0] == row.new.id:
            del self._unique[unique.key]

    # ── runs ──

    def _tell(self, run: RunRow, kind: EventKind, row: Row | None = None, why: str = "", worker: str = "") -> None:
        job, attempt = (row.new.id, row.attempt) if row else ("", 0)
        event = RunEvent(run.new.id, len(run.events) + 1, self.now, kind, job, attempt, worker, why)
        run.events.append(event)
        self._told += 1
        self._events.append((self._told, event))
        self._touched[run.new.id] = run

    def _reopen_run(self, run: RunRow) -> None:
        run.status, run.finished, run.cancel = "running", 0, None
        run.deadline = self.now + run.new.timeout if run.new.timeout else 0
        self._tell(run, "run_reopened")

    def settle(self) -> None:
        """The verb is done: runs that are over end, and what happened is announced."""
        for run in self._touched.values():
            if run.is_over and not run.is_finished:
                run.status, run.finished = run.outcome(), self.now
                self._tell(run, "run_finished", why=run.status)
                self._announce("runc", run.new.id)
            if run.announced < len(run.events):
                run.announced = len(run.events)
                self._announce("events", f"{run.new.id}:{run.announced}")
        self._touched = {}

    def _announce(self, name: str, payload: str) -> None:
        self.wakes.append(Wake(channel(self._prefix, name), payload))
