"""Finish: attempts end, by whoever holds their leases. Anybody else's word is stale and changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from backstay.job.model import AGEING, Finish, Verdict
from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.columns import (
    AWAITED,
    CANCEL_WANTED,
    CANCELLED,
    COMPLETED,
    FAILED,
    HAS_OUTPUTS,
    PENDING,
    RUNNING,
    SCHEDULED,
    SKIPPED,
    SOFT,
    TOLD,
    WELL,
    Entry,
    decode_failure,
    encode,
    text_of,
)
from backstay.job.stores.sqlite.ending import FINISH, End, ended, goes_on, how_it_ended, stays, unpark
from backstay.job.stores.sqlite.enqueue import make
from backstay.job.stores.sqlite.prepared import Encoded, prepare, storable
from backstay.job.stores.sqlite.records.logs import LOG

#: From this many jobs with the same result on, one statement for all of them is cheaper.
ALIKE = 4


class Ending(NamedTuple):
    """A Finish with what can be made of it before the transaction begins."""

    finish: Finish
    error: bytes | None
    #: Jobs that are made in the same step; whether the last of them is the next of the chain.
    makes: tuple[Encoded, ...]
    follows: bool
    #: It completes, and leaves nothing but its result.
    plain: bool


def prepare_finish(finish: Finish) -> Ending:
    if finish.kind != "complete":
        return Ending(finish, encode(finish.error) if finish.error is not None else None, (), False, False)
    if finish.next is None and not finish.adds and not finish.outputs:
        return Ending(finish, None, (), False, True)
    if finish.outputs:
        storable(f"an output of job {finish.job}", *finish.outputs, *finish.outputs.values())
    makes = (*finish.adds, finish.next) if finish.next is not None else finish.adds
    return Ending(finish, None, tuple(prepare(job) for job in makes), finish.next is not None, False)


class Finishing:
    """One step's ends, gathered by what is written for them."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._completed: list[tuple[Any, ...]] = []
        self._ended: list[tuple[Any, ...]] = []
        self._again: list[tuple[Any, ...]] = []
        self._outputs: list[tuple[int, str, str]] = []
        #: What follows once the rows are written.
        self._ends: list[End] = []
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
            finish = ending.finish
            # Told twice in one step, the second word is stale.
            row = rows.pop(finish.job, None)
            if row is None or row[3] != RUNNING or row[4] != finish.fence:
                verdicts.append("stale")
                continue
            verdicts.append("ok")
            _, num, kind, _, _, flags, keep = row
            if ending.plain and not flags & TOLD:
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
                if ending.makes:
                    _await(entries, ending.makes)
        self.write()
        return verdicts

    def _one(self, entry: Entry, ending: Ending) -> None:
        finish = ending.finish
        error = ending.error or entry.error
        if finish.kind == "complete":
            self._complete(entry, ending)
        elif finish.kind == "cancel" or entry.flags & CANCEL_WANTED:
            # Whatever else its worker has to say of it: work that somebody wants ended does not come back.
            self.end(entry, CANCELLED, error, why_of(finish, entry))
        elif finish.kind == "fail" or (finish.kind == "retry" and entry.attempt > entry.retries):
            self.end(entry, FAILED, error, why_of(finish, entry))
        elif finish.kind == "skip":
            self.end(entry, SKIPPED, error, why_of(finish, entry))
        elif finish.kind == "release":
            self.again(entry, entry.due, entry.attempt - 1, entry.snoozes, error, why_of(finish, entry))
        else:
            due = self._changes.now + max(0, finish.delay)
            snoozed = int(finish.kind == "snooze")
            self.again(entry, due, entry.attempt - snoozed, entry.snoozes + snoozed, error, why_of(finish, entry))

    def _complete(self, entry: Entry, ending: Ending) -> None:
        changes = self._changes
        now, finish, makes = changes.now, ending.finish, ending.makes
        if makes:
            self.write()  # what is made sees everything before it as it is
        follower = makes[-1].job.id if ending.follows else ""
        self._completed.append((now, stays(changes, entry, COMPLETED), follower, finish.result, entry.num))
        if finish.outputs:
            self._outputs += [(entry.num, key, value) for key, value in finish.outputs.items()]
        self._left(entry, COMPLETED, entry.attempt, followed=bool(follower))
        if not follower:
            self._ends.append(End(entry, WELL, finish.result))
        if makes:
            self.write()
            if follower:
                goes_on(changes, entry)
            last = make(changes, makes, entry, follows=ending.follows)
            if last is not None:
                ended(changes, [End(last, how_it_ended(last.state, last.flags))])

    def end(self, entry: Entry, state: int, error: bytes | None, why: str) -> None:
        """It did not complete, and never will by itself."""
        self._ended.append((state, self._changes.now, stays(self._changes, entry, state), error, entry.num))
        self._left(entry, state, entry.attempt, why)
        self._ends.append(End(entry, how_it_ended(state, entry.flags)))

    def again(self, entry: Entry, due: int, attempt: int, snoozes: int, error: bytes | None, why: str) -> None:
        """Another attempt."""
        state = SCHEDULED if due > self._changes.now else PENDING
        alarm = due if state == SCHEDULED else 0
        self._again.append((state, alarm, due - entry.priority * AGEING, due, attempt, snoozes, error, entry.num))
        self._left(entry, state, attempt, why)

    def _left(self, entry: Entry, state: int, attempt: int, why: str = "", *, followed: bool = False) -> None:
        self._changes.entered(
            entry.num,
            entry.id,
            entry.kind,
            entry.run,
            entry.state,
            state,
            attempt,
            entry.worker,
            why,
            soft=bool(entry.flags & SOFT),
            followed=followed,
        )
        if entry.ckey is not None:
            self._keys.append(entry.ckey)

    def write(self) -> None:
        changes = self._changes
        db = changes.db
        if self._completed:
            db.executemany(FINISH["complete"], self._completed)
            self._completed = []
        if self._ended:
            db.executemany(FINISH["end"], self._ended)
            self._ended = []
        if self._again:
            db.executemany(FINISH["again"], self._again)
            self._again = []
        if self._outputs:
            db.executemany(LOG["flag"], [(HAS_OUTPUTS, num) for num in {row[0] for row in self._outputs}])
            db.executemany(LOG["put"], self._outputs)
            self._outputs = []
        if self._ends:
            ends, self._ends = self._ends, []
            ended(changes, ends)
        for key in self._keys:
            unpark(changes, key)
        self._keys = []


def _await(entries: dict[str, Entry], made: Sequence[Encoded]) -> None:
    """Jobs that were just made may wait for others that end in the same step, a moment later."""
    awaited = {chain for encoded in made for chain in encoded.job.after}
    if awaited:
        for id_, entry in entries.items():
            if (entry.chain or id_) in awaited:
                entries[id_] = entry._replace(flags=entry.flags | AWAITED)


def why_of(finish: Finish, entry: Entry) -> str:
    """What a run tells of an attempt's bad end: the worker's word, or why somebody wanted it."""
    if finish.error is not None:
        return finish.error.message
    if entry.flags & CANCEL_WANTED and entry.error is not None:
        return decode_failure(entry.error).message
    return ""
