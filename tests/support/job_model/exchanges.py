"""A worker's turn in the model: reap, make due, finish, claim; and keeping what is held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from backstay.engine.base import Micros
from backstay.hub.protocol import SCHEDULED, new_hint_id, write_scheduled
from backstay.job.model import (
    Claim,
    Claimed,
    Delivery,
    Enqueued,
    ExchangeCommand,
    ExchangeReply,
    Failure,
    Finish,
    NewJob,
    Rate,
    Renewal,
    RenewalVerdict,
    Verdict,
)
from support.job_model.row import Row
from support.job_model.transitions import CHAIN, Transitions, verb

#: What one step does beside its own errand, at most.
STEP_REAPS, STEP_DUES = 100, 1000


@dataclass
class Lane:
    """What a worker's lane was last answered."""

    seq: int
    verdicts: tuple[Verdict, ...]
    leases: tuple[tuple[str, int], ...]
    keep_until: Micros


class Exchanges(Transitions):
    """enqueue, step, renew, reap."""

    def __init__(self, prefix: str = "model") -> None:
        super().__init__(prefix)
        self._fence = 0
        #: When a rate's bucket is as good as new.
        self._rates: dict[tuple[str, str], Micros] = {}
        self._lanes: dict[tuple[str, str, int], Lane] = {}
        self._paused: set[str] = set()
        self._limits: dict[str, Rate] = {}

    @verb
    def enqueue(self, shard: int, jobs: Sequence[NewJob], *, announce: bool = False) -> list[Enqueued]:
        self._check_blockers(jobs, {id_ for id_, row in self._rows.items() if row.chain == id_})
        if announce:
            for kind in {new.type: None for new in jobs if new.starts_at_once}:
                self._announce(SCHEDULED, write_scheduled(new_hint_id(), kind))
        return [self._enqueue(new) for new in jobs]

    @verb
    def exchange(self, command: ExchangeCommand) -> ExchangeReply:
        key = command.worker, command.incarnation, command.channel
        lane = self._lanes.get(key)
        if lane and lane.keep_until > self.now and command.seq <= lane.seq:
            return self._again(command, lane)
        if command.not_after < self.now:
            return ExchangeReply(now=self.now, expired=True)
        self._reap(STEP_REAPS)
        self._make_due(STEP_DUES)
        verdicts: tuple[Verdict, ...] = tuple(self._finish(finish) for finish in command.finishes)
        jobs, rate_free = self._claim(command.worker, command.claim)
        leases = tuple((job.id, job.fence) for job in jobs)
        self._lanes[key] = Lane(command.seq, verdicts, leases, self.now + 2 * command.claim.lease)
        return ExchangeReply(
            now=self.now,
            verdicts=verdicts,
            jobs=jobs,
            next_in=self._next_in(rate_free),
            ready=dict(Counter(self._ready.values())),
        )

    def _again(self, command: ExchangeCommand, lane: Lane) -> ExchangeReply:
        if command.seq < lane.seq:
            return ExchangeReply(now=self.now, stale=True)
        rows = [row for id_, fence in lane.leases if (row := self._held(id_, fence))]
        for row in rows:
            row.until = self.now + command.claim.lease
        jobs = tuple(row.claimed() for row in rows)
        return ExchangeReply(now=self.now, verdicts=lane.verdicts, jobs=jobs, next_in=self._next_in())

    def _finish(self, finish: Finish) -> Verdict:
        row = self._held(finish.job, finish.fence)
        if row is None:
            return "stale"
        row.error = finish.error or row.error
        why = finish.error.message if finish.error else ""
        kind = finish.kind
        if row.cancel is not None and kind != "complete":
            kind = "cancel"  # it must not come back by its own failure
            row.error = finish.error or Failure("Cancelled", row.cancel, at=self.now)
            why = row.error.message
        if kind == "retry" and row.attempt > row.new.retries:
            kind = "fail"
        match kind:
            case "complete":
                self._complete(row, finish)
            case "fail":
                self._end(row, "failed", why, row.worker)
            case "cancel":
                self._end(row, "cancelled", why, row.worker)
            case "skip":
                row.blamed = False
                self._end(row, "skipped", why, row.worker)
            case "retry" | "snooze" | "release":
                if kind != "retry":
                    row.attempt -= 1
                if kind == "snooze":
                    row.snoozes += 1
                if kind != "release":
                    row.due = self.now + finish.delay
                self._place(row, why, row.worker)
        return "ok"

    def _complete(self, row: Row, finish: Finish) -> None:
        row.result = finish.result
        row.outputs |= finish.outputs
        if finish.next is not None:
            row.followed_by = finish.next.id
        self._end(row, "completed", worker=row.worker)
        for new in finish.adds:
            self._enqueue(msgspec.structs.replace(new, run=row.new.run), follows=True)
        if finish.next is not None:
            new = msgspec.structs.replace(finish.next, chain=row.chain, run=row.new.run)
            self._enqueue(new, row.watched & CHAIN, follows=True)

    def _claim(self, worker: str, claim: Claim) -> tuple[tuple[Claimed, ...], Micros | None]:
        """Jobs, and when the first rate that held one back lets it go."""
        taken: list[Claimed] = []
        rate_free: list[Micros] = []
        for group in claim.queues:
            queues = set(group) - self._paused
            pending = [row for row in self._rows.values() if row.state == "pending" and row.new.queue in queues]
            for row in sorted(pending, key=lambda row: row.order):
                if len(taken) >= claim.want:
                    break
                if not set(row.new.labels) <= set(claim.labels) or self._is_full(row):
                    continue
                free = max((self._free_at(key, rate) for key, rate in self._rates_of(row)), default=0)
                if free > self.now:
                    rate_free.append(free)
                    continue
                taken.append(self._start(row, worker, claim.lease))
        return tuple(taken), min(rate_free, default=None)

    def _is_full(self, row: Row) -> bool:
        mine = row.new.concurrency
        return mine is not None and mine.limit <= sum(
            other.state == "running" and other.new.concurrency is not None and other.new.concurrency.key == mine.key
            for other in self._rows.values()
        )

    def _rates_of(self, row: Row) -> Iterator[tuple[tuple[str, str], Rate]]:
        if row.new.rate is not None:
            yield ("job", row.new.rate.bucket), row.new.rate
        if row.new.queue in self._limits:
            yield ("queue", row.new.queue), self._limits[row.new.queue]

    def _free_at(self, key: tuple[str, str], rate: Rate) -> Micros:
        return self._rates.get(key, 0) - (rate.burst - 1) * rate.interval

    def _start(self, row: Row, worker: str, lease: Micros) -> Claimed:
        for key, rate in self._rates_of(row):
            self._rates[key] = max(self._rates.get(key, 0), self.now) + rate.interval
        self._fence = max(self._fence + 1, self.now)
        row.worker, row.fence, row.until = worker, self._fence, self.now + lease
        row.started, row.progress, row.cancel = self.now, 0.0, None
        row.attempt += 1
        self._move(row, "running", worker=worker)
        if row.new.unique is not None and row.new.unique.scope == "until_start":
            self._free_key(row)
        self._ready.pop(row.new.id, None)
        return row.claimed()

    def _next_in(self, rate_free: Micros | None = None) -> Micros | None:
        moments = [row.due for row in self._rows.values() if row.state == "scheduled"]
        moments += [row.until for row in self._rows.values() if row.state == "running"]
        if rate_free is not None:
            moments.append(rate_free)
        return max(0, min(moments) - self.now) if moments else None

    @verb
    def renew(self, shard: int, worker: str, lease: Micros, leases: Sequence[Renewal]) -> list[RenewalVerdict]:
        return [self._renew(worker, renewal, lease) for renewal in leases]

    def _renew(self, worker: str, renewal: Renewal, lease: Micros) -> RenewalVerdict:
        row = self._held(renewal.job, renewal.fence)
        if row is None or row.worker != worker:
            return "lost"
        row.until = self.now + lease
        if renewal.progress >= 0:
            row.progress = renewal.progress
        return "ok" if row.cancel is None else "cancelled"

    @verb
    def reap(self, shard: int, limit: int = 1000) -> dict[str, int]:
        self._reap(limit)
        self._make_due(limit)
        return dict(Counter(self._ready.values()))

    def _reap(self, limit: int) -> None:
        over = [row for row in self._rows.values() if row.state == "running" and row.until <= self.now]
        for row in sorted(over, key=lambda row: row.until)[:limit]:
            self._announce("owls", row.new.id)
            row.error = Failure("LeaseExpired", f"{row.worker} went silent", attempt=row.attempt, at=self.now)
            why = row.error.message
            if run := self._runs.get(row.new.run):
                self._tell(run, "lease_expired", row, why, row.worker)
            if row.cancel is not None:
                self._end(row, "cancelled", why, row.worker)
            elif row.attempt > row.new.retries:
                self._end(row, "failed", why, row.worker)
            else:
                self._place(row, why, row.worker)

    def _make_due(self, limit: int) -> None:
        due = [row for row in self._rows.values() if row.state == "scheduled" and row.due <= self.now]
        for row in sorted(due, key=lambda row: row.due)[:limit]:
            self._place(row)

    @verb
    def undelivered(self, shard: int, limit: int = 1000) -> list[Delivery]:
        return []

    @verb
    def deliver(self, shard: int, deliveries: Sequence[Delivery]) -> dict[str, int]:
        return {}

    @verb
    def delivered(self, shard: int, deliveries: Sequence[Delivery]) -> None:
        return None
