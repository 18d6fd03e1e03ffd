"""Finish: attempts end, by whoever holds their leases. Anybody else's word is stale and changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.job.model import AGEING, Finish, Verdict
from holdfast.job.sqlite.changes import Changes
from holdfast.job.sqlite.ending import FINISH, ended, goes_on, unpark
from holdfast.job.sqlite.enqueue import follow
from holdfast.job.sqlite.prepared import Encoded, prepare
from holdfast.job.sqlite.shape import (
    CANCEL_WANTED,
    CANCELLED,
    COMPLETED,
    FAILED,
    PENDING,
    RUNNING,
    SCHEDULED,
    TOLD,
    Entry,
    encode,
    text_of,
)

#: From this many jobs with the same result on, one statement for all of them is cheaper.
ALIKE = 4


class Ending(NamedTuple):
    """A Finish with what can be made of it before the transaction begins."""

    finish: Finish
    error: bytes | None
    next: Encoded | None


def prepare_finish(finish: Finish) -> Ending:
    return Ending(
        finish,
        encode(finish.error) if finish.error is not None else None,
        prepare(finish.next) if finish.next is not None else None,
    )


class Finishing:
    """One step's ends, gathered by what is written for them."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._completed: list[tuple[Any, ...]] = []
        self._ended: list[tuple[Any, ...]] = []
        self._again: list[tuple[Any, ...]] = []
        #: What follows once the rows are written: whose end it is, with which result, and which job comes next.
        self._after: list[tuple[Entry, bytes | None, Encoded | None]] = []
        self._keys: list[str] = []

    def run(self, endings: Sequence[Ending], ids: str) -> list[Verdict]:
        changes = self._changes
        now = changes.now
        rows = {row[0]: row for row in changes.db.execute(FINISH["plain"], (ids, changes.space))}
        verdicts: list[Verdict] = []
        special: list[Ending] = []
        completed: dict[int, int] = {}
        alike: dict[bytes, list[tuple[int, int]]] = {}
        for ending in endings:
            finish, _, follower = ending
            # Told twice in one step, the second word is stale.
            row = rows.pop(finish.job, None)
            if row is None or row[3] != RUNNING or row[4] != finish.fence:
                verdicts.append("stale")
                continue
            verdicts.append("ok")
            _, num, kind, _, _, flags, keep = row
            if finish.kind == "complete" and follower is None and not flags & TOLD:
                alike.setdefault(finish.result, []).append((num, keep))
                completed[kind] = completed.get(kind, 0) + 1
            else:
                special.append(ending)
        for kind, times in completed.items():
            changes.moved(kind, RUNNING, COMPLETED, times)
        for result, jobs in alike.items():
            if len(jobs) < ALIKE:
                self._completed += [(now, now + keep, "", result, num) for num, keep in jobs]
            else:
                changes.db.execute(FINISH["complete_all"], (now, result, text_of([num for num, _ in jobs])))
        if special:
            wanted = text_of([ending.finish.job for ending in special])
            entries = {
                row[1]: Entry._make(row) for row in changes.db.execute(FINISH["entries"], (changes.space, wanted))
            }
            for ending in special:
                self._one(entries[ending.finish.job], ending)
        self.write()
        return verdicts

    def _one(self, entry: Entry, ending: Ending) -> None:
        finish = ending.finish
        if finish.kind == "complete":
            self._complete(entry, finish.result, ending.next)
        elif finish.kind == "cancel" or entry.flags & CANCEL_WANTED:
            # Whatever else its worker has to say of it: work that somebody wants ended does not come back.
            self.end(entry, CANCELLED, ending.error or entry.error)
        elif finish.kind == "fail" or (finish.kind == "retry" and entry.attempt > entry.retries):
            self.end(entry, FAILED, ending.error or entry.error)
        elif finish.kind == "release":
            self.again(entry, entry.due, entry.attempt - 1, entry.snoozes, ending.error or entry.error)
        else:
            due = self._changes.now + max(0, finish.delay)
            snoozed = int(finish.kind == "snooze")
            self.again(entry, due, entry.attempt - snoozed, entry.snoozes + snoozed, ending.error or entry.error)

    def _complete(self, entry: Entry, result: bytes, follower: Encoded | None) -> None:
        now = self._changes.now
        self._completed.append(
            (now, now + entry.keep, follower.job.id if follower is not None else "", result, entry.num)
        )
        self._left(entry, COMPLETED)
        self._after.append((entry, result, follower))

    def end(self, entry: Entry, state: int, error: bytes | None) -> None:
        """It did not complete, and never will by itself."""
        now = self._changes.now
        keep = entry.keep_failed if state == FAILED else entry.keep
        self._ended.append((state, now, now + keep, error, entry.num))
        self._left(entry, state)
        self._after.append((entry, None, None))

    def again(self, entry: Entry, due: int, attempt: int, snoozes: int, error: bytes | None) -> None:
        """Another attempt."""
        state = SCHEDULED if due > self._changes.now else PENDING
        alarm = due if state == SCHEDULED else 0
        self._again.append((state, alarm, due - entry.priority * AGEING, due, attempt, snoozes, error, entry.num))
        self._left(entry, state)

    def _left(self, entry: Entry, state: int) -> None:
        self._changes.entered(entry.num, entry.id, entry.kind, entry.run, entry.state, state)
        if entry.ckey is not None:
            self._keys.append(entry.ckey)

    def write(self) -> None:
        changes = self._changes
        db = changes.db
        if self._completed:
            db.executemany(FINISH["complete"], self._completed)
        if self._ended:
            db.executemany(FINISH["end"], self._ended)
        if self._again:
            db.executemany(FINISH["again"], self._again)
        for entry, result, follower in self._after:
            if follower is None:
                ended(changes, entry, result)
                continue
            goes_on(changes, entry)
            skipped = follow(changes, follower, entry)
            if skipped is not None:
                ended(changes, skipped, None)
        for key in self._keys:
            unpark(changes, key)
