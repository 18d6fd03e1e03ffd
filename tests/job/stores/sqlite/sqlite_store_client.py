"""A SQLite file with jobs, for tests of what is special to it."""

from __future__ import annotations

import sqlite3

import msgspec

from backstay.engine.sqlite.engine import SqliteEngine
from backstay.job.ids import Ids
from backstay.job.model import Claim, ExchangeCommand, Finish, NewJob
from backstay.job.stores.sqlite.store import SqliteStore

FAR = 2**60
NOW = 1_700_000_000_000_000
SPACE = "shop"


class SqliteStoreClient:
    """A file with jobs, a clock that stands still, and a worker."""

    def __init__(self, path):
        self.path = str(path)
        self.now = NOW
        self.engine = SqliteEngine(self.path, namespace=SPACE, synchronous="off", clock=lambda: self.now)
        self.store = SqliteStore(SPACE, SPACE)
        self.ids = Ids()
        self._seq = 0

    def job(self, **options):
        return NewJob(id=self.ids.new(0), **{"type": "t", **options})

    def ask(self, verb, *args, **options):
        return self.engine.apply(getattr(self.store, verb)(*args, **options))

    def add(self, **options):
        job = self.job(**options)
        self.ask("enqueue", 0, [job])
        return job.id

    def command(self, finishes=(), want=100, **claim):
        self._seq += 1
        return ExchangeCommand(
            shard=0,
            worker="w",
            incarnation="i",
            channel=0,
            seq=self._seq,
            finishes=tuple(finishes),
            claim=Claim(want=want, **claim),
            not_after=FAR,
        )

    def exchange(self, finishes=(), want=100, **claim):
        return self.ask("exchange", self.command(finishes, want, **claim))

    def rows(self, sql, *params):
        with sqlite3.connect(self.path) as db:
            found = db.execute(sql, params).fetchall()
        db.close()
        return found


def end(job, kind="complete", **options):
    return Finish(job=job.id, fence=job.fence, kind=kind, **options)


def work_of(shop, op):
    """How many steps of SQLite's machine an operation takes, in tens."""
    steps = 0

    def counted(db, now, wakes):
        nonlocal steps

        def tick():
            nonlocal steps
            steps += 1
            return 0

        db.set_progress_handler(tick, 10)
        try:
            return op.work(db, now, wakes)
        finally:
            db.set_progress_handler(None, 10)

    answer = shop.engine.apply(msgspec.structs.replace(op, work=counted))
    return steps, answer
