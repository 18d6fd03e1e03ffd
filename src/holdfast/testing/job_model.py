"""The job store as a plain Python object: what `holdfast.job.store.Store` means, readable in one sitting.

Everything is a dict and a loop, so nothing here is fast, and nothing survives the process. The conformance suite runs
on it first; a property test feeds it and each real store the same commands at the same times and demands the same
answers. One shard.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec

from holdfast.engine.base import Micros, Op, Wake, Within
from holdfast.errors import ConfigError
from holdfast.hub.wire import channel
from holdfast.job.model import (
    FINAL,
    Claim,
    Claimed,
    Delivery,
    Enqueued,
    Failure,
    Finish,
    Job,
    LogLine,
    NewJob,
    Queue,
    Rate,
    Renewal,
    RenewalVerdict,
    State,
    StepCommand,
    StepReply,
    Tick,
    Unique,
    Verdict,
    Worker,
)
from holdfast.testing.job_row import Row

P = ParamSpec("P")
T = TypeVar("T")

#: What one step does beside its own errand, at most.
STEP_REAPS, STEP_DUES = 100, 1000
DAY: Micros = 86_400_000_000
#: What `watched` is made of: somebody waits for this job; for its chain.
THIS, CHAIN = 1, 2


@dataclass
class Lane:
    """What a worker's lane was last answered."""

    seq: int
    verdicts: tuple[Verdict, ...]
    leases: tuple[tuple[str, int], ...]
    keep_until: Micros


def verb(method: Callable[Concatenate[ModelStore, P], T]) -> Callable[Concatenate[ModelStore, P], Op[T]]:
    """Makes an operation of a verb: it happens when the engine carries it out."""

    @functools.wraps(method)
    def ask(self: ModelStore, /, *args: P.args, **named: P.kwargs) -> Op[T]:
        return Within(functools.partial(method, self, *args, **named))

    return ask


class ModelStore:
    """All jobs of one shard."""

    shards = 1
    announces = False

    def __init__(self, prefix: str = "model") -> None:
        self.now: Micros = 0
        #: What was announced since somebody last looked.
        self.wakes: list[Wake] = []
        self._prefix = prefix
        self._rows: dict[str, Row] = {}
        self._fence = 0
        #: Who has a unique key, and until when (0: until it is given back).
        self._unique: dict[str, tuple[str, Micros]] = {}
        #: When a rate's bucket is as good as new.
        self._rates: dict[tuple[str, str], Micros] = {}
        self._lanes: dict[tuple[str, str, int], Lane] = {}
        self._paused: set[str] = set()
        self._limits: dict[str, Rate] = {}
        self._workers: dict[str, Worker] = {}
        self._ticks: dict[str, Micros] = {}
        #: Jobs that the verb under way made pending, with their types.
        self._ready: dict[str, str] = {}

    # ── work ──

    @verb
    def enqueue(self, shard: int, jobs: Sequence[NewJob]) -> list[Enqueued]:
        known = {id_ for id_, row in self._rows.items() if row.chain == id_}
        for new in jobs:
            missing = [chain for chain in new.after if chain not in known]
            if missing and new.id not in self._rows:
                raise ConfigError(f"job {new.id} waits for {missing[0]}, which does not exist")
            known.add(new.id)
        self._ready = {}
        return [self._enqueue(new) for new in jobs]

    def _enqueue(self, new: NewJob, watched: int = 0, *, follows: bool = False) -> Enqueued:
        """`follows`: the next of a chain, made by the step that ends the one before it, which must not be refused. Its
        unique key gives way if another has it, and an unknown blocker counts as one that failed.
        """
        if row := self._rows.get(new.id):
            return Enqueued(new.id, row.state)
        if new.unique is not None and (holder := self._holder(new.unique)):
            if not follows:
                return Enqueued(holder.new.id, holder.state, deduplicated=True)
            new = msgspec.structs.replace(new, unique=None)  # a chain goes on all the same
        if new.unique is not None:
            window = new.unique.scope == "window"
            self._unique[new.unique.key] = new.id, self.now + new.unique.window if window else 0
        row = Row(new, new.chain or new.id, self.now, new.due or self.now + new.delay, watched=watched)
        self._rows[new.id] = row
        for chain in new.after:
            if follows and chain not in self._rows:
                row.upstream[chain] = None
                continue
            last = self._last(chain)
            if last.state in FINAL:
                row.upstream[chain] = last.result if last.state == "completed" else None
            else:
                row.waits.add(chain)
        if new.when == "all_success" and None in row.upstream.values():
            self._end(row, "skipped")
        else:
            self._place(row)
        return Enqueued(new.id, row.state)

    def _holder(self, unique: Unique) -> Row | None:
        id_, until = self._unique.get(unique.key, ("", 0))
        return self._rows.get(id_) if not until or until > self.now else None

    def _last(self, chain: str) -> Row:
        row = self._rows[chain]
        while row.followed_by:
            row = self._rows[row.followed_by]
        return row

    def _place(self, row: Row) -> None:
        """Where a job belongs that neither runs nor has ended."""
        row.state = "blocked" if row.waits else "scheduled" if row.due > self.now else "pending"
        if row.state == "pending":
            self._ready[row.new.id] = row.new.type

    @verb
    def step(self, command: StepCommand) -> StepReply:
        key = command.worker, command.incarnation, command.lane
        lane = self._lanes.get(key)
        if lane and lane.keep_until > self.now and command.seq <= lane.seq:
            return self._again(command, lane)
        if command.not_after < self.now:
            return StepReply(now=self.now, expired=True)
        self._ready = {}
        self._reap(STEP_REAPS)
        self._make_due(STEP_DUES)
        verdicts: tuple[Verdict, ...] = tuple(self._finish(finish) for finish in command.finishes)
        jobs, rate_free = self._claim(command.worker, command.claim)
        leases = tuple((job.id, job.fence) for job in jobs)
        self._lanes[key] = Lane(command.seq, verdicts, leases, self.now + 2 * command.claim.lease)
        return StepReply(
            now=self.now,
            verdicts=verdicts,
            jobs=jobs,
            next_in=self._next_in(rate_free),
            ready=dict(Counter(self._ready.values())),
        )

    def _again(self, command: StepCommand, lane: Lane) -> StepReply:
        if command.seq < lane.seq:
            return StepReply(now=self.now, stale=True)
        rows = [row for id_, fence in lane.leases if (row := self._held(id_, fence))]
        for row in rows:
            row.until = self.now + command.claim.lease
        jobs = tuple(row.claimed() for row in rows)
        return StepReply(now=self.now, verdicts=lane.verdicts, jobs=jobs, next_in=self._next_in())

    def _held(self, job: str, fence: int) -> Row | None:
        row = self._rows.get(job)
        return row if row and row.state == "running" and row.fence == fence else None

    def _finish(self, finish: Finish) -> Verdict:
        row = self._held(finish.job, finish.fence)
        if row is None:
            return "stale"
        row.error = finish.error or row.error
        kind = finish.kind
        if row.cancel is not None and kind != "complete":
            kind = "cancel"  # it must not come back by its own failure
            row.error = finish.error or Failure("Cancelled", row.cancel, at=self.now)
        if kind == "retry" and row.attempt > row.new.retries:
            kind = "fail"
        if kind == "complete":
            row.result = finish.result
            if finish.next is not None:
                row.followed_by = finish.next.id
            self._end(row, "completed")
            if finish.next is not None:
                self._enqueue(msgspec.structs.replace(finish.next, chain=row.chain), row.watched & CHAIN, follows=True)
        elif kind == "fail":
            self._end(row, "failed")
        elif kind == "cancel":
            self._end(row, "cancelled")
        else:
            if kind != "retry":
                row.attempt -= 1
            if kind == "snooze":
                row.snoozes += 1
            if kind != "release":
                row.due = self.now + finish.delay
            self._place(row)
        return "ok"

    def _end(self, row: Row, state: State) -> None:
        """The one way into a final state."""
        row.state, row.finished = state, self.now
        row.keep_until = self.now + (row.new.keep_failed if state == "failed" else row.new.keep)
        self._ready.pop(row.new.id, None)
        if row.new.unique is not None and row.new.unique.scope != "window":
            self._free_key(row)
        goes_on = bool(row.followed_by)
        if row.watched & THIS and (goes_on or row.new.id != row.chain):
            self._announce("jobc", row.new.id)
        if goes_on:
            return
        if row.watched:
            self._announce("chainc", row.chain)
        result = row.result if state == "completed" else None
        for waiter in [waiter for waiter in self._rows.values() if row.chain in waiter.waits]:
            waiter.waits.discard(row.chain)
            waiter.upstream[row.chain] = result
            if waiter.state == "blocked":
                if result is None and waiter.new.when == "all_success":
                    self._end(waiter, "skipped")
                elif not waiter.waits:
                    self._place(waiter)

    def _free_key(self, row: Row) -> None:
        unique = row.new.unique
        if unique is not None and self._unique.get(unique.key, ("", 0))[0] == row.new.id:
            del self._unique[unique.key]

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
        row.state, row.worker, row.fence, row.until = "running", worker, self._fence, self.now + lease
        row.started, row.progress, row.cancel = self.now, 0.0, None
        row.attempt += 1
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
        self._ready = {}
        self._reap(limit)
        self._make_due(limit)
        return dict(Counter(self._ready.values()))

    def _reap(self, limit: int) -> None:
        over = [row for row in self._rows.values() if row.state == "running" and row.until <= self.now]
        for row in sorted(over, key=lambda row: row.until)[:limit]:
            self._announce("owls", row.new.id)
            row.error = Failure("LeaseExpired", f"{row.worker} went silent", attempt=row.attempt, at=self.now)
            if row.cancel is not None:
                self._end(row, "cancelled")
            elif row.attempt > row.new.retries:
                self._end(row, "failed")
            else:
                self._place(row)

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

    # ── by hand ──

    @verb
    def cancel(self, job: str, reason: str) -> State | None:
        row = self._rows.get(job)
        if row is None or row.state in FINAL:
            return row.state if row else None
        if row.state == "running":
            row.cancel = reason
            self._announce("owls", job)
            return "running"
        row.error = Failure("Cancelled", reason, at=self.now)
        self._end(row, "cancelled")
        return "cancelled"

    @verb
    def trigger(self, job: str) -> State | None:
        row = self._rows.get(job)
        if row is None or row.state not in ("scheduled", "failed", "cancelled", "skipped"):
            return row.state if row else None
        if row.state != "scheduled":
            self._hold_again(row)
            self._reopen(row.chain)
        row.attempt, row.due, row.finished, row.cancel = 0, self.now, 0, None
        self._place(row)
        return row.state

    def _reopen(self, chain: str) -> None:
        """Those that were skipped because of it, and of nothing else, wait for it again; and theirs for them."""
        for row in list(self._rows.values()):
            if row.state == "skipped" and row.upstream.get(chain, b"") is None:
                del row.upstream[chain]
                row.waits.add(chain)
                if None not in row.upstream.values():
                    row.state, row.finished = "blocked", 0
                    self._hold_again(row)
                    self._reopen(row.chain)

    def _hold_again(self, row: Row) -> None:
        """A job that comes back has its unique key again, unless another one has it by now."""
        unique = row.new.unique
        if unique is not None and unique.scope != "window" and self._holder(unique) is None:
            self._unique[unique.key] = row.new.id, 0

    @verb
    def purge(self, state: State, *, queue: str = "", limit: int = 1000) -> int:
        if state not in FINAL:
            raise ConfigError(f"{state} jobs have not ended; only {', '.join(FINAL)} can be purged")
        ended = [row for row in self._rows.values() if row.state == state and queue in ("", row.new.queue)]
        return self._delete(ended, limit)

    def _delete(self, rows: list[Row], limit: int) -> int:
        oldest = sorted(rows, key=lambda row: row.finished)[:limit]
        for row in oldest:
            del self._rows[row.new.id]
        return len(oldest)

    @verb
    def pause(self, queue: str, *, paused: bool) -> None:
        (self._paused.add if paused else self._paused.discard)(queue)

    @verb
    def limit_queue(self, queue: str, rate: Rate | None) -> None:
        self._limits.pop(queue, None)
        if rate is not None:
            self._limits[queue] = rate

    # ── looking ──

    @verb
    def get(self, job: str) -> Job | None:
        row = self._rows.get(job)
        return row.view() if row else None

    @verb
    def watch(self, job: str, *, chain: bool = False) -> Job | None:
        row = self._rows.get(job)
        if row is None:
            return None
        if chain:
            row = self._last(row.chain)
        row.watched |= CHAIN if chain else THIS
        return row.view()

    @verb
    def list_jobs(
        self,
        *,
        state: State | None = None,
        queue: str = "",
        type: str = "",  # noqa: A002 - what it is called everywhere
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

    # ── what jobs leave behind ──

    @verb
    def append_log(self, job: str, fence: int, lines: Sequence[tuple[Micros, str, str]], first: int) -> bool:
        row = self._held(job, fence) if fence else self._rows.get(job)
        if row is None:
            return False
        for seq, line in enumerate(lines, first):
            row.log.setdefault(seq, LogLine(seq, *line))
        return True

    @verb
    def read_log(self, job: str, after: int = 0, limit: int = 1000) -> list[LogLine]:
        log = self._rows[job].log if job in self._rows else {}
        return [log[seq] for seq in sorted(log) if seq > after][:limit]

    @verb
    def put_outputs(self, job: str, fence: int, outputs: dict[str, str]) -> bool:
        row = self._held(job, fence) if fence else self._rows.get(job)
        if row is None:
            return False
        row.outputs |= outputs
        return True

    @verb
    def get_outputs(self, job: str) -> dict[str, str]:
        return dict(self._rows[job].outputs) if job in self._rows else {}

    # ── workers, cron, tidiness ──

    @verb
    def beat(self, worker: Worker) -> None:
        known = self._workers.get(worker.id)
        registered = known.registered if known else self.now
        self._workers[worker.id] = msgspec.structs.replace(worker, registered=registered, beat=self.now)

    @verb
    def leave(self, worker: str) -> None:
        self._workers.pop(worker, None)

    @verb
    def workers(self) -> list[Worker]:
        heard = [worker for worker in self._workers.values() if worker.beat > self.now - DAY]
        return sorted(heard, key=lambda worker: worker.id)

    @verb
    def ticks(self, names: Sequence[str]) -> dict[str, Micros]:
        known = {name: self._ticks[name] for name in names if name in self._ticks}
        self._ticks |= {name: self.now for name in names if name not in known}
        return known

    @verb
    def tick(self, tick: Tick) -> bool:
        if self._ticks.get(tick.name, -1) >= tick.at:
            return False
        self._ticks[tick.name] = tick.at
        self._ready = {}
        self._enqueue(tick.job)
        return True

    @verb
    def prune(self, shard: int, keep: int, limit: int = 1000) -> int:
        past = [row for row in self._rows.values() if row.state in FINAL and row.keep_until <= self.now]
        completed = [row for row in self._rows.values() if row.state == "completed" and row not in past]
        completed.sort(key=lambda row: row.finished)
        return self._delete(past + completed[: max(0, len(completed) - keep)], limit)

    def _announce(self, name: str, payload: str) -> None:
        self.wakes.append(Wake(channel(self._prefix, name), payload))


class ModelEngine:
    """Carries out a model's operations, one after another, on a clock that is given."""

    def __init__(self, store: ModelStore, clock: Callable[[], Micros]) -> None:
        self._store = store
        self._clock = clock

    def apply(self, op: Op[T]) -> T:
        assert isinstance(op, Within)  # made by the model
        self._store.now = max(self._store.now, self._clock())
        answer: Any = op.work()
        return answer  # type: ignore[no-any-return]  # the operation says what it answers

    def submit(self, op: Op[T]) -> Awaitable[T]:
        async def answer() -> T:
            return self.apply(op)

        return answer()
