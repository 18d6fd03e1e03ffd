"""Enqueue: first everything is looked up and checked, then it is written, so that a refusal leaves nothing behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

import msgspec

from backstay.job.model import AGEING, FINAL, Enqueued, NewJob, Unique
from backstay.job.stores.sqlite.blockers import ENQUEUE, Blockers
from backstay.job.stores.sqlite.changes import KIND, Changes
from backstay.job.stores.sqlite.columns import (
    AWAITED,
    CANCELLED,
    FINALS,
    HAS_BODY,
    IN_RUN,
    SCHEDULED,
    SKIPPED,
    STATES,
    Entry,
    cancellation,
    text_of,
)
from backstay.job.stores.sqlite.ending import FINISH
from backstay.job.stores.sqlite.prepared import Encoded, Kind, flags_of, in_run


class Enqueuing:
    """One call's jobs on their way into the tables."""

    def __init__(self, changes: Changes, jobs: Sequence[Encoded], *, follows: bool = False) -> None:
        self._changes = changes
        self._follows = follows
        self._jobs = jobs
        self._kinds: dict[Kind, tuple[int, int]] = {}
        self._blockers = Blockers(changes, follows=follows)
        self._answers: list[Enqueued] = []
        #: Those that were stored before.
        self.known: list[str] = []
        #: With the state each begins in, when it is due, and its flags.
        self._new: list[tuple[Encoded, int, int, int]] = []
        #: Chains of which the first record went and another is left, and whose name begins anew.
        self._remains: set[str] = set()

    def look(self) -> None:
        """Everything that may refuse."""
        existing = self._existing()
        self.known = list(existing)
        keys: dict[str, Enqueued] = {}
        for encoded in self._jobs:
            job = encoded.job
            if job.run and self._changes.run(job.run) is not None:
                encoded = in_run(encoded)  # noqa: PLW2901 - the same job, with what is known of it now
            answer = existing.get(job.id)
            if answer is None and job.unique is not None and not self._follows:
                answer = keys.get(job.unique.key) or self._holder(job.unique.key)
            if answer is None:
                state, due, flags = self._blockers.course(encoded)
                answer = Enqueued(job.id, STATES[state])
                self._new.append((encoded, state, due, flags))
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
        blockers = self._blockers
        awaited = blockers.awaited()
        called_off: list[tuple[Any, ...]] = []
        for num, (encoded, state, due, flags) in enumerate(self._new, last + 1):
            job = encoded.job
            kind, lane = self._kinds.get(encoded.kind) or self._kind(encoded.kind)
            chain = "" if job.chain == job.id else job.chain
            concurrency = job.concurrency
            finished = alarm = 0
            why = ""
            if state == SCHEDULED:
                alarm = due
            elif state == SKIPPED:
                finished, alarm = now, 0 if flags & IN_RUN else now + job.keep
            elif state == CANCELLED:
                why = self._reason(job)
                called_off.append((CANCELLED, now, 0, cancellation(why, 0, now), num))
            if awaited and job.id in awaited:
                flags |= AWAITED  # noqa: PLW2901 - the row is made with it
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
                blockers.add(num, encoded)
            if _holds(job.unique, state) and not (self._follows and self._holder(job.unique.key)):
                until = now + job.unique.window if job.unique.scope == "window" else 0
                db.execute(ENQUEUE["hold"], (space, job.unique.key, job.id, until))
            if chain:
                db.execute(ENQUEUE["follow"], (space, chain, job.id))
            elif job.id in self._remains:
                db.execute(ENQUEUE["begin"], (space, job.id))
            changes.entered(num, job.id, kind, job.run, None, state, 0, "", why)
        db.executemany(ENQUEUE["job"], rows)
        if bodies:
            db.executemany(ENQUEUE["body"], bodies)
        if called_off:
            db.executemany(FINISH["end"], called_off)
        blockers.write()
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

    def _reason(self, job: NewJob) -> str:
        run = self._changes.run(job.run)
        return run.reason if run is not None else ""

    def _kind(self, kind: Kind) -> tuple[int, int]:
        db, space = self._changes.db, self._changes.space
        row: tuple[int, int] | None = db.execute(KIND["find"], (space, *kind)).fetchone()
        if row is None:
            shared: tuple[int] | None = db.execute(KIND["lane"], (space, *kind[:5])).fetchone()
            db.execute(KIND["add"], (space, *kind, shared[0] if shared else 0))
            (num,) = db.execute(KIND["find"], (space, *kind)).fetchone()[:1]
            if shared is None:
                db.execute(KIND["own"], (num,))
            row = (num, shared[0] if shared else num)
        self._kinds[kind] = row
        return row


def _holds(unique: Unique | None, state: int) -> TypeGuard[Unique]:
    """Whether a new job has its unique key: one that is final at once has it for a window, if at all."""
    return unique is not None and (state not in FINALS or unique.scope == "window")


def make(changes: Changes, jobs: Sequence[Encoded], before: Entry, *, follows: bool) -> Entry | None:
    """Jobs made by the step that completes one: they belong to its run. With `follows`, the last of them is the next of
    its chain, and takes over who waits for that.

    Their unique keys give way and an unknown blocker counts as one that failed: the step that makes them must not be
    refused. Answers the next job where it is final at once, so that its chain has ended.
    """
    chain = before.chain or before.id
    *adds, last = jobs
    made = [_belonging(encoded, before.run, encoded.job.chain) for encoded in adds]
    made.append(_belonging(last, before.run, chain if follows else last.job.chain))
    enqueuing = Enqueuing(changes, made, follows=True)
    enqueuing.look()
    answer = enqueuing.write()[-1]
    if not follows:
        return None
    changes.db.execute(ENQUEUE["hand_on"], (before.num, changes.space, answer.id))
    if answer.state not in FINAL:
        return None
    return Entry._make(changes.db.execute(FINISH["entries"], (changes.space, text_of([answer.id]))).fetchone())


def _belonging(encoded: Encoded, run: str, chain: str) -> Encoded:
    job = encoded.job
    if job.run == run and job.chain == chain:
        return encoded
    job = msgspec.structs.replace(job, run=run, chain=chain)
    return encoded._replace(job=job, flags=flags_of(job))
