"""Enqueue: first everything is looked up and checked, then it is written, so that a refusal leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeGuard

import msgspec

from holdfast.errors import ConfigError
from holdfast.job.model import AGEING, Enqueued, NewJob, Unique
from holdfast.job.sqlite.changes import KIND, Changes
from holdfast.job.sqlite.prepared import Encoded, Kind, flags_of
from holdfast.job.sqlite.shape import (
    AWAITED,
    BADLY,
    BLOCKED,
    COMPLETED,
    FINALS,
    HAS_BODY,
    NOT_YET,
    PENDING,
    RUNNING,
    SCHEDULED,
    SKIPPED,
    STATES,
    WELL,
    Entry,
    text_of,
)
from holdfast.job.sqlite.texts import load

ENQUEUE = load("enqueue")
#: In the place of its state: a job that has completed, and another follows it.
FOLLOWED = -1
FINISH = load("finish")


class Found(NamedTuple):
    """A chain's last job."""

    num: int
    id: str
    state: int
    result: bytes | None
    flags: int


class Enqueuing:
    """One call's jobs on their way into the tables."""

    def __init__(self, changes: Changes, jobs: Sequence[Encoded], *, follows: bool = False) -> None:
        self._changes = changes
        self._follows = follows
        self._jobs = jobs
        self._kinds: dict[Kind, tuple[int, int]] = {}
        #: Chains that somebody waits for, and what is known of them. None: made by this very call.
        self._chains: dict[str, Found | None] = {}
        self._answers: list[Enqueued] = []
        self._new: list[tuple[Encoded, int, int]] = []
        #: Chains of which the first record went and another is left, and whose name begins anew.
        self._remains: set[str] = set()

    def look(self) -> None:
        """Everything that may refuse."""
        existing = self._existing()
        keys: dict[str, Enqueued] = {}
        for encoded in self._jobs:
            job = encoded.job
            answer = existing.get(job.id)
            if answer is None and job.unique is not None and not self._follows:
                answer = keys.get(job.unique.key) or self._holder(job.unique.key)
            if answer is None:
                state, due = self._course(job)
                answer = Enqueued(job.id, STATES[state])
                self._new.append((encoded, state, due))
                if _holds(job.unique, state):
                    keys[job.unique.key] = Enqueued(job.id, STATES[state], deduplicated=True)
            existing.setdefault(job.id, answer)  # asked for twice in one call
            self._answers.append(answer)

    def write(self) -> list[Enqueued]:
        changes = self._changes
        db, space, now = changes.db, changes.space, changes.now
        if not self._new:
            return self._answers
        (last,) = db.execute(ENQUEUE["last"]).fetchone()
        rows: list[tuple[Any, ...]] = []
        bodies: list[tuple[int, bytes, bytes]] = []
        waits: list[tuple[Any, ...]] = []
        for num, (encoded, state, due) in enumerate(self._new, last + 1):
            job = encoded.job
            kind, lane = self._kinds.get(encoded.kind) or self._kind(encoded.kind)
            chain = "" if job.chain == job.id else job.chain
            concurrency = job.concurrency
            flags = encoded.flags
            finished = alarm = 0
            if state == SCHEDULED:
                alarm = due
            elif state == SKIPPED:
                finished, alarm = now, now + job.keep
            args: bytes | None = job.args
            meta: bytes | None = job.meta
            if flags & HAS_BODY:
                bodies.append((num, job.args, job.meta))
                args = meta = None
            rows.append(
                (
                    num,
                    space,
                    job.id,
                    kind,
                    lane,
                    state,
                    due - job.priority * AGEING,
                    due,
                    job.priority,
                    job.retries,
                    flags,
                    alarm,
                    now,
                    finished,
                    job.keep,
                    job.keep_failed,
                    chain,
                    job.run,
                    concurrency.key if concurrency else None,
                    concurrency.limit if concurrency else None,
                    encoded.uniq,
                    args,
                    meta,
                )
            )
            if job.after:
                waits += self._waits(num, job.after)
            if _holds(job.unique, state) and not (self._follows and self._holder(job.unique.key)):
                until = now + job.unique.window if job.unique.scope == "window" else 0
                db.execute(ENQUEUE["hold"], (space, job.unique.key, job.id, until))
            if chain:
                db.execute(ENQUEUE["follow"], (space, chain, job.id))
            elif job.id in self._remains:
                db.execute(ENQUEUE["begin"], (space, job.id))
            changes.entered(num, job.id, kind, job.run, None, state)
        db.executemany(ENQUEUE["job"], rows)
        if bodies:
            db.executemany(ENQUEUE["body"], bodies)
        if waits:
            db.executemany(ENQUEUE["wait"], waits)
            self._mark(waits)
        return self._answers

    def _existing(self) -> dict[str, Enqueued]:
        changes = self._changes
        ids = text_of([encoded.job.id for encoded in self._jobs])
        rows: list[tuple[str, int]] = changes.db.execute(ENQUEUE["existing"], (changes.space, ids)).fetchall()
        existing = {id_: Enqueued(id_, STATES[state]) for id_, state in rows if state >= 0}
        self._remains = {id_ for id_, state in rows if state < 0 and id_ not in existing}
        return existing

    def _holder(self, key: str) -> Enqueued | None:
        changes = self._changes
        row: tuple[str, int, int | None] | None
        row = changes.db.execute(ENQUEUE["holder"], (changes.space, key)).fetchone()
        if row is None:
            return None
        job, until, state = row
        if until and until <= changes.now:
            return None
        # A window may outlive the record of its job.
        return Enqueued(job, "completed" if state is None else STATES[state], deduplicated=True)

    def _course(self, job: NewJob) -> tuple[int, int]:
        """The state a new job begins in, and when it is due."""
        due = job.due or self._changes.now + job.delay
        state = SCHEDULED if due > self._changes.now else PENDING
        for chain in job.after:
            if chain not in self._chains:
                self._chains[chain] = self._find(chain, job)
            found = self._chains[chain]
            if found is None or found.state not in FINALS:
                state = BLOCKED if state != SKIPPED else state
            elif found.state != COMPLETED and job.when == "all_success":
                state = SKIPPED
        if not job.chain or job.chain == job.id:
            self._chains[job.id] = None if state != SKIPPED else Found(0, job.id, SKIPPED, None, 0)
        return state, due

    def _find(self, chain: str, job: NewJob) -> Found:
        row = self._changes.db.execute(ENQUEUE["tail"], (self._changes.space, chain)).fetchone()
        if row is not None and row[2] == FOLLOWED:
            # Its follower is about to be made by this very step; or it was, and its record is gone.
            row = (*row[:2], RUNNING, *row[3:]) if self._follows else None
        if row is None:
            if self._follows:
                return Found(0, chain, SKIPPED, None, 0)
            raise ConfigError(
                f"job {job.id} ({job.type}) waits for {chain!r}, which is no chain that is stored: enqueue that first,"
                " or keep its record longer"
            )
        return Found._make(row)

    def _waits(self, num: int, after: Iterable[str]) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        for place, chain in enumerate(dict.fromkeys(after)):
            found = self._chains[chain]
            if found is None or found.state not in FINALS:
                rows.append((num, chain, place, NOT_YET, self._changes.space, None))
            elif found.state == COMPLETED:
                rows.append((num, chain, place, WELL, self._changes.space, found.result))
            else:
                rows.append((num, chain, place, BADLY, self._changes.space, None))
        return rows

    def _mark(self, waits: Iterable[tuple[Any, ...]]) -> None:
        """Whoever ends these chains must look for who waits."""
        changes = self._changes
        for chain in {row[1] for row in waits if row[3] == NOT_YET}:
            row = changes.db.execute(ENQUEUE["tail"], (changes.space, chain)).fetchone()
            if not row[4] & AWAITED:
                changes.db.execute(ENQUEUE["await"], (row[0],))

    def _kind(self, kind: Kind) -> tuple[int, int]:
        db, space = self._changes.db, self._changes.space
        row: tuple[int, int] | None = db.execute(KIND["find"], (space, *kind)).fetchone()
        if row is None:
            shared: tuple[int] | None = db.execute(KIND["lane"], (space, *kind[:-1])).fetchone()
            db.execute(KIND["add"], (space, *kind, shared[0] if shared else 0))
            (num,) = db.execute(KIND["find"], (space, *kind)).fetchone()[:1]
            if shared is None:
                db.execute(KIND["own"], (num,))
            row = (num, shared[0] if shared else num)
        self._kinds[kind] = row
        return row


def _holds(unique: Unique | None, state: int) -> TypeGuard[Unique]:
    """Whether a new job has its unique key: one that is skipped at once has it for a window, if at all."""
    return unique is not None and (state != SKIPPED or unique.scope == "window")


def follow(changes: Changes, encoded: Encoded, before: Entry) -> Entry | None:
    """The next job of a chain, made by the step that ends the one before it: it takes over who waits for the chain.

    Its unique key gives way and an unknown blocker counts as one that failed: the step that makes it must not be
    refused. Answers the job where it is skipped at once, so that its chain has ended.
    """
    chain = before.chain or before.id
    if encoded.job.chain != chain:
        job = msgspec.structs.replace(encoded.job, chain=chain)
        encoded = encoded._replace(job=job, flags=flags_of(job))
    enqueuing = Enqueuing(changes, [encoded], follows=True)
    enqueuing.look()
    (made,) = enqueuing.write()
    changes.db.execute(ENQUEUE["hand_on"], (before.num, changes.space, made.id))
    if made.state != "skipped":
        return None
    return Entry._make(changes.db.execute(FINISH["entries"], (changes.space, text_of([made.id]))).fetchone())
