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

#: Flags of `watched`: a caller waits for the end of this job, or for the end of its chain.
THIS, CHAIN = 1, 2


def verb(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Op[T]]:
    """Turn a method into one that returns an operation, which runs when the engine applies it. After the method, runs
    without an unfinished job are finished.
    """

    @functools.wraps(method)
    def make_operation(self: S, /, *args: P.args, **named: P.kwargs) -> Op[T]:
        def work() -> T:
            self.begin()
            reply = method(self, *args, **named)
            self.finish_runs()
            return reply

        return StoreOperation(work)

    return make_operation


class Transitions:
    """All jobs and runs of one shard, and the transitions between the states of a job."""

    def __init__(self, prefix: str = "model") -> None:
        self.now: Micros = 0
        #: The announcements since the last read.
        self.wakes: list[Wake] = []
        self._prefix = prefix
        self._rows: dict[str, Row] = {}
        #: By chain: the jobs that wait, or have waited, for its end.
        self._dependents: defaultdict[str, dict[str, Row]] = defaultdict(dict)
        self._runs: dict[str, RunRow] = {}
        #: The events of all runs, each with its number in the order of all events.
        self._events: list[tuple[int, RunEvent]] = []
        self._event_count = 0
        #: By unique key: the job that holds it, and the time until which it does (0: until the job frees it).
        self._unique: dict[str, tuple[str, Micros]] = {}
        #: The types of the jobs that the current operation has made pending, and the runs that it has changed.
        self._ready: dict[str, str] = {}
        self._touched: dict[str, RunRow] = {}

    def begin(self) -> None:
        self._ready = {}

    # ── transitions ──

    def _move(self, row: Row, state: State, why: str = "", worker: str = "") -> None:
        """Set the state of a job, and update the counts and events of its run. All transitions go through here."""
        before, row.state = row.state, state
        run = self._runs.get(row.new.run)
        if run is None:
            return
        if run.is_finished and state not in FINAL:
            self._reopen_run(run)
        run.counts[before] -= 1
        if not row.followed_by:  # otherwise the next job of the chain is counted instead
            run.counts[state] += 1
        if state == "running":
            run.status, run.started = "running", run.started or self.now
        match state:
            case "pending":
                self._add_event(run, "ready", row, why, worker)
            case "running":
                self._add_event(run, "started", row, why, worker)
            case "blocked":
                self._touched[run.new.id] = run
            case "scheduled" | "completed" | "failed" | "cancelled" | "skipped":
                self._add_event(run, state, row, why, worker)

    def _make_waiting(self, row: Row, why: str = "", worker: str = "") -> None:
        """Move a job to the state in which it waits to be claimed: blocked, scheduled or pending."""
        state: State = "blocked" if row.waits else "scheduled" if row.due > self.now else "pending"
        self._move(row, state, why, worker)
        if state == "pending":
            self._ready[row.new.id] = row.new.type

    def _end(self, row: Row, state: State, why: str = "", worker: str = "") -> None:
        """Move a job to a final state, and release or skip its dependents."""
        self._close(row, state, why, worker)
        self._release([row])

    def _release(self, rows: list[Row]) -> None:
        """Release or skip the dependents of jobs that have ended; a skipped dependent may skip others in turn."""
        ended = deque(rows)
        while ended:
            last = ended.popleft()
            if last.followed_by:
                continue
            for waiter in [waiter for waiter in self._dependents[last.chain].values() if last.chain in waiter.waits]:
                self._record_end(waiter, last)
                if waiter.state == "blocked" and self._must_skip(waiter, last):
                    waiter.skipped_for_failure = last.has_failed
                    self._close(waiter, "skipped")
                    ended.append(waiter)
                elif waiter.state == "blocked" and not waiter.waits:
                    self._make_waiting(waiter)

    def _must_skip(self, row: Row, last: Row) -> bool:
        """Whether a blocked job must be skipped because of how this chain ended."""
        if row.new.when == "all_success":
            return not last.has_succeeded
        return row.new.when == "any_failure" and not row.waits and not row.failed_blockers

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

    def _record_end(self, waiter: Row, last: Row) -> None:
        """Record in a dependent how a chain that it waited for has ended."""
        chain = last.chain
        waiter.waits.discard(chain)
        waiter.upstream[chain] = last.result if last.state == "completed" else None
        if not last.has_succeeded:
            waiter.unsuccessful.add(chain)
        if last.has_failed:
            waiter.failed_blockers.add(chain)

    # ── new jobs ──

    def _check_blockers(self, jobs: Sequence[NewJob], known: set[str]) -> None:
        """Raise ConfigError unless each blocker is in `known` or earlier in the list. Adds the jobs to `known`."""
        for new in jobs:
            missing = [chain for chain in new.after if chain not in known]
            if missing and new.id not in self._rows:
                raise ConfigError(f"job {new.id} waits for {missing[0]}, which does not exist")
            known.add(new.id)

    def _enqueue(self, new: NewJob, watched: int = 0, *, follows: bool = False) -> Enqueued:
        """Store a new job, unless its id exists or its unique key is taken.

        `follows`: another job creates it in the exchange that completes that job, which must not fail. It then loses a
        unique key that is taken, and an unknown blocker counts as one that failed.
        """
        if row := self._rows.get(new.id):
            return Enqueued(new.id, row.state)
        if new.unique is not None and (holder := self._holder(new.unique)):
            if not follows:
                return Enqueued(holder.new.id, holder.state, deduplicated=True)
            new = msgspec.structs.replace(new, unique=None)
        if new.unique is not None:
            window = new.unique.scope == "window"
            self._unique[new.unique.key] = new.id, self.now + new.unique.window if window else 0
        row = Row(new, new.chain or new.id, self.now, new.due or self.now + new.delay, watched=watched)
        self._rows[new.id] = row
        for chain in new.after:
            self._dependents[chain][new.id] = row
            last = self._last(chain)
            if last is None:
                row.upstream[chain] = None
                row.unsuccessful.add(chain)
                row.failed_blockers.add(chain)
            elif last.state in FINAL:
                self._record_end(row, last)
            else:
                row.waits.add(chain)
        run = self._runs.get(new.run)
        if run is not None:
            run.jobs.append(row)
            run.counts[row.state] += 1  # the transition below subtracts it again
        if run is not None and run.cancel is not None and not run.is_finished:
            self._cancel(row, reason=run.cancel)
        elif (new.when == "all_success" and row.unsuccessful) or (
            new.when == "any_failure" and not row.waits and not row.failed_blockers
        ):
            row.skipped_for_failure = bool(row.failed_blockers)
            self._end(row, "skipped")
        else:
            self._make_waiting(row)
        return Enqueued(new.id, row.state)

    def _cancel(self, *rows: Row, reason: str) -> None:
        """Cancel all rows before any dependent is updated."""
        for row in rows:
            row.error = Failure("Cancelled", reason, at=self.now)
            self._close(row, "cancelled", reason)
        self._release(list(rows))

    def _last(self, chain: str) -> Row | None:
        """Return the last job of a chain. The jobs before it may have been deleted."""
        row = self._rows.get(chain)
        while row is not None and row.followed_by:
            row = self._rows.get(row.followed_by)
        if row is None:
            row = next((one for one in self._rows.values() if one.chain == chain and not one.followed_by), None)
        return row

    def _leased(self, job: str, fence: int) -> Row | None:
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

    def _add_event(self, run: RunRow, kind: EventKind, row: Row | None = None, why: str = "", worker: str = "") -> None:
        job, attempt = (row.new.id, row.attempt) if row else ("", 0)
        event = RunEvent(run.new.id, len(run.events) + 1, self.now, kind, job, attempt, worker, why)
        run.events.append(event)
        self._event_count += 1
        self._events.append((self._event_count, event))
        self._touched[run.new.id] = run

    def _reopen_run(self, run: RunRow) -> None:
        run.status, run.finished, run.cancel = "running", 0, None
        run.deadline = self.now + run.new.timeout if run.new.timeout else 0
        self._add_event(run, "run_reopened")

    def finish_runs(self) -> None:
        """Finish the changed runs that have no unfinished job, and announce new events."""
        for run in self._touched.values():
            if run.is_over and not run.is_finished:
                run.status, run.finished = run.outcome(), self.now
                self._add_event(run, "run_finished", why=run.status)
                self._announce("runc", run.new.id)
            if run.announced < len(run.events):
                run.announced = len(run.events)
                self._announce("events", f"{run.new.id}:{run.announced}")
        self._touched = {}

    def _announce(self, name: str, payload: str) -> None:
        self.wakes.append(Wake(channel(self._prefix, name), payload))
