"""Queries of jobs and queues in the model."""

from __future__ import annotations

from collections import Counter, defaultdict

from backstay.engine.base import Micros
from backstay.job.model import Job, JobResult, Queue, State
from support.job_model.exchanges import Exchanges
from support.job_model.row import Row
from support.job_model.transitions import CHAIN, THIS, verb


class Queries(Exchanges):
    """The queries get, watch, list_jobs, results, queues and next_due."""

    @verb
    def get(self, job: str) -> Job | None:
        row = self._rows.get(job)
        return row.view() if row else None

    @verb
    def watch(self, job: str, *, chain: bool = False) -> Job | None:
        row = self._rows.get(job)
        if chain:
            row = self._last(row.chain if row is not None else job)
        if row is None:
            return None
        row.watched |= CHAIN if chain else THIS
        return row.view()

    @verb
    def list_jobs(
        self,
        *,
        state: State | None = None,
        queue: str = "",
        type: str = "",  # noqa: A002 - the name in the store's contract
        run: str = "",
        before: str = "",
        limit: int = 50,
    ) -> list[Job]:
        rows = [
            row
            for row in self._rows.values()
            if state in (None, row.state)
            and queue in ("", row.new.queue)
            and type in ("", row.new.type)
            and run in ("", row.new.run)
            and (not before or row.new.id < before)
        ]
        return [row.view() for row in sorted(rows, key=lambda row: row.new.id, reverse=True)[:limit]]

    @verb
    def results(self, run: str, *, before: str = "", limit: int = 1000) -> list[JobResult]:
        rows = [row for row in self._rows.values() if row.new.run == run != "" and (not before or row.new.id < before)]
        jobs = [row.view() for row in sorted(rows, key=lambda row: row.new.id, reverse=True)[:limit]]
        return [JobResult(job.id, job.type, job.state, job.chain, job.followed_by, job.result) for job in jobs]

    @verb
    def queues(self) -> list[Queue]:
        by_queue: defaultdict[str, list[Row]] = defaultdict(list)
        for row in self._rows.values():
            by_queue[row.new.queue].append(row)
        return [
            Queue(
                name=name,
                paused=name in self._paused,
                rate=self._limits.get(name),
                oldest_due=min((row.due for row in by_queue[name] if row.state == "pending"), default=0),
                **Counter[str](row.state for row in by_queue[name]),
            )
            for name in sorted({*by_queue, *self._paused, *self._limits})
        ]

    @verb
    def next_due(self, shard: int) -> Micros | None:
        return self._next_in()
