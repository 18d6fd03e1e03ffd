"""Exchanges of workers with the model (reap, make due, finish, claim), lease renewals and enqueues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from backstay.engine.base import Micros
from backstay.hub.protocol import SCHEDULED, new_hint_id, write_scheduled
from backstay.job.exchange import (
    Claim,
    Claimed,
    Delivery,
    ExchangeCommand,
    ExchangeReply,
    Renewal,
    RenewalVerdict,
    Verdict,
)
from backstay.job.model import Enqueued, Failure, Finish, NewJob, StartRate
from support.job_model.row import Row
from support.job_model.transitions import CHAIN, Transitions, verb

#: The most expired leases and due jobs that one exchange processes before it finishes and claims jobs.
REAPS_PER_EXCHANGE, DUES_PER_EXCHANGE = 100, 1000


@dataclass
class ChannelState:
    """The last exchange of a worker channel and its reply, which a repeated command gets again."""

    seq: int
    verdicts: tuple[Verdict, ...]
    leases: tuple[tuple[str, int], ...]
    keep_until: Micros


class Exchanges(Transitions):
    """The operations enqueue, exchange, renew and reap."""

    def __init__(self, prefix: str = "model") -> None:
        super().__init__(prefix)
        self._fence = 0
        #: The time at which the token bucket of each rate is full again.
        self._rates: dict[tuple[str, str], Micros] = {}
        self._channels: dict[tuple[str, str, int], ChannelState] = {}
        self._paused: set[str] = set()
        self._limits: dict[str, StartRate] = {}

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
        channel_state = self._channels.get(key)
        if channel_state and channel_state.keep_until > self.now and command.seq <= channel_state.seq:
            return self._repeat_reply(command, channel_state)
        if command.not_after < self.now:
            return ExchangeReply(now=self.now, expired=True)
        self._reap(REAPS_PER_EXCHANGE)
        self._make_due(DUES_PER_EXCHANGE)
        verdicts: tuple[Verdict, ...] = tuple(self._finish(finish) for finish in command.finishes)
        jobs, rate_free = self._claim(command.worker, command.claim)
        leases = tuple((job.id, job.fence) for job in jobs)
        self._channels[key] = ChannelState(command.seq, verdicts, leases, self.now + 2 * command.claim.lease)
        return ExchangeReply(
            now=self.now,
            verdicts=verdicts,
            jobs=jobs,
            next_in=self._next_in(rate_free),
            ready=dict(Counter(self._ready.values())),
        )

    def _repeat_reply(self, command: ExchangeCommand, channel_state: ChannelState) -> ExchangeReply:
        if command.seq < channel_state.seq:
            return ExchangeReply(now=self.now, stale=True)
        rows = [row for id_, fence in channel_state.leases if (row := self._leased(id_, fence))]
        for row in rows:
            row.until = self.now + command.claim.lease
        jobs = tuple(row.claimed() for row in rows)
        return ExchangeReply(now=self.now, verdicts=channel_state.verdicts, jobs=jobs, next_in=self._next_in())

    def _finish(self, finish: Finish) -> Verdict:
        row = self._leased(finish.job, finish.fence)
        if row is None:
            return "stale"
        row.error = finish.error or row.error
        why = finish.error.message if finish.error else ""
        kind = finish.kind
        if row.cancel is not None and kind != "complete":
            kind = "cancel"  # a failed attempt of a cancelled job is not retried
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
                row.skipped_for_failure = False
                self._end(row, "skipped", why, row.worker)
            case "retry" | "snooze" | "release":
                if kind != "retry":
                    row.attempt -= 1
                if kind == "snooze":
                    row.snoozes += 1
                if kind != "release":
                    row.due = self.now + finish.delay
                self._make_waiting(row, why, row.worker)
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
        """Claim jobs. Also returns the time at which the first job that a rate held back may start."""
        claimed: list[Claimed] = []
        rate_free: list[Micros] = []
        for group in claim.queues:
            queues = set(group) - self._paused
            pending = [row for row in self._rows.values() if row.state == "pending" and row.new.queue in queues]
            for row in sorted(pending, key=lambda row: row.order):
                if len(claimed) >= claim.want:
                    break
                if not set(row.new.labels) <= set(claim.labels) or self._is_full(row):
                    continue
                free = max((self._free_at(key, rate) for key, rate in self._rates_of(row)), default=0)
                if free > self.now:
                    rate_free.append(free)
                    continue
                claimed.append(self._start(row, worker, claim.lease))
        return tuple(claimed), min(rate_free, default=None)

    def _is_full(self, row: Row) -> bool:
        mine = row.new.concurrency
        return mine is not None and mine.limit <= sum(
            other.state == "running" and other.new.concurrency is not None and other.new.concurrency.key == mine.key
            for other in self._rows.values()
        )

    def _rates_of(self, row: Row) -> Iterator[tuple[tuple[str, str], StartRate]]:
        if row.new.rate is not None:
            yield ("job", row.new.rate.bucket), row.new.rate
        if row.new.queue in self._limits:
            yield ("queue", row.new.queue), self._limits[row.new.queue]

    def _free_at(self, key: tuple[str, str], rate: StartRate) -> Micros:
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
        times = [row.due for row in self._rows.values() if row.state == "scheduled"]
        times += [row.until for row in self._rows.values() if row.state == "running"]
        if rate_free is not None:
            times.append(rate_free)
        return max(0, min(times) - self.now) if times else None

    @verb
    def renew(self, shard: int, worker: str, lease: Micros, leases: Sequence[Renewal]) -> list[RenewalVerdict]:
        return [self._renew(worker, renewal, lease) for renewal in leases]

    def _renew(self, worker: str, renewal: Renewal, lease: Micros) -> RenewalVerdict:
        row = self._leased(renewal.job, renewal.fence)
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
        expired = [row for row in self._rows.values() if row.state == "running" and row.until <= self.now]
        for row in sorted(expired, key=lambda row: row.until)[:limit]:
            self._announce("owls", row.new.id)
            row.error = Failure("LeaseExpired", f"{row.worker} went silent", attempt=row.attempt, at=self.now)
            why = row.error.message
            if run := self._runs.get(row.new.run):
                self._add_event(run, "lease_expired", row, why, row.worker)
            if row.cancel is not None:
                self._end(row, "cancelled", why, row.worker)
            elif row.attempt > row.new.retries:
                self._end(row, "failed", why, row.worker)
            else:
                self._make_waiting(row, why, row.worker)

    def _make_due(self, limit: int) -> None:
        due = [row for row in self._rows.values() if row.state == "scheduled" and row.due <= self.now]
        for row in sorted(due, key=lambda row: row.due)[:limit]:
            self._make_waiting(row)

    @verb
    def read_outbox(self, shard: int, limit: int = 1000) -> list[Delivery]:
        return []

    @verb
    def deliver(self, shard: int, deliveries: Sequence[Delivery]) -> dict[str, int]:
        return {}

    @verb
    def ack_deliveries(self, shard: int, deliveries: Sequence[Delivery]) -> None:
        return None
