"""Finish attempts. Only the worker that holds a job's lease may finish the attempt; any other finish is stale and
changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from backstay.job.exchange import Verdict
from backstay.job.model import AGEING, Finish
from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.columns import (
    AWAITED,
    CANCEL_REQUESTED,
    CANCELLED,
    COMPLETED,
    END_HAS_EFFECTS,
    FAILED,
    HAS_OUTPUTS,
    OUTCOME_OK,
    PENDING,
    RUNNING,
    SCHEDULED,
    SKIPPED,
    SOFT,
    JobRecord,
    decode_failure,
    encode,
    json_text,
)
from backstay.job.stores.sqlite.enqueue import enqueue_created
from backstay.job.stores.sqlite.finish_effects import (
    FINISH,
    ChainEnd,
    continue_chain,
    finish_chains,
    outcome_of,
    retention_deadline,
    unpark,
)
from backstay.job.stores.sqlite.prepared import PreparedJob, prepare, require_storable
from backstay.job.stores.sqlite.records.logs import LOG

#: From this many jobs with equal results on, one statement for all of them is cheaper than one per job.
UNIFORM_MIN = 4


class PreparedFinish(NamedTuple):
    """A Finish with everything that can be computed before the transaction begins."""

    finish: Finish
    error: bytes | None
    #: The jobs that the finish creates.
    creates: tuple[PreparedJob, ...]
    #: Whether the last of `creates` continues the finished job's chain.
    follows: bool
    #: Whether the finish completes the job with a result, without outputs and without new jobs.
    plain: bool


def prepare_finish(finish: Finish) -> PreparedFinish:
    if finish.kind != "complete":
        return PreparedFinish(finish, encode(finish.error) if finish.error is not None else None, (), False, False)
    if finish.next is None and not finish.adds and not finish.outputs:
        return PreparedFinish(finish, None, (), False, True)
    if finish.outputs:
        require_storable(f"an output of job {finish.job}", *finish.outputs, *finish.outputs.values())
    creates = (*finish.adds, finish.next) if finish.next is not None else finish.adds
    return PreparedFinish(finish, None, tuple(prepare(job) for job in creates), finish.next is not None, False)


class Finisher:
    """Applies the finishes of one exchange. It first collects the rows to write, for each SQL statement. `write` stores
    them, then releases or skips dependents and unparks jobs whose concurrency key became free.
    """

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._completed: list[tuple[Any, ...]] = []
        self._ended: list[tuple[Any, ...]] = []
        self._retried: list[tuple[Any, ...]] = []
        self._outputs: list[tuple[int, str, str]] = []
        #: Ended chains, whose dependents are released or skipped after the rows are written.
        self._ends: list[ChainEnd] = []
        #: Concurrency keys of ended jobs, whose parked jobs are unparked after the rows are written.
        self._freed_keys: list[str] = []

    def run(self, batch: Sequence[PreparedFinish], ids: str) -> list[Verdict]:
        changes = self._changes
        now = changes.now
        rows = {row[0]: row for row in changes.db.execute(FINISH["plain"], (ids, changes.space))}
        verdicts: list[Verdict] = []
        special: list[PreparedFinish] = []
        completed: dict[int, int] = {}
        uniform: dict[bytes, list[tuple[int, int]]] = {}
        for prepared in batch:
            finish = prepared.finish
            # The row is removed, so that a second finish of this job in the same exchange is found stale.
            row = rows.pop(finish.job, None)
            if row is None or row[3] != RUNNING or row[4] != finish.fence:
                verdicts.append("stale")
                continue
            verdicts.append("ok")
            _, num, kind, _, _, flags, keep = row
            if prepared.plain and not flags & END_HAS_EFFECTS:
                uniform.setdefault(finish.result, []).append((num, keep))
                completed[kind] = completed.get(kind, 0) + 1
            else:
                special.append(prepared)
        for kind, times in completed.items():
            changes.count_transition(kind, RUNNING, COMPLETED, times)
        for result, jobs in uniform.items():
            if len(jobs) < UNIFORM_MIN:
                self._completed += [(now, now + keep, "", result, num) for num, keep in jobs]
            else:
                changes.db.execute(FINISH["complete_all"], (now, result, json_text([num for num, _ in jobs])))
        if special:
            wanted = json_text([prepared.finish.job for prepared in special])
            records = {
                row[1]: JobRecord._make(row) for row in changes.db.execute(FINISH["records"], (changes.space, wanted))
            }
            for prepared in special:
                self._finish_one(records[prepared.finish.job], prepared)
                if prepared.creates:
                    _mark_awaited(records, prepared.creates)
        self.write()
        return verdicts

    def _finish_one(self, record: JobRecord, prepared: PreparedFinish) -> None:
        finish = prepared.finish
        error = prepared.error or record.error
        if finish.kind == "complete":
            self._complete(record, prepared)
        elif finish.kind == "cancel" or record.flags & CANCEL_REQUESTED:
            # A requested cancellation wins over a retry, snooze or release.
            self.end(record, CANCELLED, error, failure_reason(finish, record))
        elif finish.kind == "fail" or (finish.kind == "retry" and record.attempt > record.retries):
            self.end(record, FAILED, error, failure_reason(finish, record))
        elif finish.kind == "skip":
            self.end(record, SKIPPED, error, failure_reason(finish, record))
        elif finish.kind == "release":
            self.retry(record, record.due, record.attempt - 1, record.snoozes, error, failure_reason(finish, record))
        else:
            due = self._changes.now + max(0, finish.delay)
            snoozed = int(finish.kind == "snooze")
            self.retry(
                record, due, record.attempt - snoozed, record.snoozes + snoozed, error, failure_reason(finish, record)
            )

    def _complete(self, record: JobRecord, prepared: PreparedFinish) -> None:
        changes = self._changes
        now, finish, creates = changes.now, prepared.finish, prepared.creates
        if creates:
            self.write()  # the new jobs may wait for jobs that this exchange finished: store their states first
        follower = creates[-1].job.id if prepared.follows else ""
        self._completed.append(
            (now, retention_deadline(changes, record, COMPLETED), follower, finish.result, record.num)
        )
        if finish.outputs:
            self._outputs += [(record.num, key, value) for key, value in finish.outputs.items()]
        self._record_transition(record, COMPLETED, record.attempt, followed=bool(follower))
        if not follower:
            self._ends.append(ChainEnd(record, OUTCOME_OK, finish.result))
        if creates:
            self.write()
            if follower:
                continue_chain(changes, record)
            last = enqueue_created(changes, creates, record, follows=prepared.follows)
            if last is not None:
                finish_chains(changes, [ChainEnd(last, outcome_of(last.state, last.flags))])

    def end(self, record: JobRecord, state: int, error: bytes | None, why: str) -> None:
        """End a job without completing it: failed, cancelled or skipped."""
        self._ended.append(
            (state, self._changes.now, retention_deadline(self._changes, record, state), error, record.num)
        )
        self._record_transition(record, state, record.attempt, why)
        self._ends.append(ChainEnd(record, outcome_of(state, record.flags)))

    def retry(self, record: JobRecord, due: int, attempt: int, snoozes: int, error: bytes | None, why: str) -> None:
        """Make the job pending for another attempt, or scheduled if `due` is in the future."""
        state = SCHEDULED if due > self._changes.now else PENDING
        alarm = due if state == SCHEDULED else 0
        self._retried.append((state, alarm, due - record.priority * AGEING, due, attempt, snoozes, error, record.num))
        self._record_transition(record, state, attempt, why)

    def _record_transition(
        self, record: JobRecord, state: int, attempt: int, why: str = "", *, followed: bool = False
    ) -> None:
        self._changes.record_transition(
            record.num,
            record.id,
            record.kind,
            record.run,
            record.state,
            state,
            attempt,
            record.worker,
            why,
            soft=bool(record.flags & SOFT),
            followed=followed,
        )
        if record.ckey is not None:
            self._freed_keys.append(record.ckey)

    def write(self) -> None:
        changes = self._changes
        db = changes.db
        if self._completed:
            db.executemany(FINISH["complete"], self._completed)
            self._completed = []
        if self._ended:
            db.executemany(FINISH["end_job"], self._ended)
            self._ended = []
        if self._retried:
            db.executemany(FINISH["retry"], self._retried)
            self._retried = []
        if self._outputs:
            db.executemany(LOG["set_flag"], [(HAS_OUTPUTS, num) for num in {row[0] for row in self._outputs}])
            db.executemany(LOG["put_output"], self._outputs)
            self._outputs = []
        if self._ends:
            ends, self._ends = self._ends, []
            finish_chains(changes, ends)
        for key in self._freed_keys:
            unpark(changes, key)
        self._freed_keys = []


def _mark_awaited(records: dict[str, JobRecord], made: Sequence[PreparedJob]) -> None:
    """A finish has created jobs (`made`). If a new job waits for the chain of a job in `records`, set the flag AWAITED
    on that record. The records were read before the new jobs existed, and later finishes of this exchange still use
    them.
    """
    awaited = {chain for prepared in made for chain in prepared.job.after}
    if awaited:
        for id_, record in records.items():
            if (record.chain or id_) in awaited:
                records[id_] = record._replace(flags=record.flags | AWAITED)


def failure_reason(finish: Finish, record: JobRecord) -> str:
    """Return the reason that is stored with the event of the job's run: the message of the error that the worker
    reported or, without one, the reason of a requested cancellation.
    """
    if finish.error is not None:
        return finish.error.message
    if record.flags & CANCEL_REQUESTED and record.error is not None:
        return decode_failure(record.error).message
    return ""
