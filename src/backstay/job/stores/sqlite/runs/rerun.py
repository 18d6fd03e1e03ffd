"""Re-run failed: everything that did not go well in a run comes back in one step, and waits as it did at first."""

from __future__ import annotations

from collections import defaultdict

from backstay.job.run_model import Run
from backstay.job.stores.sqlite.admin import TRIGGER, again
from backstay.job.stores.sqlite.blockers import ENQUEUE
from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.columns import (
    ALL_DONE,
    ANY_FAILURE,
    BADLY,
    BLOCKED,
    FAILING,
    PENDING,
    SCHEDULED,
    SKIPPED,
    Entry,
    text_of,
)
from backstay.job.stores.sqlite.ending import FINISH
from backstay.job.stores.sqlite.runs import runs
from backstay.job.stores.sqlite.statements import load

RERUN = load("rerun_failed")


def rerun_failed(changes: Changes, id_: str) -> Run | None:
    run = changes.run(id_)
    if run is None:
        return None
    if run.is_over:
        failed = [Entry._make(row) for row in changes.db.execute(RERUN["failed"], (changes.space, id_))]
        if failed:
            _bring_back(changes, failed)
            changes.write()
    return runs.get(changes, id_)


def _bring_back(changes: Changes, failed: list[Entry]) -> None:
    back, heard = _coming_back(changes, failed)
    chains = {entry.chain or entry.id: entry.num for entry in back.values()}
    waits: list[tuple[int, str]] = [
        (num, chain)
        for num, chain, _ in changes.db.execute(RERUN["waits"], (text_of(list(back)),)).fetchall()
        if chain in chains
    ]
    # Whoever comes back waits for those of its blockers that come back, too. Whoever stays away for another reason does
    # so no longer because of them.
    changes.db.executemany(TRIGGER["wait_again"], [*waits, *heard])
    for entry in back.values():
        due = entry.due if entry.state == SKIPPED else changes.now
        if changes.db.execute(FINISH["waits"], (entry.num,)).fetchone() is not None:
            state = BLOCKED
        else:
            state = SCHEDULED if due > changes.now else PENDING
        again(changes, entry, state, due)
    # They may have begun to wait when it had ended, and nobody thought of it as waited for.
    changes.db.executemany(ENQUEUE["await"], [(chains[chain],) for chain in {chain for _, chain in [*waits, *heard]}])


def _coming_back(changes: Changes, failed: list[Entry]) -> tuple[dict[int, Entry], list[tuple[int, str]]]:
    """By number: these, and what was skipped because of them and of nothing else. And number and chain of all that did
    not go well behind them.
    """
    db, space = changes.db, changes.space
    back = {entry.num: entry for entry in failed}
    chains = {entry.chain or entry.id for entry in failed}
    spoilt: defaultdict[int, set[str]] = defaultdict(set)
    heard: list[tuple[int, str]] = []
    todo = list(failed)
    while todo:
        entry = todo.pop()
        ended_chain = entry.chain or entry.id
        rows = db.execute(TRIGGER["behind"], (space, ended_chain)).fetchall()
        found = [other for other in map(Entry._make, rows) if other.num not in back]
        heard += [(other.num, ended_chain) for other in found]
        unknown = text_of([other.num for other in found if other.num not in spoilt])
        for num, chain, ended in db.execute(RERUN["waits"], (unknown,)):
            if ended in (BADLY, FAILING):
                spoilt[num].add(chain)
        for other in found:
            if other.state != SKIPPED:  # of another run, or of none
                continue
            if other.flags & (ALL_DONE | ANY_FAILURE) or spoilt[other.num] <= chains:
                back[other.num] = other
                chains.add(other.chain or other.id)
                todo.append(other)
    return back, heard
