"""The changes that one store operation makes. Every state transition of a job is recorded in `Changes`. It keeps the
job counts by kind, the jobs that became pending and the runs consistent with the job rows, and collects the messages
for the hub.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from backstay.engine.base import Micros, Wake
from backstay.hub.protocol import CHAIN_COMPLETED, OWNERSHIP_LOST, channel
from backstay.job.stores.sqlite.columns import COLUMNS, PENDING, RUNNING, json_text
from backstay.job.stores.sqlite.runs.run import EVENT_BITS, LEASE_EXPIRED, RUN, RunUpdate
from backstay.job.stores.sqlite.statements import load

SPACE = load("space")
KIND = load("kind")
#: The hub channel that announces the end of a job that a client waits for, if its chain has several jobs. The end of a
#: job that is the only one of its chain is announced as the end of the chain.
JOB_COMPLETED: Final = "jobc"
#: The hub channel that announces new events of a run.
EVENTS: Final = "events"
#: The hub channel that announces the end of a run.
RUN_ENDED: Final = "runc"


class Changes:
    """One store operation inside a transaction, on a connection of the engine or on the caller's own connection. It
    collects changes of counts and runs; `write` or `close` stores them.
    """

    __slots__ = ("_counts", "_event", "_fence", "_runs", "db", "now", "prefix", "ready", "space", "wakes")

    def __init__(
        self,
        db: sqlite3.Connection,
        namespace: str,
        prefix: str,
        now: Micros,
        wakes: list[Wake],
        *,
        reads: bool = False,
    ) -> None:
        self.db = db
        found = db.execute(SPACE["find"], (namespace,)).fetchone()
        if found is None and not reads:
            db.execute(SPACE["add"], (namespace,))
            found = db.execute(SPACE["find"], (namespace,)).fetchone()
        #: The number of the namespace. It is 0, a number that no row has, if the operation only reads and the namespace
        #: is not stored yet.
        self.space: int
        self._fence: int
        self._event: int
        self.space, self._fence, self._event = found or (0, 0, 0)
        self.prefix = prefix
        self.now = now
        self.wakes = wakes
        #: The jobs that became pending and were not claimed since: the number of each job's kind, by the job's row
        #: number.
        self.ready: dict[int, int] = {}
        self._counts: dict[int, list[int]] = {}
        #: Runs that were looked up, by id. None: the run is not stored.
        self._runs: dict[str, RunUpdate | None] = {}

    def count_transition(self, kind: int, old: int | None, new: int | None, times: int = 1) -> None:
        """Count a state change of `times` jobs of a kind. `old` is None for new, `new` is None for deleted jobs."""
        counts = self._counts.get(kind)
        if counts is None:
            counts = self._counts[kind] = [0] * len(COLUMNS)
        if old is not None:
            counts[old] -= times
        if new is not None:
            counts[new] += times

    def record_transition(
        self,
        num: int,
        id_: str,
        kind: int,
        run: str,
        old: int | None,
        new: int,
        attempt: int = 0,
        worker: str = "",
        why: str = "",
        *,
        soft: bool = False,
        followed: bool = False,
    ) -> None:
        """Record the state transition of one job: in the job counts, in `ready` and in the job's run.

        `num`: the job's row number. `id_`: its id. `kind`: the number of its kind. `run`: the id of its run; "": none.
        `old`, `new`: numbers of states; `old` is None for a new job. `attempt`, `worker` and `why` (the reason) become
        fields of the run's event. `soft`: the job's failure does not fail the run. `followed`: another job continues
        the chain of this job.
        """
        self.count_transition(kind, old, new)
        if new == PENDING:
            self.ready[num] = kind
        if run and (update := self.find_run(run)) is not None:
            update.count_transition(old, new, id_, attempt, worker, why, soft=soft, followed=followed)

    def find_run(self, id_: str) -> RunUpdate | None:
        """Return the RunUpdate that collects the changes of a run until `write`; None if the run is not stored."""
        if id_ not in self._runs:
            row = self.db.execute(RUN["find"], (self.space, id_)).fetchone()
            self._runs[id_] = RunUpdate(id_, row, self.now) if row is not None else None
        return self._runs[id_]

    @property
    def last_event(self) -> int:
        """The number of the last event stored in this namespace."""
        return self._event

    def add_run(self, run: RunUpdate) -> None:
        """Add a run that this operation creates, so that `write` stores its changes."""
        self._runs[run.id] = run

    def record_start(self, run: str, job: str, attempt: int, worker: str) -> None:
        """Record in a run that a worker claimed one of its jobs. The caller itself must count the transition in the
        counts by kind.
        """
        update = self.find_run(run)
        if update is not None:
            update.count_transition(PENDING, RUNNING, job, attempt, worker)

    def record_lease_expiry(self, run: str, job: str, attempt: int, worker: str, why: str) -> None:
        update = self.find_run(run) if run else None
        if update is not None:
            update.add_event(LEASE_EXPIRED, job, attempt, worker, why)

    def announce_chain_end(self, chain: str) -> None:
        self.wakes.append(Wake(channel(self.prefix, CHAIN_COMPLETED), chain))

    def announce_job_end(self, job: str) -> None:
        self.wakes.append(Wake(channel(self.prefix, JOB_COMPLETED), job))

    def announce_lease_lost(self, job: str) -> None:
        self.wakes.append(Wake(channel(self.prefix, OWNERSHIP_LOST), job))

    def allocate_fences(self, many: int) -> int:
        """Reserve `many` consecutive fences and return the first. It is at least the current time in µs and larger than
        every earlier fence. So fences grow even if the clock is set back or all jobs are deleted.
        """
        first = max(self.now, self._fence + 1)
        self._fence = first + many - 1
        self.db.execute(SPACE["set_fence"], (self._fence, self.space))
        return first

    def write_counts(self) -> None:
        """Store the counts by kind. Call it before a claim, which finds lanes with pending jobs by these counts."""
        changed = [(*counts, kind) for kind, counts in self._counts.items() if any(counts)]
        self._counts.clear()
        if changed:
            self.db.executemany(KIND["change_counts"], changed)

    def write(self) -> None:
        """Store the counts by kind and the changed runs with their events."""
        self.write_counts()
        if self._runs:
            self._write_runs()

    def close(self) -> dict[str, int]:
        """Call `write`. Then return how many jobs became pending and were not claimed since (`ready`), by type."""
        self.write()
        if not self.ready:
            return {}
        kinds = set(self.ready.values())
        types: dict[int, str] = dict(self.db.execute(KIND["types"], (json_text(sorted(kinds)),)))
        ready: dict[str, int] = {}
        for kind in self.ready.values():
            ready[types[kind]] = ready.get(types[kind], 0) + 1
        return ready

    def _write_runs(self) -> None:
        """Store the changed runs with their events, in the transaction that changes their jobs, and announce them."""
        before = self._event
        for update in self._runs.values():
            if update is None or not update.changed:
                continue
            ended = update.finish_if_done()
            written = update.write(self.db, (self.space << EVENT_BITS) + self._event)
            self._event += written
            if written:
                self.wakes.append(Wake(channel(self.prefix, EVENTS), f"{update.id}:{update.seq}"))
            if ended:
                self.wakes.append(Wake(channel(self.prefix, RUN_ENDED), update.id))
        self._runs.clear()
        if self._event != before:
            self.db.execute(RUN["set_last_event"], (self._event, self.space))
