"""Operations that users call on jobs of the model: cancel, retry, purge, pause; and pruning of old jobs and runs."""

from __future__ import annotations

from collections.abc import Iterable

from backstay.errors import ConfigError
from backstay.job.model import FINAL, StartRate, State
from support.job_model.exchanges import Exchanges
from support.job_model.row import Row, RunRow
from support.job_model.transitions import verb

#: The states in which a job can be retried.
RETRYABLE: tuple[State, ...] = ("failed", "cancelled", "skipped")


class Admin(Exchanges):
    """The operations cancel, trigger, purge, pause, limit_queue and prune."""

    @verb
    def cancel(self, job: str, reason: str) -> State | None:
        row = self._rows.get(job)
        if row is None:
            return None
        if row.state == "running":
            self._request_cancel(row, reason)
        elif row.state not in FINAL:
            self._cancel(row, reason=reason)
        return row.state

    def _request_cancel(self, row: Row, reason: str) -> None:
        row.cancel = reason
        self._announce("owls", row.new.id)

    @verb
    def trigger(self, job: str) -> State | None:
        row = self._rows.get(job)
        if row is None or row.state not in ("scheduled", *RETRYABLE):
            return row.state if row else None
        run = self._runs.get(row.new.run)
        if run is not None and run.cancel is not None and not run.is_finished:
            return row.state
        ended = row.state in FINAL
        if run is not None and ended and self._would_be_skipped(row):
            return row.state
        row.due = self.now
        for chain in row.new.after:
            if (last := self._last(chain)) is not None and last.state not in FINAL:
                self._block_again(row, chain)
        self._restart(self._reopen([row], rerun=False) if ended else {row.new.id: row})
        return row.state

    def _would_be_skipped(self, row: Row) -> bool:
        """Whether a retry would skip the job again at once. A failed job had started, so its retry starts it again."""
        if row.state == "failed":
            return False
        ended = {chain for chain in row.new.after if (last := self._last(chain)) is None or last.state in FINAL}
        if row.new.when == "any_failure":
            return ended.issuperset(row.new.after) and not row.failed_blockers & ended
        return row.new.when == "all_success" and bool(row.unsuccessful & ended)

    def _reopen(self, ended: list[Row], *, rerun: bool) -> dict[str, Row]:
        """Return the jobs to restart: the given ones, and the dependents that were skipped only because of them.

        Each of these jobs is blocked again by those of its blockers that restart. A dependent that does not restart
        (another blocker failed, too) is also marked as blocked by them, for its own later retry. A job that is retried
        alone, not in a rerun, is not blocked by a chain that restarts because of it: neither would ever start.
        """
        reopened = {row.new.id: row for row in ended}
        alone = set() if rerun else set(reopened)
        found = list(ended)
        while found:
            chain = found.pop().chain
            for row in self._dependents[chain].values():
                if row.state not in RETRYABLE or row.upstream.get(chain, b"") is not None or row.new.id in alone:
                    continue
                self._block_again(row, chain)
                if row.state != "skipped" or row.new.id in reopened:
                    continue
                if row.new.when != "all_success" or not row.unsuccessful:
                    reopened[row.new.id] = row
                    found.append(row)
        return reopened

    def _restart(self, rows: dict[str, Row]) -> None:
        for row in rows.values():
            self._reset(row)
        for row in rows.values():
            self._make_waiting(row)

    def _reset(self, row: Row) -> None:
        row.attempt, row.finished, row.cancel, row.skipped_for_failure = 0, 0, None, False
        if row.state in FINAL:
            self._reclaim_key(row)

    def _block_again(self, row: Row, chain: str) -> None:
        row.upstream.pop(chain, None)
        row.unsuccessful.discard(chain)
        row.failed_blockers.discard(chain)
        row.waits.add(chain)

    def _reclaim_key(self, row: Row) -> None:
        """Give a restarted job its unique key again, unless another job holds that key now."""
        unique = row.new.unique
        if unique is not None and unique.scope != "window" and self._holder(unique) is None:
            self._unique[unique.key] = row.new.id, 0

    @verb
    def pause(self, queue: str, *, paused: bool) -> None:
        (self._paused.add if paused else self._paused.discard)(queue)

    @verb
    def limit_queue(self, queue: str, rate: StartRate | None) -> None:
        self._limits.pop(queue, None)
        if rate is not None:
            self._limits[queue] = rate

    # ── deletion ──

    @verb
    def purge(self, state: State, *, queue: str = "", limit: int = 1000) -> int:
        if state not in FINAL:
            raise ConfigError(f"{state} jobs have not ended; only {', '.join(FINAL)} can be purged")
        ended = [row for row in self._jobs_without_run() if row.state == state and queue in ("", row.new.queue)]
        return self._delete_oldest(ended, limit)

    @verb
    def prune(self, shard: int, keep: int, limit: int = 1000) -> int:
        expired = [row for row in self._jobs_without_run() if row.state in FINAL and row.keep_until <= self.now]
        completed = [row for row in self._jobs_without_run() if row.state == "completed" and row not in expired]
        completed.sort(key=lambda row: row.finished)
        deleted = self._delete_oldest(expired + completed[: max(0, len(completed) - keep)], limit)
        for run in self._expired_runs():
            if deleted >= limit:
                break
            deleted += 1 + len(run.jobs)
            self._delete(run.jobs)
            del self._runs[run.new.id]
            self._events = [(number, event) for number, event in self._events if event.run != run.new.id]
        return deleted

    def _jobs_without_run(self) -> Iterable[Row]:
        """Return the jobs that are deleted one by one. Jobs of a run are deleted with it."""
        return [row for row in self._rows.values() if row.new.run not in self._runs]

    def _expired_runs(self) -> list[RunRow]:
        expired = [run for run in self._runs.values() if run.is_finished and run.finished + run.new.keep <= self.now]
        return sorted(expired, key=lambda run: run.finished)

    def _delete_oldest(self, rows: list[Row], limit: int) -> int:
        oldest = sorted(rows, key=lambda row: row.finished)[:limit]
        self._delete(oldest)
        return len(oldest)

    def _delete(self, rows: Iterable[Row]) -> None:
        for row in rows:
            del self._rows[row.new.id]
            for chain in row.new.after:
                del self._dependents[chain][row.new.id]
