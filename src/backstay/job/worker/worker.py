"""`stay.worker(...)`: claims jobs from queues and runs them until it is stopped.

This module assembles the parts, each in its own file: `channel` carries exchanges to the shards, `producer` schedules
them, `executor` runs handlers, `lease_renewer` renews leases, `notifications` subscribes to the hub, `timeouts` and
`watchdog` supervise handlers, `outbox_relay` delivers to other shards, `heartbeat` registers the worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from backstay.engine.base import steady
from backstay.engine.jitter import RANDOM
from backstay.errors import BackstayError, ConfigError, EngineUnavailable, OutcomeUnknown
from backstay.job.api.announcer import ANNOUNCER
from backstay.job.api.registry import INTERNAL_JOB_TYPES, JOB_TYPES
from backstay.job.reserved import COMMAND, COMMANDS, INTERNAL
from backstay.job.scheduler.pruner import KEEP
from backstay.job.scheduler.scheduler import background_loops
from backstay.job.store import JOB_STORE
from backstay.job.worker.channel import WorkerIdentity
from backstay.job.worker.execution import child_protocol
from backstay.job.worker.execution.executor import Executor
from backstay.job.worker.execution.timeouts import Timeouts
from backstay.job.worker.execution.watchdog import Watchdog
from backstay.job.worker.heartbeat import BEAT, Heartbeat
from backstay.job.worker.lease_renewer import LeaseRenewer
from backstay.job.worker.notifications import NotificationListener
from backstay.job.worker.outbox_relay import SWEEP, OutboxRelay
from backstay.job.worker.outcome_stats import OutcomeStats
from backstay.job.worker.prefetch import Prefetcher
from backstay.job.worker.process_signals import ProcessSignals
from backstay.job.worker.producer import Producer
from backstay.job.worker.slots import QueueOrder, Queues, Slots
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.loop import Loop
from backstay.runtime.port import AsyncPort
from backstay.runtime.validation import Duration

if TYPE_CHECKING:
    from backstay.job.exchange import ExchangeReply
    from backstay.job.worker.execution.attempt import Attempt

log = logging.getLogger("backstay")

CONCURRENCY = 10
#: Shortest lease, in seconds: a busy machine could not renew a shorter one in time.
SHORTEST_LEASE = 0.2
#: Seconds that the last acknowledgements may take when a worker drains, and when it stops at once.
FLUSH, FLUSH_NOW = 10.0, 2.0
#: Seconds that a handler has to unwind when the worker stops at once.
GRACE_NOW = 0.5
#: First and longest pause between connection attempts while the engine is unavailable at start, in seconds.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0


class Worker:
    """A worker. `run()` can be called once; `stop()` drains the worker and may be called on the event loop or in a
    signal handler.
    """

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
        self._order = QueueOrder(queues, (COMMANDS,) if allow_commands else ())
        if COMMANDS in self._order.names and not allow_commands:
            raise ConfigError(f"queue {COMMANDS!r} needs a worker with allow_commands=True (--allow-commands)")
        if isinstance(labels, str):
            raise ConfigError(f"labels must be a list, as in labels=[{labels!r}]")
        self.labels = tuple(sorted({validation.check_label(label, "label") for label in labels}))
        self._slots = Slots(concurrency)
        self._lease = validation.to_seconds(lease, "lease")
        if self._lease < SHORTEST_LEASE:
            raise ConfigError(f"lease must be at least {SHORTEST_LEASE:g} s; got {self._lease:g}")
        self._drain_limit = validation.to_seconds(drain, "drain", zero=True)
        self._grace = validation.to_seconds(grace, "grace", zero=True)
        self._blocked_after = validation.to_seconds(blocked_after, "blocked_after", zero=True)
        self._prefetch = prefetch
        self._signals = signals
        self._keep = validation.check_count(keep, "keep")
        self.id = (
            validation.check_label(name, "name") if name else f"{core.identity.process}-{RANDOM.getrandbits(16):04x}"
        )
        self._stats = OutcomeStats(self._slots, core.telemetry)
        #: Acknowledged attempts by outcome: completed, failed, retried, snoozed, released, cancelled, skipped, lost.
        self.counts = self._stats.counts
        self._stops = 0
        self._changed: asyncio.Event | None = None
        #: When (monotonic clock) stop signals came, perhaps long before a blocked event loop handles them.
        self._stop_requested: list[float] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._producer: Producer | None = None
        self._started = False

    # ── status ──

    @property
    def queues(self) -> tuple[str, ...]:
        return self._order.names

    @property
    def running(self) -> int:
        """The number of handlers running now."""
        return self._slots.busy

    @property
    def done(self) -> int:
        """The number of attempts that this worker has finished and the store has acknowledged."""
        return self.counts.total()

    @property
    def exchanges(self) -> int:
        """Round trips to the engine so far; each acknowledges finished attempts, claims jobs, or both."""
        return self._producer.exchanges if self._producer is not None else 0

    @property
    def is_draining(self) -> bool:
        return self._stops > 0

    @property
    def unreachable_for(self) -> float:
        """Seconds since the engine stopped answering; 0 while it answers."""
        since = self._producer.unreachable_since if self._producer is not None else 0.0
        return steady() - since if since else 0.0

    def stop(self, *, now: bool = False) -> None:
        """Stop claiming, wait up to `drain` seconds for the running jobs, then interrupt and release those that still
        run, without using up an attempt. A second call, or now=True, does not wait. Call it on the event loop's thread
        or in a signal handler.
        """
        self._stops = 2 if now or self._stops else 1
        if self._producer is not None:
            self._producer.claiming = False
        if self._changed is not None:
            self._changed.set()

    # ── running ──

    async def run(self, *, burst: bool = False) -> None:
        """Work until stopped. burst=True: also return once no job is left that this worker could run now."""
        core = self._core
        core.check_open()
        if self._started:
            raise ConfigError("this worker has already run; create another with stay.worker(...)")
        if child_protocol.in_child:  # a worker in each child would start children of its own, without end
            raise ConfigError(
                "this process runs a job with pool='process' and imports the program only to find its function:"
                " start workers below `if __name__ == '__main__':`"
            )
        self._started = True
        if not core.services.get(JOB_TYPES) and COMMANDS not in self.queues and set(self.queues) != {INTERNAL}:
            log.warning("no jobs are defined: import the modules that define them before the worker starts")
        self._loop = asyncio.get_running_loop()
        if isinstance(core.port, AsyncPort):
            core.port.loop()
        self._changed = asyncio.Event()
        process_signals = ProcessSignals(self._on_signal)
        self._stop_requested = process_signals.received
        if self._signals:
            process_signals.install()
        try:
            await self._wait_for_engine()
            if not self._stops:
                await self._work(process_signals, burst=burst)
        finally:
            process_signals.close()

    async def _wait_for_engine(self) -> None:
        """Wait until the engine is reachable: it may be started after this worker."""
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

    async def _work(self, process_signals: ProcessSignals, *, burst: bool) -> None:
        core, slots = self._core, self._slots
        store = core.services.get(JOB_STORE)
        executor = Executor(core, store, slots, lease=self._lease, grace=self._grace)
        outbox_relay = OutboxRelay(core, store)

        def on_acknowledged(batch: list[Attempt], reply: ExchangeReply, shard: int) -> None:
            self._stats.record(batch, reply)
            if reply.ready:
                core.services.get(ANNOUNCER).announce(reply.ready)
            if reply.outbox:
                producer.track_delivery(outbox_relay.deliver_soon(shard, reply.outbox))

        executor.prefetcher = prefetcher = Prefetcher(
            slots, executor.begin, executor.release_jobs, enabled=self._prefetch
        )
        self._producer = producer = executor.producer = Producer(
            core,
            store,
            WorkerIdentity(self.id),
            slots,
            self._order,
            labels=self.labels,
            lease=self._lease,
            prefetcher=prefetcher,
            start=executor.start,
            on_acknowledged=on_acknowledged,
        )
        executor.lease_renewer = lease_renewer = LeaseRenewer(
            core,
            store,
            slots,
            self.id,
            lease=self._lease,
            grace=self._grace,
            on_lost=executor.lose_lease,
            on_cancelled=executor.cancel,
        )
        executor.timeouts = timeouts = Timeouts(slots, executor.time_out, executor.abandon)
        listener = NotificationListener(core, slots, producer, self._accepts, lease_renewer.renew_now)
        executor.on_started = listener.on_started
        watchdog = Watchdog(slots, core.telemetry, self._blocked_after, process_signals, self._drain_limit)
        heartbeat = Heartbeat(core, store, slots, self.id, self.queues, self.labels)
        loops = [Loop(heartbeat.beat, name="heartbeat", every=BEAT, telemetry=core.telemetry)]
        if store.shards > 1:
            loops.append(Loop(outbox_relay.sweep, name="outbox_relay", every=SWEEP, telemetry=core.telemetry))
        if not burst:
            loops += background_loops(core, self._keep)
        core.telemetry.emit("worker.started", worker=self.id, queues=self.queues, labels=self.labels)
        cut = False
        try:
            lease_renewer.open()
            listener.open()
            watchdog.start()
            for loop in loops:
                loop.start()
            producer.on_closed = self._on_closed
            if burst:
                producer.on_exhausted = self.stop
            producer.begin()
            while not self._stops:
                await self._wait(None)
            heartbeat.draining = True
            loops[0].wake()
            await self._drain(executor, producer)
        except asyncio.CancelledError:
            cut = True
            await self._abort(executor, producer)
            raise
        finally:
            producer.claiming = False
            await listener.close()
            await producer.close()
            for loop in loops:
                await loop.stop(within=0.0 if cut else 1.0)
            timeouts.close()
            lease_renewer.close()
            watchdog.stop()
            await executor.close()
            await outbox_relay.close()
            with suppress(BackstayError, TimeoutError):
                await asyncio.wait_for(heartbeat.unregister(), FLUSH_NOW)
            core.telemetry.emit("worker.stopped", worker=self.id, **self.counts)

    async def _wait(self, timeout: float | None) -> None:
        assert self._changed is not None  # noqa: S101 - made by run()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), timeout)
        self._changed.clear()

    async def _drain(self, executor: Executor, producer: Producer) -> None:
        """Wait for running handlers up to the drain limit, then interrupt the remaining ones and release their jobs."""
        slots = self._slots
        producer.stop_claiming()
        producer.on_change = self._wake
        if slots.busy:
            log.info("draining: waiting for %d running jobs", slots.busy)
        until = min([steady(), *self._stop_requested]) + self._drain_limit
        while slots.busy and self._stops == 1 and (left := until - steady()) > 0:
            await self._wait(left)
        hurried = self._stops > 1
        if slots.busy:
            log.warning("stopping %d running jobs and releasing them", slots.busy)
            executor.stop(min(GRACE_NOW, self._grace) if hurried else self._grace)
            while slots.busy:
                if self._stops > 1 and not hurried:
                    hurried = True
                    executor.stop(min(GRACE_NOW, self._grace))
                await self._wait(0.5)
        await self._flush(producer, FLUSH_NOW if hurried else FLUSH)

    async def _flush(self, producer: Producer, limit: float) -> None:
        try:
            await asyncio.wait_for(producer.wait_idle(), limit)
        except TimeoutError:
            log.warning("the last outcomes were not acknowledged within %g s; the leases of their jobs expire", limit)

    async def _abort(self, executor: Executor, producer: Producer) -> None:
        """Interrupt all handlers and release their jobs quickly, after `run` itself was cancelled."""
        self._stops = 2
        producer.stop_claiming()
        with suppress(asyncio.CancelledError):  # cancelled again: stop without acknowledging
            executor.stop(min(GRACE_NOW, self._grace))
            while self._slots.busy:
                await self._wait(0.1)
            await self._flush(producer, FLUSH_NOW)

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()

    def _on_closed(self) -> None:
        log.warning("the Backstay of this worker was closed: stopping now")
        self.stop(now=True)

    def _on_signal(self, name: str) -> None:
        log.warning("%s: %s", name, "stopping now" if self._stops else "draining; send it again to stop now")
        self.stop()

    def _accepts(self, job_type: str) -> bool | None:
        """Whether this worker runs jobs of a type: it must serve the queue of the type's definition and have all its
        labels. None if this process does not define the type.
        """
        definition = self._core.services.get(JOB_TYPES).get(job_type)
        if definition is None:
            if job_type == COMMAND:
                return COMMANDS in self.queues
            return True if job_type in self._core.services.get(INTERNAL_JOB_TYPES) else None
        return definition.queue in self.queues and set(definition.labels) <= set(self.labels)
