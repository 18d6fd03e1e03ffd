"""Read one job. `watch` also marks it, so that its end is announced on the hub to callers that wait for it."""

from __future__ import annotations

from typing import Any

from backstay.job.model import Concurrency, Job, State
from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.columns import (
    CANCEL_REQUESTED,
    CHAIN_WATCHED,
    COMPLETED,
    FINALS,
    HAS_BLOCKERS,
    HAS_BODY,
    JOB_WATCHED,
    OUTCOME_OPEN,
    RUNNING,
    STATES,
    decode_failure,
    decode_unique,
    parse_labels,
)
from backstay.job.stores.sqlite.statements import load

GET = load("get")
WATCH = load("watch")


def fetch_row(changes: Changes, job: str) -> tuple[Any, ...] | None:
    row: tuple[Any, ...] | None = changes.db.execute(GET["get"], (changes.space, job)).fetchone()
    return row


def get(changes: Changes, job: str) -> Job | None:
    row = fetch_row(changes, job)
    return None if row is None else to_job(changes, row)


def watch(changes: Changes, job: str, *, chain: bool) -> Job | None:
    """Read a job or, with `chain`, the last job of its chain. Mark that job, so that its end is announced on the hub.
    Both happen in one transaction, so the job cannot end unnoticed between reading and marking.
    """
    if chain:
        last = changes.db.execute(WATCH["last_of_chain"], (changes.space, job)).fetchone()
        job = last[0] if last is not None else job
    row = fetch_row(changes, job)
    if row is None:
        return None
    num, state, flags = row[0], row[4], row[22]
    flag = CHAIN_WATCHED if chain else JOB_WATCHED
    if state not in FINALS and not flags & flag:
        changes.db.execute(WATCH["set_flag"], (flag, num))
    return to_job(changes, row)


def to_job(changes: Changes, row: tuple[Any, ...]) -> Job:
    """Convert a row of the statement `get` to a Job."""
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
        labels=parse_labels(labels),
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
        cancel_requested=bool(flags & CANCEL_REQUESTED),
        result=result if state == COMPLETED else None,
        error=decode_failure(error) if error is not None else None,
        unique=decode_unique(uniq) if uniq is not None else None,
        concurrency=Concurrency(ckey, climit) if ckey is not None else None,
        waits_for=tuple(blocker for blocker, outcome in waits if outcome == OUTCOME_OPEN),
        after=tuple(blocker for blocker, _ in waits),
        followed_by=follower,
    )
