"""What people do to jobs of the model: cancel, try again, delete; and how what has had its time goes."""

from __future__ import annotations

from collections.abc import Iterable

from backstay.errors import ConfigError
from backstay.job.model import FINAL, Rate, State
from support.job_model.exchanges import Exchanges
from support.job_model.row import Row, RunRow
from support.job_model.transitions import verb

#: Jobs that have ended, and may be tried again.
AGAIN: tuple[State, ...] = ("failed", "cancelled", "skipped")


class Admin(Exchanges):
    """cancel, trigger, purge, pause, limit_queue, prune."""

    @verb
    def cancel(self, job: str, reason: str) -> State | None:
        row = self._rows.get(job)
        if row is None:
            return None
        if row.state == "running":
            self._ask_to_end(row, reason)
        elif row.state not in FINAL:
            self._cancel(row, reason=reason)
        return row.state

    def _ask_to_end(self, row: Row, reason: str) -> None:
        row.cancel = reason
        self._announce("owls", row.new.id)

    @verb
    def trigger(self, job: str) -> State | None:
        row = self._rows.get(job)
        if row is None or row.state not in ("scheduled", *AGAIN):
            return row.state if row else None
        run = self._runs.get(row.new.run)
        if run is not None and run.cancel is not None and not run.is_finished:
            return row.state
        ended = row.state in FINAL
        if run is not None and ended and self._is_held_back(row):
            return row.state
        row.due = self.now
        for chain in row.new.after:
            if (last := self._last(chain)) is not None and last.state not in FINAL:
                self._wait_again(row, chain)
        self._bring_back(self._open_again([row]) if ended else {row.new.id: row})
        return row.state

    def _is_held_back(self, row: Row) -> bool:
        """Whether it would be skipped again at once. One that failed had its turn, and may have it again."""
        if row.state == "failed":
            return False
        over = {chain for chain in row.new.after if (last := self._last(chain)) is None or last.state in FINAL}
        if row.new.when == "any_failure":
            return over.issuperset(row.new.after) and not row.blame & over
        return row.new.when == "all_success" and bool(row.spoilt & over)

    def _open_again(self, ended: list[Row]) -> dict[str, Row]:
        """These, and what was skipped because of them and of nothing else. All who come back wait for those that come
        back with them. What stays as it ended waits for them, too: it may come back with another of its blockers, or
        be tried again itself.
        """
        back = {row.new.id: row for row in ended}
        found = list(ended)
        while found:
            chain = found.pop().chain
            for row in self._behind[chain].values():
                if row.state not in AGAIN or row.upstream.get(chain, b"") is not None:
                    continue
                self._wait_again(row, chain)
                if row.state != "skipped" or row.new.id in back:
                    continue
                if row.new.when != "all_success" or not row.spoilt:
                    back[row.new.id] = row
                    found.append(row)
        return back

    def _bring_back(self, rows: dict[str, Row]) -> None:
        for row in rows.values():
            self._begin_anew(row)
        for row in rows.values():
            self._place(row)

    def _begin_anew(self, row: Row) -> None:
        row.attempt, row.finished, row.cancel, row.blamed = 0, 0, None, False
        if row.state in FINAL:
            self._hold_again(row)

    def _wait_again(self, row: Row, chain: str) -> None:
        row.upstream.pop(chain, None)
        row.spoilt.discard(chain)
        row.blame.discard(chain)
        row.waits.add(chain)

    def _hold_again(self, row: Row) -> None:
        """A job that comes back has its unique key again, unless another one has it by now."""
        unique = row.new.unique
        if unique is not None and unique.scope != "window" and self._holder(unique) is None:
            self._unique[unique.key] = row.new.id, 0

    @verb
    def pause(self, queue: str, *, paused: bool) -> None:
        (self._paused.add if paused else self._paused.discard)(queue)

    @verb
    def limit_queue(self, queue: str, rate: Rate | None) -> None:
        self._limits.pop(queue, None)
        if rate is not None:
            self._limits[queue] = rate

    # ── deleting ──

    @verb
    def purge(self, state: State, *, queue: str = "", limit: int = 1000) -> int:
        if state not in FINAL:
            raise ConfigError(f"{state} jobs have not ended; only {', '.join(FINAL)} can be purged")
        ended = [row for row in self._loose() if row.state == state and queue in ("", row.new.queue)]
        return self._delete_oldest(ended, limit)

    @verb
    def prune(self, shard: int, keep: int, limit: int = 1000) -> int:
        past = [row for row in self._loose() if row.state in FINAL and row.keep_until <= self.now]
        completed = [row for row in self._loose() if row.state == "completed" and row not in past]
        completed.sort(key=lambda row: row.finished)
        gone = self._delete_oldest(past + completed[: max(0, len(completed) - keep)], limit)
        for run in self._past_runs():
            if gone >= limit:
                break
            gone += 1 + len(run.jobs)
            self._delete(run.jobs)
            del self._runs[run.new.id]
            self._events = [told for told in self._events if told[1].run != run.new.id]
        return gone

    def _loose(self) -> Iterable[Row]:
        """Jobs that go by themselves: those of a run go with it."""
        return [row for row in self._rows.values() if row.new.run not in self._runs]

    def _past_runs(self) -> list[RunRow]:
        past = [run for run in self._runs.values() if run.is_finished and run.finished + run.new.keep <= self.now]
        return sorted(past, key=lambda run: run.finished)

    def _delete_oldest(self, rows: list[Row], limit: int) -> int:
        oldest = sorted(rows, key=lambda row: row.finished)[:limit]
        self._delete(oldest)
        return len(oldest)

    def _delete(self, rows: Iterable[Row]) -> None:
        for row in rows:
            del self._rows[row.new.id]
            for chain in row.new.after:
                del self._behind[chain][row.new.id]
