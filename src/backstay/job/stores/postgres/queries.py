"""Looking at jobs and queues."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from backstay.engine.base import Micros, Op, StoreOperation
from backstay.job.model import FINAL, Job, JobResult, Queue, StartRate, State
from backstay.job.stores.postgres.rows import CHAIN_WATCHED, WATCHED, Part, ask, whole
from backstay.job.stores.postgres.statements import readable
from backstay.job.stores.postgres.verbs import Verbs

#: A chain that goes on while one looks is looked at again, so often.
LOOKS = 20


class Queries(Verbs):
    """get, watch, list_jobs, results, queues, next_due."""

    def get(self, job: str) -> Op[Job | None]:
        def talk(*_: object) -> Part:
            (rows,) = yield whole(("get", {"space": self.namespace, "id": job}))
            jobs = yield from self.jobs(rows, commit=True)
            return jobs[0] if jobs else None

        return StoreOperation(talk, reads=True)

    def watch(self, job: str, *, chain: bool = False) -> Op[Job | None]:
        flag = CHAIN_WATCHED if chain else WATCHED

        def talk(*_: object) -> Part:
            rows: list[Any] = []
            for _nth in range(LOOKS):
                # A round trip inside a transaction comes first, so no other operation shares that transaction: it locks
                # one row only, and its commit may be asynchronous.
                found = yield from ask("chain_last" if chain else "get", {"space": self.namespace, "id": job})
                mine = {"space": self.namespace, "id": found[0][0] if found else job}
                # One write with its COMMIT: the row is not locked during a round trip, because claims skip it then.
                _marked, rows = yield whole(("watch", {**mine, "flag": flag}), ("get", mine))
                followed_by = rows[0][31] if rows else job
                if not chain or not found or not followed_by:
                    break
            jobs = yield from self.jobs(rows, commit=True)
            return jobs[0] if jobs else None

        return StoreOperation(talk)

    def list_jobs(
        self,
        *,
        state: State | None = None,
        queue: str = "",
        type: str = "",  # noqa: A002 - what it is called everywhere
        run: str = "",
        before: str = "",
        limit: int = 50,
    ) -> Op[list[Job]]:
        values = {
            "space": self.namespace,
            "state": state or "",
            "queue": queue,
            "type": type,
            "run": run,
            "before": before,
            "limit": limit,
        }
        if run:
            names = ["list_run"]
        elif state is None:
            names = ["list_live", "list_done"]
        elif state == "completed":
            names = ["list_done"]
        elif state in FINAL:
            names = ["list_few"]
        else:
            names = ["list_running" if state == "running" else "list_live"]

        def talk(*_: object) -> Part:
            answers = yield whole(*[(name, values) for name in names])
            rows = sorted((row for rows in answers for row in rows), key=lambda row: row[0], reverse=True)[:limit]
            return (yield from self.jobs(rows, commit=True))

        return StoreOperation(talk, reads=True)

    def results(self, run: str, *, before: str = "", limit: int = 1000) -> Op[list[JobResult]]:
        def answer(rows: list[Any]) -> list[JobResult]:
            return [JobResult(row[0], readable(row[1]), *row[2:]) for row in rows]

        return self.one("results", {"run": run, "before": before, "limit": limit}, answer, reads=True)

    def queues(self) -> Op[list[Queue]]:
        def answer(rows: list[Any]) -> list[Queue]:
            return [_queue(name, list(states)) for name, states in groupby(rows, key=lambda row: row[0])]

        return self.one("queues", {}, answer, reads=True)

    def next_due(self, shard: int) -> Op[Micros | None]:
        def answer(rows: list[Any]) -> Micros | None:
            ((next_in,),) = rows
            return None if next_in is None else max(0, next_in)

        return self.one("next_due", {}, answer, reads=True)


def _queue(name: str, rows: list[Any]) -> Queue:
    _, paused, interval, burst, *_, bucket = rows[0]
    rate = StartRate(bucket, interval, burst) if burst else None
    counts = {row[4]: row[5] for row in rows if row[4]}
    oldest = min((row[6] for row in rows if row[4] == "pending"), default=0)
    return Queue(name=name, paused=paused, rate=rate, oldest_due=oldest, **counts)
