"""Enqueue jobs in two phases: check all jobs, then write all, so that a rejected call changes nothing."""

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
    JobRecord,
    encode_cancellation,
    json_text,
)
from backstay.job.stores.sqlite.finish_effects import FINISH
from backstay.job.stores.sqlite.prepared import Kind, PreparedJob, flags_of, mark_in_run


class Enqueuer:
    """Stores the jobs of one call: first `check`, then `write`.

    `follows`: the jobs are created by the finish of another job, which must not be rejected. So a job is stored even if
    another job holds its unique key, and an unknown blocker counts as failed.
    """

    def __init__(self, changes: Changes, jobs: Sequence[PreparedJob], *, follows: bool = False) -> None:
        self._changes = changes
        self._follows = follows
        self._jobs = jobs
        self._kinds: dict[Kind, tuple[int, int]] = {}
        self._blockers = Blockers(changes, follows=follows)
        self._answers: list[Enqueued] = []
        #: Ids of jobs of this call that were already stored.
        self.known: list[str] = []
        #: New jobs with their initial state, due time and flags.
        self._new: list[tuple[PreparedJob, int, int, int]] = []
        #: Ids of stored chains whose first job is deleted, while a later job is still stored, and whose id a new job of
        #: this call uses again (a chain has the id of its first job). The new job starts another chain with that id.
        self._orphaned_chains: set[str] = set()

    def check(self) -> None:
        """For each job of the call, find out whether it is already stored or its unique key is held by another job. If
        neither, it is new: find its blockers and its initial state. Writes nothing. Raises ConfigError if a job is
        invalid.
        """
        existing = self._find_existing()
        self.known = list(existing)
        keys: dict[str, Enqueued] = {}
        for prepared in self._jobs:
            job = prepared.job
            if job.run and self._changes.find_run(job.run) is not None:
                prepared = mark_in_run(prepared)  # noqa: PLW2901 - the same job, with one more flag
            answer = existing.get(job.id)
            if answer is None and job.unique is not None and not self._follows:
                answer = keys.get(job.unique.key) or self._find_holder(job.unique.key)
            if answer is None:
                state, due, flags = self._blockers.initial_state(prepared)
                answer = Enqueued(job.id, STATES[state])
                self._new.append((prepared, state, due, flags))
                if _holds_unique(job.unique, state):
                    keys[job.unique.key] = Enqueued(job.id, STATES[state], deduplicated=True)
            existing.setdefault(job.id, answer)  # so that a later job of this call with the same id gets this answer
            self._answers.append(answer)

    def write(self) -> list[Enqueued]:
        """Store the new jobs. Returns the id and state of each job of the call."""
        changes = self._changes
        db, space, now = changes.db, changes.space, changes.now
        if not self._new:
            return self._answers
        (last,) = db.execute(ENQUEUE["last_num"]).fetchone()
        rows: list[tuple[Any, ...]] = []
        bodies: list[tuple[int, bytes, bytes]] = []
        blockers = self._blockers
        awaited = blockers.awaited()
        cancelled: list[tuple[Any, ...]] = []
        for num, (prepared, state, due, flags) in enumerate(self._new, last + 1):
            job = prepared.job
            kind, lane = self._kinds.get(prepared.kind) or self._find_or_add_kind(prepared.kind)
            chain = "" if job.chain == job.id else job.chain
            concurrency = job.concurrency
            finished = alarm = 0
            why = ""
            if state == SCHEDULED:
                alarm = due
            elif state == SKIPPED:
                finished, alarm = now, 0 if flags & IN_RUN else now + job.keep
            elif state == CANCELLED:
                why = self._cancel_reason(job)
                cancelled.append((CANCELLED, now, 0, encode_cancellation(why, 0, now), num))
            if awaited and job.id in awaited:
                flags |= AWAITED  # noqa: PLW2901 - the new row needs the flag
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
                    prepared.uniq,
                    args,
                    meta,
                )
            )
            if job.after:
                blockers.add(num, prepared)
            if _holds_unique(job.unique, state) and not (self._follows and self._find_holder(job.unique.key)):
                until = now + job.unique.window if job.unique.scope == "window" else 0
                db.execute(ENQUEUE["hold_unique"], (space, job.unique.key, job.id, until))
            if chain:
                db.execute(ENQUEUE["continue_chain"], (space, chain, job.id))
            elif job.id in self._orphaned_chains:
                db.execute(ENQUEUE["restart_chain"], (space, job.id))
            changes.record_transition(num, job.id, kind, job.run, None, state, 0, "", why)
        db.executemany(ENQUEUE["insert"], rows)
        if bodies:
            db.executemany(ENQUEUE["insert_body"], bodies)
        if cancelled:
            db.executemany(FINISH["end_job"], cancelled)
        blockers.write()
        return self._answers

    def _find_existing(self) -> dict[str, Enqueued]:
        changes = self._changes
        ids = json_text([prepared.job.id for prepared in self._jobs])
        rows: list[tuple[str, int]] = changes.db.execute(ENQUEUE["existing"], (changes.space, ids)).fetchall()
        existing = {id_: Enqueued(id_, STATES[state]) for id_, state in rows if state >= 0}
        self._orphaned_chains = {id_ for id_, state in rows if state < 0 and id_ not in existing}
        return existing

    def _find_holder(self, key: str) -> Enqueued | None:
        changes = self._changes
        row: tuple[str, int, int | None] | None
        row = changes.db.execute(ENQUEUE["unique_holder"], (changes.space, key)).fetchone()
        if row is None:
            return None
        job, until, state = row
        if until and until <= changes.now:
            return None
        # The job's record may be deleted before its unique window ends: then it had completed.
        return Enqueued(job, "completed" if state is None else STATES[state], deduplicated=True)

    def _cancel_reason(self, job: NewJob) -> str:
        run = self._changes.find_run(job.run)
        return run.reason if run is not None else ""

    def _find_or_add_kind(self, kind: Kind) -> tuple[int, int]:
        db, space = self._changes.db, self._changes.space
        row: tuple[int, int] | None = db.execute(KIND["find"], (space, *kind)).fetchone()
        if row is None:
            shared: tuple[int] | None = db.execute(KIND["find_lane"], (space, *kind[:5])).fetchone()
            db.execute(KIND["add"], (space, *kind, shared[0] if shared else 0))
            (num,) = db.execute(KIND["find"], (space, *kind)).fetchone()[:1]
            if shared is None:
                db.execute(KIND["own_lane"], (num,))
            row = (num, shared[0] if shared else num)
        self._kinds[kind] = row
        return row


def _holds_unique(unique: Unique | None, state: int) -> TypeGuard[Unique]:
    """Whether a new job takes its unique key. A job that is skipped or cancelled as soon as it is enqueued takes the
    key only if the key's scope is "window".
    """
    return unique is not None and (state not in FINALS or unique.scope == "window")


def enqueue_created(
    changes: Changes, jobs: Sequence[PreparedJob], before: JobRecord, *, follows: bool
) -> JobRecord | None:
    """Enqueue the jobs that the finish of a job creates. `before`: the finished job, whose run the new jobs join.
    `follows`: the last new job continues the chain of the finished job. It inherits the flags which say that clients
    watch the chain and that other jobs wait for it.

    Returns the job that continues the chain if it is final at once, because then the chain has ended; otherwise None.
    """
    chain = before.chain or before.id
    *adds, last = jobs
    made = [_assign_run_and_chain(prepared, before.run, prepared.job.chain) for prepared in adds]
    made.append(_assign_run_and_chain(last, before.run, chain if follows else last.job.chain))
    enqueuer = Enqueuer(changes, made, follows=True)
    enqueuer.check()
    answer = enqueuer.write()[-1]
    if not follows:
        return None
    changes.db.execute(ENQUEUE["pass_on_flags"], (before.num, changes.space, answer.id))
    if answer.state not in FINAL:
        return None
    return JobRecord._make(changes.db.execute(FINISH["records"], (changes.space, json_text([answer.id]))).fetchone())


def _assign_run_and_chain(prepared: PreparedJob, run: str, chain: str) -> PreparedJob:
    job = prepared.job
    if job.run == run and job.chain == chain:
        return prepared
    job = msgspec.structs.replace(job, run=run, chain=chain)
    return prepared._replace(job=job, flags=flags_of(job))
