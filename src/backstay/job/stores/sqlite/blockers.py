"""The blockers of new jobs, that is, the chains that they wait for. `Blockers` looks up these chains, derives the
initial state of each job, and stores which job waits for which chain. A blocker may be a chain that the same call
creates.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from backstay.errors import ConfigError
from backstay.job.model import NewJob
from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.columns import (
    ALL_DONE,
    ANY_FAILURE,
    AWAITED,
    BLOCKED,
    CANCELLED,
    COMPLETED,
    FAILED,
    FINALS,
    IN_RUN,
    OUTCOME_FAILED,
    OUTCOME_OK,
    OUTCOME_OK_SHARED,
    OUTCOME_OPEN,
    PENDING,
    RUNNING,
    SCHEDULED,
    SKIPPED,
    UPSTREAM_FAILED,
)
from backstay.job.stores.sqlite.finish_effects import outcome_of
from backstay.job.stores.sqlite.prepared import PreparedJob
from backstay.job.stores.sqlite.statements import load

ENQUEUE = load("enqueue")
#: The SQL statement `tail` (enqueue.sql) reads the last stored job of a chain. If that job has a successor in the chain
#: that is not stored (deleted, or not inserted yet), `tail` returns this number instead of the job's state.
FOLLOWED = -1


class ChainTail(NamedTuple):
    """The last job of a stored chain."""

    num: int
    id: str
    state: int
    result: bytes | None
    flags: int
    run: str = ""


class Blockers:
    """The chains that the new jobs of one call wait for. `follows`: the jobs are created by the completion of another
    job (`Finish.next`, `Finish.adds`), which must not be rejected. So an unknown blocker then counts as failed, instead
    of raising ConfigError.
    """

    def __init__(self, changes: Changes, *, follows: bool) -> None:
        self._changes = changes
        self._follows = follows
        #: The last job of each chain that was looked up. None: the chain starts with a job of this call and has not
        #: ended.
        self._chains: dict[str, ChainTail | None] = {}
        #: Chains that start with a job of this call and that later jobs of the call wait for.
        self._awaited: set[str] = set()
        #: Chains that jobs of this call continue.
        self._continued: set[str] = set()
        self._waits: list[tuple[Any, ...]] = []

    def initial_state(self, prepared: PreparedJob) -> tuple[int, int, int]:
        """Return the initial state of a new job, its due time and its flags."""
        job, flags = prepared.job, prepared.flags
        due = job.due or self._changes.now + job.delay
        state = SCHEDULED if due > self._changes.now else PENDING
        if job.after or flags & ANY_FAILURE:
            state, flags = self._apply_blockers(job, state, flags)
        if flags & IN_RUN and self._run_is_cancelling(job):
            state = CANCELLED
        if job.chain and job.chain != job.id:
            self._continued.add(job.chain)
        elif state in FINALS:
            self._chains[job.id] = ChainTail(0, job.id, state, None, flags, job.run)
        else:
            self._chains[job.id] = None
        return state, due, flags

    def _apply_blockers(self, job: NewJob, state: int, flags: int) -> tuple[int, int]:
        waits = bad = failing = False
        for chain in job.after:
            if chain not in self._chains:
                self._chains[chain] = self._find(chain, job)
            found = self._chains[chain]
            if found is None:
                self._awaited.add(chain)
                waits = True
            elif found.state not in FINALS:
                waits = True
            else:
                outcome = outcome_of(found.state, found.flags)
                bad = bad or outcome != OUTCOME_OK
                failing = failing or outcome == OUTCOME_FAILED
        if bad and not flags & (ALL_DONE | ANY_FAILURE):
            return SKIPPED, flags | UPSTREAM_FAILED if failing else flags
        if waits:
            return BLOCKED, flags
        if flags & ANY_FAILURE and not failing:
            return SKIPPED, flags
        return state, flags

    def _find(self, chain: str, job: NewJob) -> ChainTail:
        row = self._changes.db.execute(ENQUEUE["tail"], (self._changes.space, chain)).fetchone()
        if row is not None and row[2] == FOLLOWED:
            # With `follows`, this operation is about to create the job that continues the chain. Otherwise that job
            # existed and its record is deleted, so the chain is unknown.
            row = (*row[:2], RUNNING, *row[3:]) if self._follows else None
        if row is None:
            if self._follows:
                return ChainTail(0, chain, FAILED, None, 0)
            raise ConfigError(
                f"job {job.id} ({job.type}) waits for {chain!r}, which is not a stored chain: enqueue that job first"
                " or keep its record longer"
            )
        return ChainTail._make(row)

    def _run_is_cancelling(self, job: NewJob) -> bool:
        run = self._changes.find_run(job.run)
        return run is not None and run.is_cancelling

    def awaited(self) -> set[str]:
        """Return the ids of the new jobs that other jobs of this call wait for. They must get the flag AWAITED, which
        says that a job has dependents, when they are inserted.
        """
        return self._awaited - self._continued

    def add(self, num: int, prepared: PreparedJob) -> None:
        """Collect the rows of the table `backstay_job_wait` for a new job, one for each blocker. `num`: the job's row
        number.
        """
        space, job = self._changes.space, prepared.job
        for position, chain in enumerate(dict.fromkeys(job.after)):
            found = self._chains[chain]
            if found is None or found.state not in FINALS:
                self._waits.append((num, chain, position, OUTCOME_OPEN, space, None))
                continue
            outcome = outcome_of(found.state, found.flags)
            if outcome != OUTCOME_OK:
                self._waits.append((num, chain, position, outcome, space, None))
            elif found.state == COMPLETED and found.flags & prepared.flags & IN_RUN and found.run == job.run:
                self._waits.append((num, chain, position, OUTCOME_OK_SHARED, space, None))
            else:
                self._waits.append((num, chain, position, OUTCOME_OK, space, found.result))

    def write(self) -> None:
        """Store the collected rows, and set the flag AWAITED on the last job of each blocker that has not ended. When a
        job ends, its dependents are searched only if it has this flag.
        """
        if not self._waits:
            return
        changes = self._changes
        changes.db.executemany(ENQUEUE["add_wait"], self._waits)
        for chain in {row[1] for row in self._waits if row[3] == OUTCOME_OPEN} - self.awaited():
            row = changes.db.execute(ENQUEUE["tail"], (changes.space, chain)).fetchone()
            if not row[4] & AWAITED:
                changes.db.execute(ENQUEUE["mark_awaited"], (row[0],))
