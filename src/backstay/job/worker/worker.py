"""`stay.worker(...)`: takes jobs from queues and runs them, until it is told to stop.

The parts, each in a file of its own: `lanes` carries steps to the shards, `dispatch` decides when, `runner` runs
handlers, `tending` keeps leases alive, `hearing` listens, `overtime` and `watchdog` look after handlers, `courier` and
`presence` do what is left.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from backstay.engine.base import steady
from backstay.errors import BackstayError, ConfigError, EngineUnavailable, OutcomeUnknown
from backstay.job.api.announcer import announcer_of
from backstay.job.api.registry import store_of
from backstay.job.reserved import COMMAND, COMMANDS, INTERNAL
from backstay.job.scheduler.scheduler import KEEP, chores
from backstay.job.worker.channel import Identity
from backstay.job.worker.execution import child_protocol
from backstay.job.worker.execution.executor import Runner
from backstay.job.worker.execution.timeouts import Overtime
from backstay.job.worker.execution.watchdog import Watchdog
from backstay.job.worker.heartbeat import BEAT, Presence
from backstay.job.worker.lease_renewer import Tending
from backstay.job.worker.notifications import Hearing
from backstay.job.worker.outbox_relay import SWEEP, Courier
from backstay.job.worker.outcome_stats import Ledger
from backstay.job.worker.prefetch import Ahead
from backstay.job.worker.process_signals import Signals
from backstay.job.worker.producer import Dispatch
from backstay.job.worker.slots import Order, Queues, Slots
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.loop import Loop
from backstay.runtime.port import AsyncPort
from backstay.runtime.validation import Duration

if TYPE_CHECKING:
    from backstay.job.model import StepReply
    from backstay.job.worker.execution.attempt import Attempt

log = logging.getLogger("backstay")

CONCURRENCY = 10
#: Below this a lease could not be renewed in time on a busy machine.
SHORTEST_LEASE = 0.2
#: How long the last completions may take to be stored when a worker stops, and when it stops now.
FLUSH, FLUSH_NOW = 10.0, 2.0
#: A handler that is stopped now has this long to unwind.
GRACE_NOW = 0.5
#: Pauses between attempts to reach an engine that is not there when the worker starts.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0


class Worker:
    """One worker. It runs once: `await worker.run()`; `worker.stop()` drains it, from the loop or a signal."""

    def __init__(
        self,
        core: Core,
        *,
        queues: Queues = ("default",),
        labels: Iterable[str] = (),
        concurrency: int = CONCURRENCY,
        lease: Duration = 30,
        drain: Duration = 30,
        grace: Duration = 5,
        blocked_after: Duration = 1,
        prefetch: bool = True,
        signals: bool = True,
        name: str = "",
        allow_commands: bool = False,
        keep: int = KEEP,
    ) -> None:
        self._core = core
        self._order = Order(queues, (COMMANDS,) if allow_commands else ())
        if COMMANDS in self._order.names and not allow_commands:
            raise ConfigError(f"queue {COMMANDS!r} is for workers with allow_commands=True (--allow-commands)")
        if isinstance(labels, str):
            raise ConfigError(f"labels is a list, as in labels=[{labels!r}]")
        self.labels = tuple(sorted({validation.word(label, "label") for label in labels}))
        self._slots = Slots(concurrency)
        self._lease = validation.seconds(lease, "lease")
        if self._lease < SHORTEST_LEASE:
            raise ConfigError(f"lease is at least {SHORTEST_LEASE:g} s; got {self._lease:g}")
        self._drain_limit = validation.seconds(drain, "drain", zero=True)
        self._grace = validation.seconds(grace, "grace", zero=True)
        self._blocked_after = validation.seconds(blocked_after, "blocked_after", zero=True)
        self._prefetch = prefetch
        self._signals = signals
        self._keep = validation.count(keep, "keep")
        self.id = validation.word(name, "name") if name else f"{core.identity.process}-{random.getrandbits(16):04x}"
        self._ledger = Ledger(self._slots, core.telemetry)
        #: What became of the attempts here: completed, failed, retried, snoozed, released, cancelled, lost.
        self.counts = self._ledger.counts
        self._stops = 0
        self._changed: asyncio.Event | None = None
        #: When (steady) a signal first told it to stop; perhaps long before the loop heard of it.
        self._told: list[float] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._dispatch: Dispatch | None = None
        self._started = False

    # ── what others see ──

    @property
    def queues(self) -> tuple[str, ...]:
        return self._order.names

    @property
    def running(self) -> int:
        """Handlers that run now."""
        return self._slots.busy

    @property
    def done(self) -> int:
        """Attempts that have ended here and were stored."""
        return self.counts.total()

    @property
    def steps(self) -> int:
        """Trips to the engine so far: each tells what has ended, asks for more, or both."""
        return self._dispatch.steps if self._dispatch is not None else 0

    @property
    def is_draining(self) -> bool:
        return self._stops > 0

    @property
    def unreachable_for(self) -> float:
        """Seconds since the engine last answered, when it does not; else 0."""
        since = self._dispatch.troubled if self._dispatch is not None else 0.0
        return steady() - since if since else 0.0

    def stop(self, *, now: bool = False) -> None:
        """Claim no more, wait for what runs (up to `drain` seconds), give back the rest without using up an attempt.
        A second call, or now=True: do not wait. From the loop's thread or a signal handler.
        """
        self._stops = 2 if now or self._stops else 1
        if self._dispatch is not None:
            self._dispatch.claiming = False
        if self._changed is not None:
            self._changed.set()

    # ── life ──

    async def run(self, *, burst: bool = False) -> None:
        """Work until stopped; burst: until nothing is left that this worker could do now."""
        core = self._core
        core.check_open()
        if self._started:
            raise ConfigError("this worker has run; make another with stay.worker(...)")
        if child_protocol.in_child:  # it would run the same job, in a child of its own, and so on
            raise ConfigError(
                "this process was made for a job with pool='process', and imports the program in order to find it:"
                " start workers below `if __name__ == '__main__':`"
            )
        self._started = True
        if not core.jobs and COMMANDS not in self.queues and set(self.queues) != {INTERNAL}:
            log.warning("no job is defined here: import the modules that define them before the worker starts")
        self._loop = asyncio.get_running_loop()
        if isinstance(core.port, AsyncPort):
            core.port.loop()
        self._changed = asyncio.Event()
        ears = Signals(self._signalled)
        self._told = ears.came
        if self._signals:
            ears.listen()
        try:
            await self._reach()
            if not self._stops:
                await self._work(ears, burst=burst)
        finally:
            ears.close()

    async def _reach(self) -> None:
        """An engine that is not there yet is waited for: it may start after us."""
        pause = FIRST_PAUSE
        while not self._stops:
            try:
                await self._core.engine.open()
                return
            except (EngineUnavailable, OutcomeUnknown) as error:
                if pause == FIRST_PAUSE:
                    log.warning("waiting for the engine: %s", error)
                await self._wait(pause)
                pause = min(pause * 2, LONGEST_PAUSE)

    async def _work(self, ears: Signals, *, burst: bool) -> None:
        core, slots = self._core, self._slots
        store = store_of(core)
        runner = Runner(core, store, slots, lease=self._lease, grace=self._grace)
        courier = Courier(core, store)

        def settled(batch: list[Attempt], reply: StepReply, shard: int) -> None:
            self._ledger.settled(batch, reply)
            if reply.ready:
                announcer_of(core).announce(reply.ready)
            if reply.outbox:
                dispatch.carries(courier.carry(shard, reply.outbox))

        runner.ahead = ahead = Ahead(slots, runner.begin, runner.give_back, wanted=self._prefetch)
        self._dispatch = dispatch = runner.dispatch = Dispatch(
            core,
            store,
            Identity(self.id),
            slots,
            self._order,
            labels=self.labels,
            lease=self._lease,
            ahead=ahead,
            start=runner.start,
            settled=settled,
        )
        runner.tending = tending = Tending(
            core,
            store,
            slots,
            self.id,
            lease=self._lease,
            grace=self._grace,
            lost=runner.lost,
            cancelled=runner.cancelled,
        )
        runner.overtime = overtime = Overtime(slots, runner.late, runner.abandon)
        hearing = Hearing(core, slots, dispatch, self._suits, tending.hurry)
        runner.began = hearing.early
        watchdog = Watchdog(slots, core.telemetry, self._blocked_after, ears, self._drain_limit)
        presence = Presence(core, store, slots, self.id, self.queues, self.labels)
        loops = [Loop(presence.beat, name="heartbeat", every=BEAT, telemetry=core.telemetry)]
        if store.shards > 1:
            loops.append(Loop(courier.sweep, name="courier", every=SWEEP, telemetry=core.telemetry))
        if not burst:
            loops += chores(core, self._keep)
        core.telemetry.emit("worker.started", worker=self.id, queues=self.queues, labels=self.labels)
        cut = False
        try:
            tending.open()
            hearing.open()
            watchdog.start()
            for loop in loops:
                loop.start()
            dispatch.on_closed = self._closed
            if burst:
                dispatch.on_dry = self.stop
            dispatch.begin()
            while not self._stops:
                await self._wait(None)
            presence.draining = True
            loops[0].wake()
            await self._drain(runner, dispatch)
        except asyncio.CancelledError:
            cut = True
            await self._cut_short(runner, dispatch)
            raise
        finally:
            dispatch.claiming = False
            await hearing.close()
            await dispatch.close()
            for loop in loops:
                await loop.stop(within=0.0 if cut else 1.0)
            overtime.close()
            tending.close()
            watchdog.stop()
            await runner.close()
            await courier.close()
            with suppress(BackstayError, TimeoutError):
                await asyncio.wait_for(presence.leave(), FLUSH_NOW)
            core.telemetry.emit("worker.stopped", worker=self.id, **self.counts)

    async def _wait(self, timeout: float | None) -> None:
        assert self._changed is not None  # noqa: S101 - made by run()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), timeout)
        self._changed.clear()

    async def _drain(self, runner: Runner, dispatch: Dispatch) -> None:
        """What runs may end, within the limit; then it is told to, and its jobs go back."""
        slots = self._slots
        dispatch.leave()
        dispatch.on_still = self._stirred
        if slots.busy:
            log.info("draining: %d jobs run", slots.busy)
        until = min([steady(), *self._told]) + self._drain_limit
        while slots.busy and self._stops == 1 and (left := until - steady()) > 0:
            await self._wait(left)
        hurried = self._stops > 1
        if slots.busy:
            log.warning("%d jobs are stopped and given back", slots.busy)
            runner.stop(min(GRACE_NOW, self._grace) if hurried else self._grace)
            while slots.busy:
                if self._stops > 1 and not hurried:
                    hurried = True
                    runner.stop(min(GRACE_NOW, self._grace))
                await self._wait(0.5)
        await self._flush(dispatch, FLUSH_NOW if hurried else FLUSH)

    async def _flush(self, dispatch: Dispatch, limit: float) -> None:
        try:
            await asyncio.wait_for(dispatch.quiet(), limit)
        except TimeoutError:
            log.warning("the engine did not take note of the last jobs within %g s; their leases will run out", limit)

    async def _cut_short(self, runner: Runner, dispatch: Dispatch) -> None:
        """`run` itself was cancelled: give everything back, quickly."""
        self._stops = 2
        dispatch.leave()
        with suppress(asyncio.CancelledError):  # told twice: then without goodbyes
            runner.stop(min(GRACE_NOW, self._grace))
            while self._slots.busy:
                await self._wait(0.1)
            await self._flush(dispatch, FLUSH_NOW)

    def _stirred(self) -> None:
        if self._changed is not None:
            self._changed.set()

    def _closed(self) -> None:
        log.warning("this worker's Backstay was closed: stopping now")
        self.stop(now=True)

    def _signalled(self, name: str) -> None:
        log.warning("%s: %s", name, "stopping now" if self._stops else "draining; once more to stop now")
        self.stop()

    # ── bookkeeping ──

    def _suits(self, job_type: str) -> bool | None:
        """Whether jobs of a type are for this worker, as far as its definition says; None: it knows no such type."""
        definition = self._core.jobs.get(job_type)
        if definition is None:
            if job_type == COMMAND:
                return COMMANDS in self.queues
            return True if job_type in self._core.internals else None
        return definition.queue in self.queues and set(definition.labels) <= set(self.labels)
