"""Jobs that are asked for ahead of a free place, while places become free within milliseconds.

A claim costs the server something whatever it brings, and while it travels nothing else comes. A worker whose jobs end
as fast as they come is done with what it may run at once before the next claim is answered. So it asks for as many more
as will begin within `AHEAD`, by the pace of the last ends. Whatever has not begun after `PATIENCE` goes back, without
using up an attempt, and nothing is asked for ahead until the pace is there again: a worker never keeps a job for longer
from one that is free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from backstay.engine.base import steady
from backstay.job.model import Claimed
from backstay.job.worker.slots import Slots, Waiting

#: Seconds that what is asked for ahead may take to begin, as the pace of the last ends has it.
AHEAD = 0.01
#: Seconds after which what has not begun goes back.
PATIENCE = 0.05
#: Seconds over which a pace is measured.
WINDOW = 0.005

#: Carried out with jobs of one claim, their shard, and when (steady) the claim left.
Act = Callable[[Sequence[Claimed], int, float], None]


class Ahead:
    """What a worker was handed and has not begun, and how much more of that it may be handed. On the loop only."""

    def __init__(self, slots: Slots, begin: Act, give_back: Act, *, wanted: bool = True) -> None:
        self._slots = slots
        self._wanted = wanted
        self._begin = begin
        self._give_back = give_back
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        #: Ends a second, as last measured; how many had ended by then, and when (steady) that was.
        self._pace = 0.0
        self._ended = 0
        self._measured = steady()

    def allow(self) -> None:
        """There is much: some of it may be asked for ahead, as the pace has it."""
        if not self._wanted:
            return
        slots, now = self._slots, steady()
        passed = now - self._measured
        if passed >= WINDOW:
            self._pace = (self._pace + (slots.ended - self._ended) / passed) / 2
            self._ended, self._measured = slots.ended, now
        slots.ahead = int(self._pace * AHEAD)

    def put(self, jobs: Sequence[Claimed], shard: int, sent: float) -> None:
        """These have come. They begin, as far as there are places, in order."""
        waiting = self._slots.waiting
        waiting.append(Waiting(jobs, shard, sent, steady()))
        self.go_on()
        if waiting and self._timer is None:
            self._timer = self._loop.call_later(PATIENCE, self._late)

    def go_on(self) -> None:
        """There may be places for those who wait."""
        slots, waiting = self._slots, self._slots.waiting
        while waiting and (room := slots.size - slots.busy) > 0:
            batch = waiting.popleft()
            if len(batch.jobs) > room:
                waiting.appendleft(batch._replace(jobs=batch.jobs[room:]))
            self._begin(batch.jobs[:room], batch.shard, batch.sent)

    def leave(self) -> None:
        """Nothing more begins here. Safe twice."""
        while self._slots.waiting:
            batch = self._slots.waiting.popleft()
            self._give_back(batch.jobs, batch.shard, batch.sent)
        self.close()

    def close(self) -> None:
        """Nobody is told any more: what still waits is left to its lease. Safe twice."""
        self._slots.waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        self.go_on()  # this loop itself may be late
        waiting = self._slots.waiting
        ends = steady() - PATIENCE
        while waiting and waiting[0].came <= ends:
            batch = waiting.popleft()
            self._give_back(batch.jobs, batch.shard, batch.sent)
            self._pace = 0.0
            self._slots.ahead = 0
        if waiting:
            self._timer = self._loop.call_later(max(0.0, waiting[0].came - ends), self._late)
