"""Get and watch: a job as it is stored, for whoever asks."""

from __future__ import annotations

from typing import Any

from backstay.job.model import Concurrency, Job, State
from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.columns import (
    CANCEL_WANTED,
    CHAIN_WATCHED,
    COMPLETED,
    FINALS,
    HAS_BLOCKERS,
    HAS_BODY,
    JOB_WATCHED,
    NOT_YET,
    RUNNING,
    STATES,
    decode_failure,
    decode_unique,
    labels_of,
)
from backstay.job.stores.sqlite.statements import load

GET = load("get")
WATCH = load("watch")


def row_of(changes: Changes, job: str) -> tuple[Any, ...] | None:
    row: tuple[Any, ...] | None = changes.db.execute(GET["get"], (changes.space, job)).fetchone()
    return row


def get(changes: Changes, job: str) -> Job | None:
    row = row_of(changes, job)
    return None if row is None else shown(changes, row)


def watch(changes: Changes, job: str, *, chain: bool) -> Job | None:
    """The look and the flag are one step, so no end falls between them."""
    if chain:
        last = changes.db.execute(WATCH["chain"], (changes.space, job)).fetchone()
        job = last[0] if last is not None else job
    row = row_of(changes, job)
    if row is None:
        return None
    num, state, flags = row[0], row[4], row[22]
    flag = CHAIN_WATCHED if chain else JOB_WATCHED
    if state not in FINALS and not flags & flag:
        changes.db.execute(WATCH["watch"], (flag, num))
    return shown(changes, row)


def shown(changes: Changes, row: tuple[Any, ...]) -> Job:
    """A row of `get`, as people see it."""
    (
        num, id_, type_, queue, state, args, meta, labels, priority, attempt, retries, snoozes, chain, run, fence,
        worker, alarm, enqueued, due, started, finished, progress, flags, result, error, uniq, ckey, climit, follower,
    ) = row  # fmt: skip
    if flags & HAS_BODY:
        args, meta = changes.db.execute(GET["body"], (num,)).fetchone()
    state_name: State = STATES[int(state)]
    waits: list[tuple[str, int]] = []
    if flags & HAS_BLOCKERS:
        waits = changes.db.execute(GET["waits"], (num,)).fetchall()
    return Job(
        id=id_,
        type=type_,
        queue=queue,
        state=state_name,
        args=args,
        meta=meta,
        labels=labels_of(labels),
        priority=priority,
        attempt=attempt,
        retries=retries,
        snoozes=snoozes,
        chain=chain or id_,
        run=run,
        fence=fence,
        worker=worker if state == RUNNING or state in FINALS else "",
        lease_until=alarm if state == RUNNING else 0,
        enqueued=enqueued,
        due=due,
        started=started,
        finished=finished,
        progress=progress,
        cancel_requested=bool(flags & CANCEL_WANTED),
        result=result if state == COMPLETED else None,
        error=decode_failure(error) if error is not None else None,
        unique=decode_unique(uniq) if uniq is not None else None,
        concurrency=Concurrency(ckey, climit) if ckey is not None else None,
        waits_for=tuple(blocker for blocker, how in waits if how == NOT_YET),
        after=tuple(blocker for blocker, _ in waits),
        followed_by=follower,
    )
