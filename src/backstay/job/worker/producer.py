"""The producer: decides when the worker acknowledges finished attempts and claims new jobs, in few round trips.

At the end of each event loop turn in which something changed, every free channel starts one exchange: it acknowledges
the finished attempts of its shard and claims as many jobs as there are free slots. An idle worker thus acknowledges at
once, a busy one in batches. After a claim that returned fewer jobs than it asked for, the worker claims from that shard
again only after an announcement, when the shard's next job is due (`next_in`), or after the poll interval.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from backstay.engine.base import steady
from backstay.errors import Closed
from backstay.job.exchange import Claim, DirectHandoff, ExchangeReply, WaitingClaimSpec
from backstay.job.model import Failure, Finish
from backstay.job.worker.channel import WorkerChannel, WorkerIdentity
from backstay.job.worker.claim_size import ClaimSizer
from backstay.job.worker.clock_watch import ClockWatch
from backstay.job.worker.shard_state import MANY, ShardState
from backstay.job.worker.waiting_claim import WaitingClaim

if TYPE_CHECKING:
    from backstay.job.store import Store
    from backstay.job.worker.execution.attempt import Attempt
    from backstay.job.worker.prefetch import Prefetcher
    from backstay.job.worker.slots import QueueOrder, Slots
    from backstay.runtime.core import Core

log = logging.getLogger("backstay")

#: Seconds between polls of an idle worker, with or without announcements. Together with its heartbeat, its check of
#: runs and the hub's ping, an idle worker sends less than one command a second.
POLL = 2.5
#: With short leases the poll interval equals the lease, but is never shorter than this.
SHORTEST_POLL = 1.0
#: Seconds between polls of a worker without free slots: they still reap expired leases, whose jobs other workers run.
FULL_POLL = 5.0
#: A claim names at most this many announcement counters; after more announcements, the worker claims without them.
MOST = 20
#: Seconds after which `poll_soon` polls, so that several calls cause one poll.
SOON = 0.1


class Producer:
    """Schedules the worker's exchanges with its shards. All methods run on the event loop."""

    def __init__(
        self,
        core: Core,
        store: Store,
        identity: WorkerIdentity,
        slots: Slots,
        order: QueueOrder,
        *,
        labels: tuple[str, ...],
        lease: float,
        prefetcher: Prefetcher,
        start: Callable[[ExchangeReply, int, float], None],
        on_acknowledged: Callable[[list[Attempt], ExchangeReply, int], None],
    ) -> None:
        self._core = core
        self._slots = slots
        self._order = order
        self._labels = labels
        self._lease = int(lease * 1_000_000)
        self._prefetcher = prefetcher
        self._start = start
        self._on_acknowledged = on_acknowledged
        self._loop = asyncio.get_running_loop()
        self._sizer = ClaimSizer(store, slots, prefetcher)
        self.shards = [
            ShardState(
                n,
                [
                    WorkerChannel(core, store, identity, n, channel, partial(self._on_late_handoff, n))
                    for channel in range(store.channels_per_shard)
                ],
            )
            for n in range(store.shards)
        ]
        self._clocks = [ClockWatch(core.telemetry, n) for n in range(store.shards)]
        #: Seconds between polls of one shard: longer with several shards, so that all of them together are polled about
        #: as often as one, but at most a third of a lease, so that expired leases are reaped in time.
        poll = min(POLL, max(SHORTEST_POLL, lease))
        self._poll = poll * max(1.0, min(float(store.shards), lease / 3 / poll))
        self.waiting_claim = WaitingClaim(core, order, poll=self._poll, lease=lease)
        self._flush_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = MANY
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle_waiter: asyncio.Future[None] | None = None
        self._next_shard = 0
        self.claiming = True
        #: Called when no handler runs and no shard has further jobs for this worker.
        self.on_exhausted: Callable[[], None] | None = None
        #: Called after every flush.
        self.on_change: Callable[[], None] | None = None
        #: Called when the Backstay was closed while the worker ran.
        self.on_closed: Callable[[], None] | None = None
        self._closed = False
        #: Whether attempts were acknowledged since the last poll of all shards: they may have made jobs pending in any
        #: shard.
        self._recheck_needed = False
        #: Outbox deliveries under way to other shards, where they may make jobs pending.
        self._deliveries: set[asyncio.Task[None]] = set()
        #: Exchanges started so far, without those that the store denied (`ExchangeReply.denied`).
        self.exchanges = 0

    # ── events ──

    def begin(self) -> None:
        """Start claiming from every shard."""
        self.schedule_flush()

    def finish(self, attempt: Attempt) -> None:
        """Queue a finished attempt for acknowledgement; `attempt.finish` is its outcome."""
        self.shards[attempt.shard].finished.append(attempt)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def schedule_flush(self) -> None:
        """Run `_flush` at the end of this event loop turn."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def expect_jobs(self, count: int) -> None:
        """Record that about `count` jobs became pending; it is not known in which shard."""
        for shard in self.shards:
            shard.announced = True
            shard.hints_only = shard.hints_only or not shard.expected
            shard.expected += count
        self.schedule_flush()

    def on_announcement(self, hint: str) -> None:
        """Claim announced jobs; the claim itself takes from the announcement's counter. Unless a flush is already
        scheduled, claim at once, without waiting for the end of the event loop turn.
        """
        if self.spare_capacity() <= 0:
            self.mark_dirty()
            return
        for shard in self.shards:
            shard.announced = True
            shard.hints_only = shard.hints_only or not shard.expected
            shard.expected = max(shard.expected, self._sizer.poll_size)
            if len(shard.hints) >= MOST:
                self._mark_for_poll(shard)
            elif shard.hints_only:
                shard.hints.append(hint)
        if self._flush_scheduled:
            return
        self._flush()

    def on_handoff(self, handoff: DirectHandoff) -> None:
        """Start a job that an enqueue handed to this worker's waiting claim."""
        for shard in self.shards:
            for channel in shard.channels:
                if channel.accept_handoff(handoff):
                    self._start(handoff.reply, shard.number, channel.claim_sent_at)
                    return

    def _on_late_handoff(self, shard: int, reply: ExchangeReply, sent: float) -> None:
        """Start the jobs of a handoff that came with the reply to a later exchange, because its message was lost, or
        whose message came during an exchange.
        """
        if reply.jobs:
            self._start(reply, shard, sent)

    def track_delivery(self, delivery: asyncio.Task[None]) -> None:
        """Track an outbox delivery to other shards: the jobs it unblocks there can be claimed when it is done."""
        self._deliveries.add(delivery)
        delivery.add_done_callback(self._on_delivered)

    def _on_delivered(self, delivery: asyncio.Task[None]) -> None:
        self._deliveries.discard(delivery)
        if self.claiming:
            self._recheck_needed = True
            self.schedule_flush()

    def stop_claiming(self) -> None:
        """Stop claiming and withdraw waiting claims."""
        self.claiming = False
        self.schedule_flush()

    def spare_capacity(self) -> int:
        """Return the number of free slots that no expected job will fill."""
        return int(max(0, self._slots.free - max(shard.expected for shard in self.shards)))

    def mark_dirty(self) -> None:
        """Record that jobs became pending while no slot was free: poll every shard once a slot is free. Otherwise the
        worker would claim only from the shard of the job that finished, and jobs in other shards would wait for the
        next poll.
        """
        for shard in self.shards:
            shard.announced = True
            self._mark_for_poll(shard)

    def poll_soon(self) -> None:
        """Poll every shard within SOON seconds: there may be a job for this worker, but it is too unlikely for an
        immediate claim.
        """
        at = steady() + SOON
        for shard in self.shards:
            shard.poll_at = min(shard.poll_at, at)
        self._arm_timer(at)

    def poll_all(self) -> None:
        """Poll every shard at the end of this event loop turn."""
        for shard in self.shards:
            shard.announced = True
            self._mark_for_poll(shard)
        self.schedule_flush()

    def _mark_for_poll(self, shard: ShardState) -> None:
        """Make the next exchange with this shard claim any jobs, not only announced ones."""
        shard.expected = max(shard.expected, self._sizer.poll_size)
        shard.hints_only = False
        shard.hints.clear()

    @property
    def is_exhausted(self) -> bool:
        """Whether every attempt is acknowledged, no exchange is under way, and no shard has further jobs."""
        under_way = self._flush_scheduled or bool(self._deliveries)
        return not under_way and all(
            shard.is_idle and not shard.expected and not shard.has_locked_jobs for shard in self.shards
        )

    @property
    def unreachable_since(self) -> float:
        """Since when (monotonic clock) the engine does not answer; 0 while it does."""
        return min(
            (
                channel.unreachable_since
                for shard in self.shards
                for channel in shard.channels
                if channel.unreachable_since
            ),
            default=0.0,
        )

    async def wait_idle(self) -> None:
        """Wait until every finished attempt is acknowledged and no exchange is under way."""
        while self._flush_scheduled or not all(shard.is_idle for shard in self.shards):
            self._idle_waiter = self._loop.create_future()
            await self._idle_waiter

    async def close(self) -> None:
        """Cancel the exchanges under way. Safe to call twice."""
        self.claiming = False
        self._prefetcher.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # ── exchanges ──

    def _flush(self) -> None:
        """Start an exchange on every free channel that has attempts to acknowledge or jobs to claim."""
        self._flush_scheduled = False
        slots, shards = self._slots, self.shards
        if slots.prefetched:
            if self.claiming:
                self._prefetcher.start_waiting()
            else:
                self._prefetcher.release_waiting()
        if self._closed:
            for shard in shards:
                shard.finished.clear()
                shard.suspects.clear()
        share = self._sizer.share(shards)
        start = self._next_shard
        self._next_shard = (start + 1) % len(shards)
        for offset in range(len(shards)):
            shard = shards[(start + offset) % len(shards)]
            for channel in self._channels_in_order(shard):
                if channel.busy:
                    continue
                if channel.waiting_seq and not (self.claiming or self._closed or shard.finished):
                    self._send(shard, channel, [], 0)
                    continue
                if shard.suspects:
                    self._send(shard, channel, [shard.suspects.pop()], 0)
                    continue
                if self._sizer.splits_traffic(shard):
                    self._send_split(shard, channel)
                    continue
                slots.prefetch = 0
                want = self._claim_size(shard, share)
                if not shard.finished and not want:
                    break
                self._send(shard, channel, shard.take_batch(), want)
        if self._idle_waiter is not None and not self._idle_waiter.done() and all(shard.is_idle for shard in shards):
            self._idle_waiter.set_result(None)
        if self.on_change is not None:
            self.on_change()
        if self.on_exhausted is not None and not self._slots.busy and self.is_exhausted:
            if self._recheck_needed and self.claiming:
                self._recheck_needed = False
                self.poll_all()
            else:
                self.on_exhausted()

    def _channels_in_order(self, shard: ShardState) -> list[WorkerChannel]:
        """Return the shard's channels, the one with a waiting claim first: its exchange withdraws that claim. If
        another channel claimed first, a job already handed to the waiting claim might find no free slot.
        """
        channels = shard.channels
        return (
            channels
            if not any(channel.waiting_seq for channel in channels)
            else sorted(channels, key=lambda channel: not channel.waiting_seq)
        )

    def _can_leave_claim(self, shard: ShardState, channel: WorkerChannel) -> bool:
        """Whether this channel's claim may wait in the shard: no handler runs and no other exchange is under way."""
        if self._slots.busy or self.on_exhausted is not None:
            return False
        return all(not each.busy or each is channel for each in shard.channels)

    def _send_split(self, shard: ShardState, channel: WorkerChannel) -> None:
        """Claim on one channel and acknowledge on the other, so that neither waits for the other at the server."""
        under_way = [other.want for other in shard.channels if other.busy]
        self._sizer.set_prefetch_limit(shard)
        want = self._claim_size(shard, self._sizer.split_share())
        if want and not any(under_way):
            self._send(shard, channel, [], want)
        elif shard.finished and all(under_way):
            self._send(shard, channel, shard.take_batch(), 0)

    def _claim_size(self, shard: ShardState, share: int) -> int:
        return self._sizer.size(shard, share) if self.claiming else 0

    def _send(self, shard: ShardState, channel: WorkerChannel, batch: list[Attempt], want: int) -> None:
        channel.busy = True
        channel.want = want
        channel.hints = tuple(shard.hints) if shard.hints_only and not batch else ()
        channel.polls = not shard.hints_only or want < shard.expected or len(channel.hints) < len(shard.hints)
        shard.hints.clear()
        spec = self.waiting_claim.spec() if want and self._can_leave_claim(shard, channel) else None
        if want and not channel.hints:
            # This claim is the poll that was scheduled. Polls that are scheduled while it is under way stay.
            shard.poll_at = steady() + self._poll
            self._arm_timer(shard.poll_at)
        if shard.expected != MANY:
            shard.expected = max(0, shard.expected - want)
        shard.announced = False
        self._slots.requested += want
        self.exchanges += 1
        task = self._loop.create_task(self._exchange(shard, channel, batch, spec))
        self._tasks.add(task)
        task.add_done_callback(self._on_exchange_done)

    async def _exchange(
        self, shard: ShardState, channel: WorkerChannel, batch: list[Attempt], spec: WaitingClaimSpec | None
    ) -> None:
        want = channel.want
        claim = Claim(
            want=want,
            queues=self._order.draw(),
            labels=self._labels,
            lease=self._lease,
            hints=channel.hints,
            waiting=spec,
        )
        try:
            finishes = [attempt.finish for attempt in batch if attempt.finish is not None]
            reply, sent = await channel.exchange(finishes, claim)
        except asyncio.CancelledError:
            raise
        except Closed:
            self._on_closed()
            return
        except Exception as error:  # noqa: BLE001 - one outcome that the store refuses must not stop the worker
            self._on_refused(shard, batch, error)
            return
        finally:
            channel.busy = False
            self._slots.requested -= want
        self._clocks[shard.number].observe(reply.now)
        jobs = len(reply.jobs)
        self._recheck_needed = self._recheck_needed or bool(batch)
        if jobs >= want > 0:
            if channel.polls:
                shard.expected = MANY
            shard.hints += channel.hints  # their counters may allow more jobs
            if channel.hints and not shard.expected:
                shard.expected, shard.hints_only = self._sizer.poll_size, True
        elif want:
            shard.expected = self._sizer.poll_size if shard.announced else 0
            shard.hints_only = shard.hints_only and bool(shard.hints)
        if reply.denied:  # the store did not search, so the scheduled poll stays
            self.exchanges -= 1
        else:
            self._schedule_poll(shard, reply.next_in, want, jobs)
        try:
            self._on_acknowledged(batch, reply, shard.number)
        finally:
            if reply.jobs:
                shard.serves_runs = bool(reply.jobs[-1].run)
                if self._sizer.split_from:
                    shard.has_last_attempts = any(job.attempt > job.retries for job in reply.jobs)
                    self._sizer.set_prefetch_limit(shard)
                self._claim_ahead(shard, channel, jobs)
                self._start(reply, shard.number, sent)
            self.schedule_flush()

    def _claim_ahead(self, shard: ShardState, channel: WorkerChannel, jobs: int) -> None:
        """With a backlog, claim for the remaining slots before these jobs start: the server searches while they run."""
        if (
            not self._sizer.split_from
            or shard.serves_runs
            or shard.expected != MANY
            or any(other.want for other in shard.channels if other.busy)
        ):
            return
        self._slots.busy += jobs  # count the slots that these jobs are about to take
        want = self._claim_size(shard, self._sizer.split_share())
        if want >= self._sizer.split_from:
            self._send(shard, channel, [], want)
        self._slots.busy -= jobs

    def _on_closed(self) -> None:
        """Stop: the Backstay was closed while the worker ran, so nothing can be acknowledged any more."""
        self.claiming = False
        self._closed = True
        if self.on_closed is not None:
            self.on_closed()
        self.schedule_flush()

    def _on_exchange_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("an exchange failed unexpectedly", exc_info=error)
            self.schedule_flush()

    def _on_refused(self, shard: ShardState, batch: list[Attempt], error: Exception) -> None:
        """Handle an exchange that the store rejects: with several outcomes in it, send each alone; a single rejected
        outcome becomes a failure of its job.
        """
        log.error("the store rejected an exchange: %s: %s", type(error).__name__, error)
        shard.expected = 0
        shard.poll_at = steady() + self._poll
        self._arm_timer(shard.poll_at)
        if len(batch) > 1:
            shard.suspects += batch
            self.schedule_flush()
            return
        for attempt in batch:
            finish = attempt.finish
            if finish is None or (finish.kind == "fail" and finish.next is None):
                self._slots.leased.pop(attempt.job.id, None)  # nothing more to try: its lease expires
                continue
            failure = Failure(
                type(error).__name__, f"its outcome could not be stored: {error}", "", attempt.job.attempt
            )
            attempt.finish = Finish(job=finish.job, fence=finish.fence, kind="fail", error=failure)
            shard.finished.append(attempt)
        self.schedule_flush()

    # ── polling ──

    def _schedule_poll(self, shard: ShardState, next_in: int | None, want: int, jobs: int) -> None:
        now = steady()
        pause = self._poll if want or self._slots.free > 0 else FULL_POLL
        pause = min(pause, shard.delay_until_due(next_in, jobs))
        # The reply to another channel's exchange may have scheduled an earlier poll, for a job that was locked then.
        shard.poll_at = min(shard.poll_at, now + pause)
        self._arm_timer(shard.poll_at)

    def _arm_timer(self, at: float) -> None:
        if at >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_later(max(0.0, at - steady()), self._on_timer)

    def _on_timer(self) -> None:
        """Poll every shard whose poll is due."""
        now = steady()
        self._timer = None
        self._timer_at = MANY
        soonest = MANY
        for shard in self.shards:
            if shard.poll_at <= now:
                shard.poll_at = now + (self._poll if self._slots.free > 0 else FULL_POLL)
                if self.claiming:
                    self._poll_shard(shard)
            soonest = min(soonest, shard.poll_at)
        self._arm_timer(soonest)

    def _poll_shard(self, shard: ShardState) -> None:
        if self._slots.free > 0:
            # Claim any jobs, even if some were announced: other workers may have claimed those.
            self._mark_for_poll(shard)
            self.schedule_flush()
        elif not any(channel.busy for channel in shard.channels):
            # Without free slots, the exchange only reaps expired leases and makes due jobs pending.
            self._send(shard, shard.channels[0], [], 0)
