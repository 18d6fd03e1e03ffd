"""The prefetcher: claims jobs before slots are free, while slots become free within milliseconds.

Each claim has a fixed cost at the server and takes a round trip. A worker with very short jobs would finish all of them
and be idle before its next claim is answered. So it claims as many jobs beyond its slots as will start within `AHEAD`
seconds at the current completion rate. A prefetched job that has not started after `PATIENCE` seconds is released
without using up an attempt, so that an idle worker can run it, and prefetching stops until the rate recovers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from backstay.engine.base import steady
from backstay.job.exchange import Claimed
from backstay.job.worker.slots import PrefetchedBatch, Slots

#: Prefetch the jobs that will start within this many seconds at the current completion rate.
AHEAD = 0.01
#: Seconds after which a prefetched job that has not started is released.
PATIENCE = 0.05
#: Shortest window for measuring the completion rate, in seconds.
WINDOW = 0.005

#: Takes jobs of one claim, their shard, and when (monotonic clock) the claim was sent; starts or releases the jobs.
JobsAction = Callable[[Sequence[Claimed], int, float], None]


class Prefetcher:
    """Queues claimed jobs until a slot is free and limits how many may be prefetched. Used on the event loop only."""

    def __init__(self, slots: Slots, begin: JobsAction, release: JobsAction, *, enabled: bool = True) -> None:
        self._slots = slots
        self._enabled = enabled
        self._begin = begin
        self._release = release
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        #: How many handlers ended per second, as last measured.
        self._rate = 0.0
        #: How many handlers had ended at the last measurement.
        self._ended = 0
        #: When (monotonic clock) the last measurement was.
        self._measured = steady()

    def update_limit(self) -> None:
        """Measure the completion rate and set how many jobs may be prefetched. Call it while there is a backlog."""
        if not self._enabled:
            return
        slots, now = self._slots, steady()
        passed = now - self._measured
        if passed >= WINDOW:
            self._rate = (self._rate + (slots.ended - self._ended) / passed) / 2
            self._ended, self._measured = slots.ended, now
        slots.prefetch = int(self._rate * AHEAD)

    def put(self, jobs: Sequence[Claimed], shard: int, sent: float) -> None:
        """Queue newly claimed jobs and start as many queued jobs, in order, as there are free slots."""
        waiting = self._slots.prefetched
        waiting.append(PrefetchedBatch(jobs, shard, sent, steady()))
        self.start_waiting()
        if waiting and self._timer is None:
            self._timer = self._loop.call_later(PATIENCE, self._release_overdue)

    def start_waiting(self) -> None:
        """Start as many queued jobs as there are free slots."""
        slots, waiting = self._slots, self._slots.prefetched
        while waiting and (room := slots.size - slots.busy) > 0:
            batch = waiting.popleft()
            if len(batch.jobs) > room:
                waiting.appendleft(batch._replace(jobs=batch.jobs[room:]))
            self._begin(batch.jobs[:room], batch.shard, batch.sent)

    def release_waiting(self) -> None:
        """Release all queued jobs, then close. Safe to call twice."""
        while self._slots.prefetched:
            batch = self._slots.prefetched.popleft()
            self._release(batch.jobs, batch.shard, batch.sent)
        self.close()

    def close(self) -> None:
        """Drop the queued jobs without releasing them: their leases expire. Safe to call twice."""
        self._slots.prefetched.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _release_overdue(self) -> None:
        self._timer = None
        self.start_waiting()  # a delayed event loop may not have filled all free slots yet
        waiting = self._slots.prefetched
        ends = steady() - PATIENCE
        while waiting and waiting[0].came <= ends:
            batch = waiting.popleft()
            self._release(batch.jobs, batch.shard, batch.sent)
            self._rate = 0.0
            self._slots.prefetch = 0
        if waiting:
            self._timer = self._loop.call_later(max(0.0, waiting[0].came - ends), self._release_overdue)
