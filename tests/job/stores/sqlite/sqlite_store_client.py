"""A client of a job store in a SQLite file, for tests of that store alone."""

from __future__ import annotations

import sqlite3

import msgspec

from backstay.engine.sqlite.engine import SqliteEngine
from backstay.job.run_model import NewRun
from backstay.job.stores.sqlite.store import SqliteStore
from support.store_client import StoreClient, finish

NOW = 1_700_000_000_000_000
NAMESPACE = "jobs"


class SqliteStoreClient(StoreClient):
    """A client with a clock that the test sets (`now`)."""

    def __init__(self, path):
        self.path = str(path)
        self.now = NOW
        engine = SqliteEngine(self.path, namespace=NAMESPACE, synchronous="off", clock=lambda: self.now)
        super().__init__(engine, SqliteStore(NAMESPACE, NAMESPACE), want=100)

    def not_after(self):
        return 2**60

    def start_run(self, graph, **options):
        """Start a run. `graph` has a job for each name: the names of its blockers, or a dict of its options. Returns
        the ids of the run and of its jobs by name.
        """
        run = self.ids.new(0)
        ids = {name: self.ids.new(0) for name in graph}
        jobs = []
        for name, value in graph.items():
            fields = value if isinstance(value, dict) else {"after": tuple(ids[blocker] for blocker in value)}
            jobs.append(self.job(id=ids[name], type=name, run=run, **fields))
        self.apply("start_run", NewRun(id=run, workflow="w", doc=b"doc", jobs=tuple(jobs), **options))
        return run, ids

    def drain(self):
        """Claim and complete jobs until none is left."""
        claimed = self.exchange().jobs
        while claimed:
            claimed = self.exchange([finish(job) for job in claimed]).jobs

    def rows(self, sql, *params):
        """Run a query on a separate connection."""
        with sqlite3.connect(self.path) as db:
            found = db.execute(sql, params).fetchall()
        db.close()
        return found

    def count_steps(self, op):
        """Apply an operation. Returns the steps of SQLite's virtual machine that it took, in tens, and its reply."""
        steps = 0

        def counted(db, now, wakes):
            def tick():
                nonlocal steps
                steps += 1
                return 0

            db.set_progress_handler(tick, 10)
            try:
                return op.work(db, now, wakes)
            finally:
                db.set_progress_handler(None, 10)

        reply = self.engine.apply(msgspec.structs.replace(op, work=counted))
        return steps, reply


def fan(width):
    """Return the graph of a run with one job, `width` jobs that wait for it, and one that waits for all of those."""
    middle = [f"m{n}" for n in range(width)]
    return {"first": [], **{name: ["first"] for name in middle}, "last": middle}
