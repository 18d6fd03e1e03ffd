"""Who goes when: finished attempts leave and new jobs come in, with as few trips as the load allows.

At the end of a loop turn in which something happened, every lane that is free takes along what has ended in its shard
and asks for as many jobs as there are free slots. So a completion leaves at once when the worker is idle, and in
company when it is busy. Nothing is asked of a shard that had nothing, until a hint, its own `next_in` or the poll
says otherwise.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from backstay.engine.base import steady
from backstay.errors import Closed
from backstay.job.model import Claim, Failure, Finish, Handed, Stand, StepReply
from backstay.job.worker.channel import Identity, Lane
from backstay.job.worker.shard_state import MANY, Shard
from backstay.job.worker.waiting_claim import Standing

if TYPE_CHECKING:
    from backstay.job.store import Store
    from backstay.job.worker.execution.attempt import Attempt
    from backstay.job.worker.prefetch import Ahead
    from backstay.job.worker.slots import Order, Slots
    from backstay.runtime.core import Core

log = logging.getLogger("backstay")

#: An idle worker looks this often, whatever it was told. With its heartbeat, its check of runs and the hub's sign of
#: life that makes less than a command a second.
POLL = 2.5
#: Where leases are short, as often as they end, but no more often than this.
SHORTEST_POLL = 1.0
#: One without free slots still reaps for the others.
FULL_POLL = 5.0
#: Announcements that one claim takes from at most.
MOST = 20
#: A look that is worth little waits this long for others.
SOON = 0.1


class Dispatch:
    """The worker's traffic with its shards. Everything here runs on the loop."""

    def __init__(
        self,
        core: Core,
        store: Store,
        identity: Identity,
        slots: Slots,
        order: Order,
        *,
        labels: tuple[str, ...],
        lease: float,
        ahead: Ahead,
        start: Callable[[StepReply, int, float], None],
        settled: Callable[[list[Attempt], StepReply, int], None],
    ) -> None:
        self._core = core
        self._slots = slots
        self._order = order
        self._labels = labels
        self._lease = int(lease * 1_000_000)
        self._ahead = ahead
        self._start = start
        self._settled = settled
        self._loop = asyncio.get_running_loop()
        self._lanes = store.lanes
        #: From so many ends on they are told by one lane while the other asks; 0: never.
        self._apart = max(2, slots.size // 4) if store.parts and store.lanes > 1 else 0
        self.shards = [
            Shard(n, [Lane(core, store, identity, n, lane, partial(self._late, n)) for lane in range(store.lanes)])
            for n in range(store.shards)
        ]
        #: What a look asks for: one lane's share.
        self._glance = max(1, -(-slots.size // (store.lanes * store.shards)))
        #: Every shard in turn, one command a poll in all; but often enough to see each lease end.
        poll = min(POLL, max(SHORTEST_POLL, lease))
        self._poll = poll * max(1.0, min(float(store.shards), lease / 3 / poll))
        self.standing = Standing(core, order, poll=self._poll, lease=lease)
        self._stirred = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = MANY
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle: asyncio.Future[None] | None = None
        self._first = 0
        self.claiming = True
        #: Called when nothing runs and nothing is left to be had; and whenever something has changed.
        self.on_dry: Callable[[], None] | None = None
        self.on_still: Callable[[], None] | None = None
        #: Called when the Backstay was closed meanwhile.
        self.on_closed: Callable[[], None] | None = None
        self._closed = False
        #: Ends were told since every shard was last looked at: these may have made jobs pending, here or there.
        self._unsure = False
        #: Ends that are on their way to other shards, where they make jobs pending.
        self._carried: set[asyncio.Task[None]] = set()
        self.steps = 0

    # ── what happens ──

    def begin(self) -> None:
        """Look at every shard."""
        self.stir()

    def finish(self, attempt: Attempt) -> None:
        """An attempt has ended; `attempt.finish` says how."""
        self.shards[attempt.shard].out.append(attempt)
        if not self._stirred:
            self._stirred = True
            self._loop.call_soon(self._go)

    def stir(self) -> None:
        """Something changed: look after it at the end of this turn."""
        if not self._stirred:
            self._stirred = True
            self._loop.call_soon(self._go)

    def hint(self, count: int) -> None:
        """About so many jobs became pending, in some shard."""
        for shard in self.shards:
            shard.heard = True
            shard.hinted = shard.hinted or not shard.expect
            shard.expect += count
        self.stir()

    def called(self, hint: str) -> None:
        """Jobs became pending; the claim itself takes from their announcement's counter. Who is idle goes at once."""
        if self.room() <= 0:
            self.note()
            return
        for shard in self.shards:
            shard.heard = True
            shard.hinted = shard.hinted or not shard.expect
            shard.expect = max(shard.expect, self._glance)
            if len(shard.hints) >= MOST:
                self._expect(shard)
            elif shard.hinted:
                shard.hints.append(hint)
        if self._stirred:
            return
        self._go()

    def handed(self, handed: Handed) -> None:
        """A job for a claim that stood."""
        for shard in self.shards:
            for lane in shard.lanes:
                if lane.hears(handed):
                    self._start(handed.reply, shard.number, lane.stood)
                    return

    def _late(self, shard: int, reply: StepReply, sent: float) -> None:
        """The same, heard with the answer to a later step."""
        if reply.jobs:
            self._start(reply, shard, sent)

    def carries(self, errand: asyncio.Task[None]) -> None:
        """Ends are carried to other shards: what waits for them there can be had afterwards."""
        self._carried.add(errand)
        errand.add_done_callback(self._arrived)

    def _arrived(self, errand: asyncio.Task[None]) -> None:
        self._carried.discard(errand)
        if self.claiming:
            self._unsure = True
            self.stir()

    def leave(self) -> None:
        """Claim no more: what stands is taken back."""
        self.claiming = False
        self.stir()

    def room(self) -> int:
        """How many more jobs it is worth hearing of."""
        return int(max(0, self._slots.free - max(shard.expect for shard in self.shards)))

    def note(self) -> None:
        """Jobs became pending, and there is no room: each shard is looked at when there is, for whatever it has. What
        ends asks in its own shard only, and other announcements may be used up by then.
        """
        for shard in self.shards:
            shard.heard = True
            self._expect(shard)

    def glance_soon(self) -> None:
        """Perhaps there is something: no hurry, but before the next poll."""
        at = steady() + SOON
        for shard in self.shards:
            shard.look_at = min(shard.look_at, at)
        self._arm(at)

    def look(self) -> None:
        """There may be work anywhere."""
        for shard in self.shards:
            shard.heard = True
            self._expect(shard)
        self.stir()

    def _expect(self, shard: Shard) -> None:
        """There may be something: ask once."""
        shard.expect = max(shard.expect, self._glance)
        shard.hinted = False
        shard.hints.clear()

    @property
    def is_dry(self) -> bool:
        """Nothing to tell, nothing on its way, and every shard had nothing more when it was last asked."""
        on_its_way = self._stirred or bool(self._carried)
        return not on_its_way and all(shard.is_quiet and not shard.expect for shard in self.shards)

    @property
    def troubled(self) -> float:
        """Since when (steady) the engine has not answered; 0: it does."""
        return min((lane.troubled for shard in self.shards for lane in shard.lanes if lane.troubled), default=0.0)

    async def quiet(self) -> None:
        """Until nothing is to be told and nothing is on its way."""
        while self._stirred or not all(shard.is_quiet for shard in self.shards):
            self._idle = self._loop.create_future()
            await self._idle

    async def close(self) -> None:
        """End what is on its way. Safe twice."""
        self.claiming = False
        self._ahead.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # ── what is done about it ──

    def _go(self) -> None:
        self._stirred = False
        slots, shards = self._slots, self.shards
        if slots.waiting:
            if self.claiming:
                self._ahead.go_on()
            else:
                self._ahead.leave()
        if self._closed:
            for shard in shards:
                shard.out.clear()
                shard.suspects.clear()
        hungry = sum(1 for shard in shards if shard.expect) or 1
        # With two lanes, half for each: while one is on its way, the other's jobs run.
        share = -(-slots.size // (self._lanes * hungry))
        start = self._first
        self._first = (start + 1) % len(shards)
        for place in range(len(shards)):
            shard = shards[(start + place) % len(shards)]
            for lane in self._in_turn(shard):
                if lane.busy:
                    continue
                if lane.standing and not (self.claiming or self._closed or shard.out):
                    self._send(shard, lane, [], 0)
                    continue
                if shard.suspects:
                    self._send(shard, lane, [shard.suspects.pop()], 0)
                    continue
                if self._tells_apart(shard):
                    self._send_apart(shard, lane)
                    continue
                slots.ahead = 0
                want = self._want(shard, share)
                if not shard.out and not want:
                    break
                self._send(shard, lane, shard.batch(), want)
        if self._idle is not None and not self._idle.done() and all(shard.is_quiet for shard in shards):
            self._idle.set_result(None)
        if self.on_still is not None:
            self.on_still()
        if self.on_dry is not None and not self._slots.busy and self.is_dry:
            if self._unsure and self.claiming:
                self._unsure = False
                self.look()
            else:
                self.on_dry()

    def _in_turn(self, shard: Shard) -> list[Lane]:
        """One whose claim stands goes first, and takes it back: there is room for what it may have been handed."""
        lanes = shard.lanes
        return lanes if not any(lane.standing for lane in lanes) else sorted(lanes, key=lambda lane: not lane.standing)

    def _is_idle(self, shard: Shard, lane: Lane) -> bool:
        """Whether nothing runs here and nothing else is on its way: what this lane asks for is all there will be."""
        if self._slots.busy or self.on_dry is not None:
            return False
        return all(not each.busy or each is lane for each in shard.lanes)

    def _tells_apart(self, shard: Shard) -> bool:
        """Whether much is there, and much has ended or is just being asked for. Not in runs, where all who ask or tell
        wait for the same row: fewer steps with more in each cost less there.
        """
        return (
            self._apart > 0
            and shard.expect == MANY
            and not shard.of_runs
            and (len(shard.out) >= self._apart or any(lane.busy and lane.want >= self._apart for lane in shard.lanes))
        )

    def _send_apart(self, shard: Shard, lane: Lane) -> None:
        """One lane asks, the other tells what has ended, and neither waits for what the other does at the server."""
        under_way = [other.want for other in shard.lanes if other.busy]
        self._allow(shard)
        want = self._want(shard, self._share())
        if want and not any(under_way):
            self._send(shard, lane, [], want)
        elif shard.out and all(under_way):
            self._send(shard, lane, shard.batch(), 0)

    def _allow(self, shard: Shard) -> None:
        """Say how much may be asked for ahead. Nothing of what has one attempt left: should this process die, those who
        wait have used theirs up, and would never have begun.
        """
        if shard.last_tries:
            self._slots.ahead = 0
        else:
            self._ahead.allow()

    def _share(self) -> int:
        """What a claim asks for at most, where they are told apart: while some run, as many are on their way."""
        return max(1, (self._slots.size + self._slots.ahead) // 2)

    def _want(self, shard: Shard, share: int) -> int:
        if not self.claiming:
            return 0
        free = min(self._slots.free, share)
        if free <= 0:
            return 0
        if shard.expect:
            return int(min(free, shard.expect))
        return free if shard.out else 0  # a finish goes anyway, so it asks along

    def _send(self, shard: Shard, lane: Lane, batch: list[Attempt], want: int) -> None:
        lane.busy = True
        lane.want = want
        lane.hints = tuple(shard.hints) if shard.hinted and not batch else ()
        lane.looks = not shard.hinted or want < shard.expect or len(lane.hints) < len(shard.hints)
        shard.hints.clear()
        stand = self.standing.stand() if want and self._is_idle(shard, lane) else None
        if shard.expect != MANY:
            shard.expect = max(0, shard.expect - want)
        shard.heard = False
        self._slots.asked += want
        self.steps += 1
        task = self._loop.create_task(self._step(shard, lane, batch, stand))
        self._tasks.add(task)
        task.add_done_callback(self._stepped)

    async def _step(self, shard: Shard, lane: Lane, batch: list[Attempt], stand: Stand | None) -> None:
        want = lane.want
        claim = Claim(
            want=want,
            queues=self._order.draw(),
            labels=self._labels,
            lease=self._lease,
            hints=lane.hints,
            stand=stand,
        )
        try:
            finishes = [attempt.finish for attempt in batch if attempt.finish is not None]
            reply, sent = await lane.step(finishes, claim)
        except asyncio.CancelledError:
            raise
        except Closed:
            self._end()
            return
        except Exception as error:  # noqa: BLE001 - one end that the store refuses must not stop the worker
            self._refused(shard, batch, error)
            return
        finally:
            lane.busy = False
            self._slots.asked -= want
        jobs = len(reply.jobs)
        self._unsure = self._unsure or bool(batch)
        if jobs >= want > 0:
            if lane.looks:
                shard.expect = MANY
            shard.hints += lane.hints  # there may be more to take
            if lane.hints and not shard.expect:
                shard.expect, shard.hinted = self._glance, True
        elif want:
            shard.expect = self._glance if shard.heard else 0
            shard.hinted = shard.hinted and bool(shard.hints)
        if reply.denied:  # nobody looked, so the plan stands
            self.steps -= 1
        else:
            self._plan(shard, reply.next_in, want, jobs)
        try:
            self._settled(batch, reply, shard.number)
        finally:
            if reply.jobs:
                shard.of_runs = bool(reply.jobs[-1].run)
                if self._apart:
                    shard.last_tries = any(job.attempt > job.retries for job in reply.jobs)
                    self._allow(shard)
                self._ask_ahead(shard, lane, jobs)
                self._start(reply, shard.number, sent)
            self.stir()

    def _ask_ahead(self, shard: Shard, lane: Lane, jobs: int) -> None:
        """Where much is there, the next are asked for before these begin, for the places that are left: the server
        looks for them while these run.
        """
        if (
            not self._apart
            or shard.of_runs
            or shard.expect != MANY
            or any(other.want for other in shard.lanes if other.busy)
        ):
            return
        self._slots.busy += jobs  # as they are about to be
        want = self._want(shard, self._share())
        if want >= self._apart:
            self._send(shard, lane, [], want)
        self._slots.busy -= jobs

    def _end(self) -> None:
        """The Backstay was closed under the worker: there is nobody left to tell."""
        self.claiming = False
        self._closed = True
        if self.on_closed is not None:
            self.on_closed()
        self.stir()

    def _stepped(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a worker's step went wrong", exc_info=error)
            self.stir()

    def _refused(self, shard: Shard, batch: list[Attempt], error: Exception) -> None:
        """The store will not take this step. With several ends in it, each goes alone; one alone becomes a failure."""
        log.error("a step was refused: %s: %s", type(error).__name__, error)
        shard.expect = 0
        shard.look_at = steady() + self._poll
        self._arm(shard.look_at)
        if len(batch) > 1:
            shard.suspects += batch
            self.stir()
            return
        for attempt in batch:
            finish = attempt.finish
            if finish is None or (finish.kind == "fail" and finish.next is None):
                self._slots.held.pop(attempt.job.id, None)  # nothing more to try: its lease runs out
                continue
            said = Failure(type(error).__name__, f"its end could not be stored: {error}", "", attempt.job.attempt)
            attempt.finish = Finish(job=finish.job, fence=finish.fence, kind="fail", error=said)
            shard.out.append(attempt)
        self.stir()

    # ── when to look again ──

    def _plan(self, shard: Shard, next_in: int | None, want: int, jobs: int) -> None:
        now = steady()
        pause = self._poll if want or self._slots.free > 0 else FULL_POLL
        pause = min(pause, shard.due_in(next_in, jobs))
        shard.look_at = now + pause
        self._arm(shard.look_at)

    def _arm(self, at: float) -> None:
        if at >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_later(max(0.0, at - steady()), self._due)

    def _due(self) -> None:
        """Look wherever it is time to."""
        now = steady()
        self._timer = None
        self._timer_at = MANY
        soonest = MANY
        for shard in self.shards:
            if shard.look_at <= now:
                if self.claiming:
                    self._look_at(shard)
                shard.look_at = now + self._poll
            soonest = min(soonest, shard.look_at)
        self._arm(soonest)

    def _look_at(self, shard: Shard) -> None:
        if self._slots.free > 0:
            self._expect(shard)  # also where a hint says so: others may have been there for what it spoke of
            self.stir()
        elif not any(lane.busy for lane in shard.lanes):  # all slots are taken: reap and make due, no more
            self._send(shard, shard.lanes[0], [], 0)
