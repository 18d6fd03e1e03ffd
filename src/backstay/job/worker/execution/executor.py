"""The executor: runs async handlers as tasks, other handlers in threads or child processes, and reports their outcomes.

Whatever a handler raises, and even if it calls sys.exit() or its child process dies, only its attempt ends, never the
worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from backstay.engine.base import DECODE_ERRORS, steady
from backstay.errors import BackstayError
from backstay.job.api.context import JobContext, enter
from backstay.job.api.middleware import MIDDLEWARE
from backstay.job.api.registry import INTERNAL_JOB_TYPES, JOB_TYPES
from backstay.job.exchange import Claimed, ExchangeReply
from backstay.job.flows import send
from backstay.job.model import Finish
from backstay.job.reserved import INTERNAL
from backstay.job.worker.execution import outcome
from backstay.job.worker.execution.attempt import FOREVER, Attempt
from backstay.job.worker.execution.children import Children
from backstay.job.worker.execution.inject_results import inject_results
from backstay.job.worker.execution.log_buffer import LogBuffer
from backstay.job.worker.execution.outcome import HandlerAbandoned, HandlerError
from backstay.job.worker.execution.threads import Threads

if TYPE_CHECKING:
    from backstay.job.store import Store
    from backstay.job.worker.execution.timeouts import Timeouts
    from backstay.job.worker.lease_renewer import LeaseRenewer
    from backstay.job.worker.prefetch import Prefetcher
    from backstay.job.worker.producer import Producer
    from backstay.job.worker.slots import Slots
    from backstay.runtime.core import Core

log = logging.getLogger("backstay")

#: Passed as the job type (`Attempt.definition`) of an attempt whose handler never runs, because its job is released or
#: snoozed at once.
_NEVER_RUN: Any = None


class Executor:
    """Starts claimed jobs and turns every end of a handler into a `Finish`. All methods run on the event loop, except
    `log` and `report_progress`, which are thread-safe.
    """

    producer: Producer
    lease_renewer: LeaseRenewer
    timeouts: Timeouts
    prefetcher: Prefetcher
    #: Called with jobs that have just started.
    on_started: Callable[[Sequence[Claimed]], None]

    def __init__(self, core: Core, store: Store, slots: Slots, *, lease: float, grace: float) -> None:
        self._core = core
        self._store = store
        self._slots = slots
        self._lease = lease
        #: A handler that still runs this many seconds after its interruption is abandoned.
        self.grace = grace
        self._loop = asyncio.get_running_loop()
        self._threads = Threads(self._loop)
        self._children = Children()
        #: Tasks that nothing awaits: abandoned handlers, and the storing of logs and outputs of ended handlers.
        self._orphans: set[asyncio.Task[Any]] = set()
        self._jobs = core.services.get(JOB_TYPES)
        self._internals = core.services.get(INTERNAL_JOB_TYPES)
        self._middleware = core.services.get(MIDDLEWARE)
        self._telemetry = core.telemetry

    # ── starting ──

    def start(self, reply: ExchangeReply, shard: int, sent: float) -> None:
        """Start claimed jobs as soon as slots are free, or release them if the worker is stopping."""
        if self.producer.claiming:
            self.prefetcher.put(reply.jobs, shard, sent)
        else:
            self.release_jobs(reply.jobs, shard, sent)

    def begin(self, claimed: Sequence[Claimed], shard: int, sent: float) -> None:
        """Start jobs at once. The caller has checked that there are enough free slots."""
        slots, leased, jobs, internals = self._slots, self._slots.leased, self._jobs, self._internals
        create_task, lease = self._loop.create_task, self._lease
        now = steady()
        soonest = FOREVER
        emits = self._telemetry.has_subscribers
        plain = not self._middleware
        for job in claimed:
            definition = jobs.get(job.type)
            if definition is None:
                definition = internals.get(job.type)
                if definition is None:
                    self._snooze_unknown(job, shard, sent)
                    continue
            broken = None
            if job.run and job.meta:
                try:
                    job = inject_results(job)  # noqa: PLW2901 - the job as its handler sees it
                except (BackstayError, *DECODE_ERRORS) as error:
                    broken = HandlerError(type(error).__name__, str(error), "", pointless=True)
            if job.id in leased:
                self._supersede(leased[job.id])
            attempt = Attempt(job, definition, shard, lease, sent)
            attempt.started = now
            leased[job.id] = attempt
            slots.busy += 1
            if broken is not None:
                self._finish(attempt, None, broken)
                continue
            timeout = (caller_timeout(job) if job.meta else 0.0) or definition.timeout
            if timeout:
                attempt.timeout_at = now + timeout
                soonest = min(soonest, attempt.timeout_at)
            if definition.is_async and (plain or definition.queue == INTERNAL):
                attempt.task = create_task(self._run(attempt))
            else:
                attempt.task = create_task(self._run_with_middleware(attempt))
            if emits:
                self._telemetry.notify("job.started", id=job.id, type=job.type, queue=job.queue, attempt=job.attempt)
        self._telemetry.counts["job.started"] += len(claimed)
        self.lease_renewer.schedule(sent + lease / 3)
        if soonest < FOREVER:
            self.timeouts.arm(soonest)
        self.on_started(claimed)

    def release_jobs(self, claimed: Sequence[Claimed], shard: int, sent: float) -> None:
        """Release jobs without running them: the worker is stopping, or no slot became free for prefetched jobs."""
        for job in claimed:
            attempt = Attempt(job, _NEVER_RUN, shard, self._lease, sent)
            attempt.finish = Finish(job=job.id, fence=job.fence, kind="release")
            self._track(attempt)
            self.producer.finish(attempt)

    def _track(self, attempt: Attempt) -> None:
        leased = self._slots.leased
        if attempt.job.id in leased:
            self._supersede(leased[attempt.job.id])
        leased[attempt.job.id] = attempt

    def _supersede(self, attempt: Attempt) -> None:
        """Mark an older attempt as lost, because this worker has claimed the same job again: the lease of the older
        attempt had expired without this worker noticing it. The older attempt keeps its slot until its handler has
        ended.
        """
        self.lose_lease(attempt, "the lease expired and this worker claimed the job again")
        self._slots.superseded = [each for each in (*self._slots.superseded, attempt) if not each.is_over]

    def _snooze_unknown(self, job: Claimed, shard: int, sent: float) -> None:
        attempt = Attempt(job, _NEVER_RUN, shard, self._lease, sent)
        finish = outcome.snooze_unknown(job, tuple(sorted(self._jobs)))
        attempt.finish = outcome.stamp_failure(finish, self._core.engine.now())
        self._track(attempt)
        if not job.snoozes:
            log.warning("job type %r is not defined here; %s waits for a worker that defines it", job.type, job.id)
        self._telemetry.emit("job.unknown", id=job.id, type=job.type)
        self.producer.finish(attempt)

    # ── running ──

    async def _run(self, attempt: Attempt) -> None:
        """Run an async handler without middleware: the hot path."""
        enter((attempt, self))
        definition = attempt.definition
        try:
            args, kwargs = definition.decode_args(attempt.job.args)
            attempt.require_lease()
            value = await definition.function(*args, **kwargs)
        except BaseException as error:
            if self._is_shutdown(attempt, error):
                raise
            self._finish(attempt, None, error)
        else:
            self._finish(attempt, value, None)

    async def _run_with_middleware(self, attempt: Attempt) -> None:
        """Run a handler of any kind (async, in a thread, in a child process) inside the middleware, if there is any."""
        enter((attempt, self))
        try:
            call: Callable[[], Awaitable[Any]] = partial(self._call, attempt)
            if self._middleware:
                attempt.context = context = JobContext(attempt, self)
                for layer in reversed(self._middleware):
                    call = partial(layer.attempt, context, call)
            value = await call()
        except BaseException as error:
            if self._is_shutdown(attempt, error):
                raise
            self._finish(attempt, None, error)
        else:
            self._finish(attempt, value, None)

    async def _call(self, attempt: Attempt) -> Any:
        definition = attempt.definition
        attempt.require_lease()
        if definition.pool == "process" and not definition.is_async:
            return await self._children.run(attempt, self)
        args, kwargs = definition.decode_args(attempt.job.args)
        if definition.is_async:
            return await definition.function(*args, **kwargs)
        future: asyncio.Future[tuple[Any, BaseException | None]] = self._loop.create_future()

        def on_result(value: Any, error: BaseException | None) -> None:
            if not future.done():
                future.set_result((value, error))

        # A thread cannot be stopped from outside. Its handler must check `ctx.cancelled` or call `ctx.check()`;
        # otherwise it is abandoned.
        attempt.on_interrupt = _ignore
        handler = partial(attempt.call_leased, partial(definition.function, *args, **kwargs))
        thread_call = self._threads.call(copy_context(), handler, on_result)
        attempt.kill = thread_call.abandon
        value, error = await future
        attempt.kill = attempt.on_interrupt = None
        if error is not None:
            raise error
        return value

    def _is_shutdown(self, attempt: Attempt, error: BaseException) -> bool:
        """Whether the handler ended because the event loop was closed, so that no outcome can be reported."""
        if not isinstance(error, GeneratorExit):
            return False
        try:
            return asyncio.current_task() is not attempt.task
        except RuntimeError:
            return True

    # ── finishing ──

    def _finish(self, attempt: Attempt, value: Any, error: BaseException | None) -> None:
        if attempt.abandoned:
            return
        attempt.task = None  # breaks a reference cycle: the task's context holds the attempt
        finish = outcome.finish_value(attempt, value) if error is None else outcome.finish_error(attempt, error)
        if finish is not None and finish.error is not None:
            finish = outcome.stamp_failure(finish, self._core.engine.now())
        if finish is None:
            self._slots.vacate()
            self._untrack(attempt)
            self.producer.schedule_flush()
            return
        if attempt.log_buffer is not None or attempt.outputs:
            attempt.timeout_at = attempt.abandon_at = FOREVER
            self._spawn_orphan(self._flush_then_finish(attempt, finish))
            return
        self._slots.vacate()
        attempt.finish = finish
        self.producer.finish(attempt)

    async def _flush_then_finish(self, attempt: Attempt, finish: Finish) -> None:
        """Store the attempt's log and outputs, then report its outcome. In this order, because only the holder of the
        lease may store them, and the outcome ends the lease.
        """
        job = attempt.job
        try:
            if attempt.log_buffer is not None:
                await attempt.log_buffer.close()
            if attempt.outputs and finish.kind == "complete":
                outcome.check_outputs(attempt)
                await send(self._core, self._store.put_outputs(job.id, job.fence, attempt.outputs))
        except Exception as error:  # noqa: BLE001 - the attempt must finish after any error, or its slot is lost
            log.warning("the log or outputs of %s could not be stored: %s", attempt.name, error)
            if finish.kind == "complete":
                finish = outcome.stamp_failure(outcome.retry_or_fail(attempt, error), self._core.engine.now())
        if attempt.abandoned:
            return
        self._slots.vacate()
        attempt.finish = finish
        self.producer.finish(attempt)

    def _untrack(self, attempt: Attempt) -> None:
        if self._slots.leased.get(attempt.job.id) is attempt:
            del self._slots.leased[attempt.job.id]
        elif attempt in self._slots.superseded:
            self._slots.superseded.remove(attempt)

    def time_out(self, attempt: Attempt) -> None:
        """Interrupt an attempt that has exceeded its time limit."""
        if attempt.interrupt("timeout", "the time limit is exceeded", self.grace):
            self._telemetry.emit("job.timeout", id=attempt.job.id, type=attempt.job.type)
            self.timeouts.arm(attempt.abandon_at)

    def lose_lease(self, attempt: Attempt, reason: str) -> None:
        """Interrupt an attempt whose lease is lost: another worker may run its job."""
        if attempt.is_over or attempt.why == "lost":
            return
        self._telemetry.emit("job.lost", id=attempt.job.id, type=attempt.job.type, fence=attempt.job.fence, why=reason)
        log.warning("the lease of %s was lost: %s", attempt.name, reason)
        attempt.interrupt("lost", reason, self.grace)
        self.timeouts.arm(attempt.abandon_at)

    def cancel(self, attempt: Attempt, reason: str) -> None:
        """Interrupt an attempt whose job was cancelled."""
        if attempt.interrupt("cancelled", reason, self.grace):
            self.timeouts.arm(attempt.abandon_at)

    def stop(self, grace: float) -> None:
        """Interrupt all running handlers, because the worker is stopping. Their jobs are then released."""
        for attempt in self._slots.running_attempts():
            if not attempt.interrupt("stopping", "the worker is stopping", grace):
                attempt.abandon_at = min(attempt.abandon_at, steady() + grace)
            self.timeouts.arm(attempt.abandon_at)

    def abandon(self, attempt: Attempt) -> None:
        """Stop waiting for an interrupted handler: its attempt ends now and its slot is free. A handler in a thread may
        still run, but its outcome is ignored; a child process is killed.
        """
        if attempt.is_over:
            return
        how = (
            "it was killed" if attempt.definition.pool == "process" else "it may still run, but its outcome is ignored"
        )
        error = HandlerAbandoned(f"it did not end within {self.grace:g} s of its interruption; {how}")
        finish = outcome.finish_error(attempt, error)
        attempt.abandoned = True
        log.warning("%s was abandoned (%s): %s", attempt.name, attempt.why, error)
        self._telemetry.emit("job.abandoned", id=attempt.job.id, type=attempt.job.type, why=attempt.why)
        if attempt.kill is not None:
            attempt.kill()
        if attempt.task is not None and not attempt.task.done():
            self._orphans.add(attempt.task)
            attempt.task.add_done_callback(self._orphans.discard)
            if attempt.on_interrupt is not None:  # the task only waits for a thread or a process
                attempt.task.cancel()
        self._slots.vacate()
        if finish is None:
            self._untrack(attempt)
            self.producer.schedule_flush()
        else:
            attempt.finish = outcome.stamp_failure(finish, self._core.engine.now())
            self.producer.finish(attempt)

    def _spawn_orphan(self, coro: Any) -> None:
        task = self._loop.create_task(coro)
        self._orphans.add(task)
        task.add_done_callback(self._orphans.discard)

    async def close(self) -> None:
        """End idle threads and all child processes; cancel abandoned handlers once more."""
        self._threads.close()
        stray = list(self._orphans)
        for task in stray:
            task.cancel()
        if stray:
            _, unresponsive = await asyncio.wait(stray, timeout=0.2)
            for task in unresponsive:
                _detach_task(task)
        await self._children.close()

    # ── AttemptSink ──

    def log(self, attempt: Attempt, data: str, stream: str) -> None:
        if attempt.is_over:
            return
        if attempt.log_buffer is None:
            attempt.log_buffer = LogBuffer(self._core, self._store, self._loop, attempt)
        attempt.log_buffer.write(data, stream)

    def report_progress(self, attempt: Attempt) -> None:
        self.lease_renewer.report_progress(attempt)


def caller_timeout(job: Claimed) -> float:
    """Return the time limit that the caller set for this job; 0 if there is none or it cannot be read."""
    try:
        return outcome.read_meta(job).timeout
    except BackstayError:
        return 0.0


def _ignore() -> None:
    pass


def _detach_task(task: asyncio.Task[Any]) -> None:
    """Unregister the task of a handler that swallows its cancellation. Otherwise asyncio.run() would wait for the task
    when it closes the loop, and the process would never exit.
    """
    asyncio.tasks._unregister_task(task)  # noqa: SLF001 - documented for extending asyncio
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001  # pyright: ignore[reportAttributeAccessIssue] - the abandonment is already logged
