"""What new jobs wait for: chains that are stored, or that the same call makes. They decide how a job begins."""

from __future__ import annotations

from typing import Any, NamedTuple

from backstay.errors import ConfigError
from backstay.job.model import NewJob
from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.columns import (
    ALL_DONE,
    ANY_FAILURE,
    AWAITED,
    BLAMED,
    BLOCKED,
    CANCELLED,
    COMPLETED,
    FAILED,
    FAILING,
    FINALS,
    IN_RUN,
    NOT_YET,
    PENDING,
    RUNNING,
    SCHEDULED,
    SKIPPED,
    THERE,
    WELL,
)
from backstay.job.stores.sqlite.ending import how_it_ended
from backstay.job.stores.sqlite.prepared import Encoded
from backstay.job.stores.sqlite.statements import load

ENQUEUE = load("enqueue")
#: In the place of its state: a job that has completed, and another follows it.
FOLLOWED = -1


class Found(NamedTuple):
    """A chain's last job."""

    num: int
    id: str
    state: int
    result: bytes | None
    flags: int
    run: str = ""


class Blockers:
    """The chains that one call's jobs wait for. `follows`: the call is a step that must not be refused."""

    def __init__(self, changes: Changes, *, follows: bool) -> None:
        self._changes = changes
        self._follows = follows
        #: What is known of each chain. None: made by this very call.
        self._chains: dict[str, Found | None] = {}
        #: Chains of this call that others of it wait for; and chains that go on in it.
        self._awaited: set[str] = set()
        self._continued: set[str] = set()
        self._waits: list[tuple[Any, ...]] = []

    def course(self, encoded: Encoded) -> tuple[int, int, int]:
        """The state a new job begins in, when it is due, and its flags."""
        job, flags = encoded.job, encoded.flags
        due = job.due or self._changes.now + job.delay
        state = SCHEDULED if due > self._changes.now else PENDING
        if job.after or flags & ANY_FAILURE:
            state, flags = self._meet(job, state, flags)
        if flags & IN_RUN and self._is_called_off(job):
            state = CANCELLED
        if job.chain and job.chain != job.id:
            self._continued.add(job.chain)
        elif state in FINALS:
            self._chains[job.id] = Found(0, job.id, state, None, flags, job.run)
        else:
            self._chains[job.id] = None
        return state, due, flags

    def _meet(self, job: NewJob, state: int, flags: int) -> tuple[int, int]:
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
                how = how_it_ended(found.state, found.flags)
                bad = bad or how != WELL
                failing = failing or how == FAILING
        if bad and not flags & (ALL_DONE | ANY_FAILURE):
            return SKIPPED, flags | BLAMED if failing else flags
        if waits:
            return BLOCKED, flags
        if flags & ANY_FAILURE and not failing:
            return SKIPPED, flags
        return state, flags

    def _find(self, chain: str, job: NewJob) -> Found:
        row = self._changes.db.execute(ENQUEUE["tail"], (self._changes.space, chain)).fetchone()
        if row is not None and row[2] == FOLLOWED:
            # Its follower is about to be made by this very step; or it was, and its record is gone.
            row = (*row[:2], RUNNING, *row[3:]) if self._follows else None
        if row is None:
            if self._follows:
                return Found(0, chain, FAILED, None, 0)
            raise ConfigError(
                f"job {job.id} ({job.type}) waits for {chain!r}, which is no chain that is stored: enqueue that first,"
                " or keep its record longer"
            )
        return Found._make(row)

    def _is_called_off(self, job: NewJob) -> bool:
        run = self._changes.run(job.run)
        return run is not None and run.is_cancelling

    def awaited(self) -> set[str]:
        """Jobs of this call that are made with the mark of being waited for."""
        return self._awaited - self._continued

    def add(self, num: int, encoded: Encoded) -> None:
        """A job that waits has its number."""
        space, job = self._changes.space, encoded.job
        for place, chain in enumerate(dict.fromkeys(job.after)):
            found = self._chains[chain]
            if found is None or found.state not in FINALS:
                self._waits.append((num, chain, place, NOT_YET, space, None))
                continue
            how = how_it_ended(found.state, found.flags)
            if how != WELL:
                self._waits.append((num, chain, place, how, space, None))
            elif found.state == COMPLETED and found.flags & encoded.flags & IN_RUN and found.run == job.run:
                self._waits.append((num, chain, place, THERE, space, None))
            else:
                self._waits.append((num, chain, place, WELL, space, found.result))

    def write(self) -> None:
        """Whoever ends these chains must look for who waits."""
        if not self._waits:
            return
        changes = self._changes
        changes.db.executemany(ENQUEUE["wait"], self._waits)
        for chain in {row[1] for row in self._waits if row[3] == NOT_YET} - self.awaited():
            row = changes.db.execute(ENQUEUE["tail"], (changes.space, chain)).fetchone()
            if not row[4] & AWAITED:
                changes.db.execute(ENQUEUE["await"], (row[0],))
