"""State transitions of jobs that belong to runs: collected during a transaction, counted and published at its end.

A run's row is held last, after all jobs and keys, and runs in the order of their ids: whoever waits for a run waits for
nobody who could wait for him. It is held until the commit, so of two who end the last jobs of a run the second sees
what the first has counted; and what is told has no gaps, for nobody else tells meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from backstay.engine.base import Micros, Wake
from backstay.hub.protocol import channel
from backstay.job.model import FINAL
from backstay.job.run_model import FINISHED, Run
from backstay.job.run_status import final_status
from backstay.job.stores.postgres.events import EventBatch, EventFields, columns
from backstay.job.stores.postgres.rows import SOFT
from backstay.job.stores.postgres.statements import Numbers, Texts, readable, storable

#: Where changes of runs are announced, and their ends once more.
EVENTS, RUN_ENDED = "events", "runc"
#: In the order of the columns.
STATES = ("scheduled", "blocked", "pending", "running", "completed", "failed", "cancelled", "skipped")
#: What is told of a job that comes into a state; of one that waits for others, nothing.
KINDS = {state: state for state in STATES if state != "blocked"} | {"pending": "ready", "running": "started"}
FOREVER = 2**63 - 1


class JobTransition(msgspec.Struct, frozen=True, gc=False):
    """A job of a run came from one state into another ("": it was made). Without states: something is told of it."""

    run: str
    job: str
    before: str
    after: str
    attempt: int = 0
    flags: int = 0
    worker: str = ""
    why: str = ""
    kind: str = ""
    #: Another job carries its chain on, and is counted instead.
    followed: bool = False


@dataclass
class LockedRun:
    """A run while its row is held."""

    id: str
    status: str
    started: Micros
    finished: Micros
    deadline: Micros
    timeout: Micros
    keep: Micros
    keep_until: Micros
    events: int
    cancelling: bool
    reason: str
    counts: dict[str, int]
    hard: int
    now: Micros
    said: list[EventFields] = field(default_factory=list[EventFields])
    #: It has ended just now.
    ended: bool = False

    @classmethod
    def of(cls, row: Sequence[Any]) -> LockedRun:
        """What run_hold.sql answers."""
        counts = dict(zip(STATES, row[11:19], strict=True))
        fields: list[Any] = [*row[:10], readable(row[10]), counts, row[19], row[20]]
        return cls(*fields)

    @property
    def is_finished(self) -> bool:
        return self.status in FINISHED

    def add_event(self, kind: Any, move: JobTransition | None = None, why: str = "") -> None:
        self.events += 1
        if move is None:
            self.said.append((kind, "", "", 0, why))
        else:
            self.said.append((kind, move.worker, move.job, move.attempt, move.why))

    @property
    def event_batch(self) -> EventBatch:
        return EventBatch(self.id, self.events - len(self.said) + 1, self.now, self.said)

    def cancel(self, reason: str) -> None:
        if not self.is_finished and not self.cancelling:
            self.cancelling, self.reason = True, reason
            self.add_event("run_cancelling", why=reason)

    def count(self, move: JobTransition) -> None:
        if move.kind:
            self.add_event(move.kind, move)
            return
        if self.is_finished and move.after not in FINAL:
            self._reopen()
        before, after, counts = move.before, move.after, self.counts
        if before:
            counts[before] -= 1
        counts[after] += not move.followed
        if "failed" in (before, after) and not move.flags & SOFT:
            self.hard += (after == "failed") - (before == "failed")
        if after == "running":
            self.status, self.started = "running", self.started or self.now
        if after in KINDS:
            self.add_event(KINDS[after], move)

    def _reopen(self) -> None:
        self.status, self.finished, self.cancelling, self.reason = "running", 0, False, ""
        self.deadline = self.now + self.timeout if self.timeout else 0
        self.keep_until = FOREVER
        self.add_event("run_reopened")

    def settle(self) -> None:
        """It ends with the last of its jobs."""
        if self.is_finished or any(self.counts[state] for state in STATES if state not in FINAL):
            return
        self.status = final_status(
            hard_failures=self.hard, cancelled=self.counts["cancelled"], cancel_requested=self.cancelling
        )
        self.finished, self.keep_until, self.ended = self.now, min(FOREVER, self.now + self.keep), True
        self.add_event("run_finished", why=self.status)


class RunTransitions:
    """Of one transaction."""

    def __init__(self, space: str) -> None:
        self._space = space
        self._moves: list[JobTransition] = []
        self._runs: set[str] = set()
        #: Runs that are to be cancelled, and why; runs whose counts are to be set right; runs that have just begun.
        self.cancelling: dict[str, str] = {}
        self.recounted: dict[str, dict[str, int]] = {}
        self.begun: set[str] = set()
        #: How many running jobs of those that are to be cancelled were told.
        self.asked: Counter[str] = Counter()
        self.held: dict[str, LockedRun] = {}
        #: Runs that are not there (any more).
        self.gone: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._moves or self.cancelling or self.recounted or self.begun)

    def add(self, move: JobTransition) -> None:
        self._moves.append(move)
        self._runs.add(move.run)

    @property
    def unheld(self) -> list[str]:
        """The runs that are yet to be held, in order."""
        runs = self._runs | self.cancelling.keys() | self.recounted.keys() | self.begun
        return sorted(runs - self.held.keys() - self.gone)

    def caught(self) -> dict[str, tuple[str, int, Micros]]:
        """Jobs that came into a run which somebody cancelled meanwhile: with the reason, their attempt, the time."""
        if not any(run.cancelling and not run.is_finished for run in self.held.values()):
            return {}
        last = {move.job: move for move in self._moves if not move.kind}
        return {
            job: (run.reason, move.attempt, run.now)
            for job, move in last.items()
            if (run := self.held.get(move.run)) is not None
            and run.cancelling
            and not run.is_finished
            and move.after in ("scheduled", "blocked", "pending")
        }

    def forget(self, jobs: Iterable[str]) -> None:
        """These have ended at once: of each only the last move counts, from where it came."""
        for job in set(jobs):
            mine = [move for move in self._moves if move.job == job and not move.kind]
            self._moves = [move for move in self._moves if move.job != job or move.kind]
            self._moves.append(replace(mine[-1], before=mine[0].before))

    def closing(self) -> list[tuple[str, dict[str, Any]]]:
        """What stores all of it: statements to go with the commit."""
        held = self.held
        for id_ in self.begun & held.keys():
            held[id_].add_event("run_created")
        for id_, reason in self.cancelling.items():
            if id_ in held:
                held[id_].cancel(reason)
        for move in self._moves:
            if move.run in held:
                held[move.run].count(move)
        for id_, counts in self.recounted.items():
            held[id_].counts = {state: counts[state] for state in STATES}
            held[id_].hard = counts["hard"]
        runs = [held[id_] for id_ in sorted(held)]
        for run in runs:
            run.settle()
        if not runs:
            return []
        values = {
            "space": self._space,
            "ids": Texts([run.id for run in runs]),
            "statuses": Texts([run.status for run in runs]),
            "starteds": Numbers([run.started for run in runs]),
            "finisheds": Numbers([run.finished for run in runs]),
            "deadlines": Numbers([run.deadline for run in runs]),
            "keep_untils": Numbers([run.keep_until for run in runs]),
            "events": Numbers([run.events for run in runs]),
            "cancellings": Numbers([int(run.cancelling) for run in runs]),
            "reasons": Texts([storable(run.reason) for run in runs]),
            "hard": Numbers([run.hard for run in runs]),
            **{state: Numbers([run.counts[state] for run in runs]) for state in STATES},
        }
        told = [run.event_batch for run in runs if run.said]
        return [("run_store", values), *([("run_tell", columns(self._space, told))] if told else [])]

    @property
    def missed(self) -> bool:
        """Whether a run that is to be cancelled got jobs while we looked for them. No more will come: it says so."""
        return any(
            run.counts["scheduled"] + run.counts["blocked"] + run.counts["pending"] > 0
            or run.counts["running"] > self.asked[id_]
            for id_ in self.cancelling
            if (run := self.held.get(id_)) is not None
        )

    def wakes(self, prefix: str) -> list[Wake]:
        return wakes_of(prefix, [(run.id, run.events, run.ended) for run in self.held.values() if run.said])


def wakes_of(prefix: str, runs: Sequence[tuple[str, int, bool]]) -> list[Wake]:
    """Of runs in which something has happened: with the number of the last event, and whether they have ended."""
    changed = [Wake(channel(prefix, EVENTS), f"{id_}:{last}") for id_, last, _ in runs]
    return changed + [Wake(channel(prefix, RUN_ENDED), id_) for id_, _, ended in runs if ended]


def run_of(row: Sequence[Any], doc: bytes = b"") -> Run:
    """The columns of `_run.sql`."""
    return Run(
        id=row[0],
        workflow=readable(row[1]),
        version=row[2],
        status=row[3],
        created=row[4],
        started=row[5],
        finished=row[6],
        deadline=row[7],
        cancel_requested=row[8],
        reason=readable(row[9]),
        events=row[10],
        counts={state: count for state, count in sorted(zip(STATES, row[11:19], strict=True)) if count},
        doc=doc,
    )
