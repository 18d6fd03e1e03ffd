"""Runs in the model: many jobs that start together and share one event log."""

from __future__ import annotations

import msgspec

from backstay.errors import ConfigError
from backstay.job.model import FINAL
from backstay.job.run_model import LARGEST_RUN, EventPage, NewRun, Run, RunEvent, RunStatus
from support.job_model.admin import Admin
from support.job_model.row import RunRow
from support.job_model.transitions import verb


class Runs(Admin):
    """The operations start_run, cancel_run, rerun_failed, check_runs, and the queries of runs and events."""

    @verb
    def start_run(self, run: NewRun) -> Run:
        if row := self._runs.get(run.id):
            return row.view()
        self._check_run(run)
        row = RunRow(run, self.now, self.now + run.timeout if run.timeout else 0)
        self._runs[run.id] = row
        self._add_event(row, "run_created")
        for new in run.jobs:
            self._enqueue(new)
        self.finish_runs()
        return row.view()

    def _check_run(self, run: NewRun) -> None:
        if len(run.jobs) > LARGEST_RUN:
            raise ConfigError(f"run {run.id} has {len(run.jobs)} jobs; {LARGEST_RUN} is the most")
        for new in run.jobs:
            if new.run != run.id:
                raise ConfigError(f"job {new.id} is of run {new.run!r}, not of {run.id}")
            if new.unique is not None:
                raise ConfigError(f"job {new.id} of run {run.id} has a unique key: a run needs all of its jobs")
        self._check_blockers(run.jobs, set())

    @verb
    def get_run(self, run: str, *, doc: bool = True) -> Run | None:
        row = self._runs.get(run)
        if row is None:
            return None
        return row.view() if doc else msgspec.structs.replace(row.view(), doc=b"")

    @verb
    def list_runs(
        self, *, workflow: str = "", status: RunStatus | None = None, before: str = "", limit: int = 50
    ) -> list[Run]:
        rows = [
            row
            for row in self._runs.values()
            if workflow in ("", row.new.workflow)
            and status in (None, row.status)
            and (not before or row.new.id < before)
        ]
        newest = sorted(rows, key=lambda row: row.new.id, reverse=True)[:limit]
        return [msgspec.structs.replace(row.view(), doc=b"") for row in newest]

    @verb
    def cancel_run(self, run: str, reason: str) -> Run | None:
        row = self._runs.get(run)
        if row is None:
            return None
        self._cancel_run(row, reason)
        return row.view()

    def _cancel_run(self, run: RunRow, reason: str) -> None:
        if run.is_finished or run.cancel is not None:
            return
        run.cancel = reason
        self._add_event(run, "run_cancelling", why=reason)
        waiting = [row for row in run.jobs if row.state not in FINAL and row.state != "running"]
        for row in run.jobs:
            if row.state == "running":
                self._request_cancel(row, reason)
        self._cancel(*waiting, reason=reason)
        self.finish_runs()

    @verb
    def rerun_failed(self, run: str) -> Run | None:
        row = self._runs.get(run)
        if row is None:
            return None
        failed = [job for job in row.jobs if job.state in ("failed", "cancelled")] if row.is_finished else []
        reopened = self._reopen(failed, rerun=True)
        for job in failed:
            job.due = self.now
            # A retried job is blocked again by those of its blockers that are retried, too.
            for chain in job.new.after:
                if (last := self._last(chain)) is not None and last.new.id in reopened:
                    self._block_again(job, chain)
        self._restart(reopened)
        return row.view()

    @verb
    def check_runs(self, shard: int, limit: int = 100) -> list[str]:
        """Cancel runs past their deadline. Returns no corrected run: the model's counts cannot be wrong, since each
        transition updates them.
        """
        late = [run for run in self._runs.values() if 0 < run.deadline <= self.now]
        for run in [run for run in late if not run.is_finished and run.cancel is None][:limit]:
            self._cancel_run(run, "the run did not end before its deadline")
        return []

    # ── events ──

    @verb
    def run_events(self, run: str, after: int = 0, limit: int = 1000) -> list[RunEvent]:
        events = self._runs[run].events if run in self._runs else []
        return events[after : after + limit]

    @verb
    def events(self, shard: int, after: str = "", limit: int = 1000) -> EventPage:
        """Return a page of events of all runs. The cursor is the number of the last event on the page before."""
        first = self._event_count if after == "$" else int(after or 0)
        page = [(number, event) for number, event in self._events if number > first][:limit]
        return EventPage(tuple(event for _, event in page), str(page[-1][0] if page else first))
