"""Running handlers: async ones as tasks with a context of their own, others in threads or child processes.

Whatever a handler does ends its attempt and nothing else: an exception of any kind, sys.exit(), a process that dies.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from backstay.engine.base import UNREADABLE, steady
from backstay.errors import BackstayError
from backstay.job.api.context import JobContext, enter
from backstay.job.flows import send
from backstay.job.model import Claimed, Finish, StepReply
from backstay.job.reserved import INTERNAL
from backstay.job.worker.execution import outcome
from backstay.job.worker.execution.attempt import FOREVER, Attempt
from backstay.job.worker.execution.children import Children
from backstay.job.worker.execution.inject_results import filled
from backstay.job.worker.execution.log_buffer import Journal
from backstay.job.worker.execution.outcome import Abandoned, Raised
from backstay.job.worker.execution.threads import Threads

if TYPE_CHECKING:
    from backstay.job.store import Store
    from backstay.job.worker.execution.timeouts import Overtime
    from backstay.job.worker.lease_renewer import Tending
    from backstay.job.worker.prefetch import Ahead
    from backstay.job.worker.producer import Dispatch
    from backstay.job.worker.slots import Slots
    from backstay.runtime.core import Core

log = logging.getLogger("backstay")

#: The definition of what is given back as it came.
_NEVER_RUN: Any = None


class Runner:
    """Starts what was claimed, and makes of every end a `Finish`."""

    dispatch: Dispatch
    tending: Tending
    overtime: Overtime
    ahead: Ahead
    #: Called with jobs that have just begun.
    began: Callable[[Sequence[Claimed]], None]

    def __init__(self, core: Core, store: Store, slots: Slots, *, lease: float, grace: float) -> None:
        self._core = core
        self._store = store
        self._slots = slots
        self._lease = lease
        #: Seconds a handler has after it was asked to end.
        self.grace = grace
        self._loop = asyncio.get_running_loop()
        self._threads = Threads(self._loop)
        self._children = Children()
        #: Tasks that nobody waits for: handlers left behind, last words of others.
        self._stray: set[asyncio.Task[Any]] = set()
        self._jobs = core.jobs
        self._middleware = core.middleware
        self._telemetry = core.telemetry

    # ── beginning ──

    def start(self, reply: StepReply, shard: int, sent: float) -> None:
        """Run what a step brought."""
        if self.dispatch.claiming:
            self.ahead.put(reply.jobs, shard, sent)
        else:
            self.give_back(reply.jobs, shard, sent)

    def begin(self, claimed: Sequence[Claimed], shard: int, sent: float) -> None:
        """There is a place for each of these."""
        slots, held, jobs, internals = self._slots, self._slots.held, self._jobs, self._core.internals
        create_task, lease = self._loop.create_task, self._lease
        now = steady()
        soonest = FOREVER
        telling = self._telemetry.active
        plain = not self._middleware
        for job in claimed:
            definition = jobs.get(job.type)
            if definition is None:
                definition = internals.get(job.type)
                if definition is None:
                    self._unknown(job, shard, sent)
                    continue
            broken = None
            if job.run and job.meta:
                try:
                    job = filled(job)  # noqa: PLW2901 - the job as its handler sees it
                except (BackstayError, *UNREADABLE) as error:
                    broken = Raised(type(error).__name__, str(error), "", pointless=True)
            if job.id in held:
                self._outlived(held[job.id])
            attempt = Attempt(job, definition, shard, lease, sent)
            attempt.started = now
            held[job.id] = attempt
            slots.busy += 1
            if broken is not None:
                self._ended(attempt, None, broken)
                continue
            timeout = (own_timeout(job) if job.meta else 0.0) or definition.timeout
            if timeout:
                attempt.soft = now + timeout
                soonest = min(soonest, attempt.soft)
            if definition.is_async and (plain or definition.queue == INTERNAL):
                attempt.task = create_task(self._run(attempt))
            else:
                attempt.task = create_task(self._run_around(attempt))
            if telling:
                self._telemetry.tell("job.started", id=job.id, type=job.type, queue=job.queue, attempt=job.attempt)
        self._telemetry.counts["job.started"] += len(claimed)
        self.tending.added(sent + lease / 3)
        if soonest < FOREVER:
            self.overtime.arm(soonest)
        self.began(claimed)

    def give_back(self, claimed: Sequence[Claimed], shard: int, sent: float) -> None:
        """What came when the worker had been told to stop, or came too early."""
        for job in claimed:
            attempt = Attempt(job, _NEVER_RUN, shard, self._lease, sent)
            attempt.finish = Finish(job=job.id, fence=job.fence, kind="release")
            self._hold(attempt)
            self.dispatch.finish(attempt)

    def _hold(self, attempt: Attempt) -> None:
        held = self._slots.held
        if attempt.job.id in held:
            self._outlived(held[attempt.job.id])
        held[attempt.job.id] = attempt

    def _outlived(self, attempt: Attempt) -> None:
        """Its job has come again: it was taken from us before we knew. Until it has ended, it has a place."""
        self.lost(attempt, "it ran out, and was claimed anew")
        self._slots.outlived = [each for each in (*self._slots.outlived, attempt) if not each.is_over]

    def _unknown(self, job: Claimed, shard: int, sent: float) -> None:
        attempt = Attempt(job, _NEVER_RUN, shard, self._lease, sent)
        finish = outcome.unknown(job, tuple(sorted(self._jobs)))
        attempt.finish = outcome.stamped(finish, self._core.engine.now())
        self._hold(attempt)
        if not job.snoozes:
            log.warning("no job type %r is defined here; %s waits for a worker that knows it", job.type, job.id)
        self._telemetry.emit("job.unknown", id=job.id, type=job.type)
        self.dispatch.finish(attempt)

    # ── running ──

    async def _run(self, attempt: Attempt) -> None:
        """An async handler with nothing around it: the hot path."""
        enter((attempt, self))
        definition = attempt.definition
        try:
            args, kwargs = definition.decode_args(attempt.job.args)
            attempt.begin()
            value = await definition.function(*args, **kwargs)
        except BaseException as error:
            if self._is_shutdown(attempt, error):
                raise
            self._ended(attempt, None, error)
        else:
            self._ended(attempt, value, None)

    async def _run_around(self, attempt: Attempt) -> None:
        """Any handler, with middleware around it."""
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
            self._ended(attempt, None, error)
        else:
            self._ended(attempt, value, None)

    async def _call(self, attempt: Attempt) -> Any:
        definition = attempt.definition
        attempt.begin()
        if definition.pool == "process" and not definition.is_async:
            return await self._children.run(attempt, self)
        args, kwargs = definition.decode_args(attempt.job.args)
        if definition.is_async:
            return await definition.function(*args, **kwargs)
        future: asyncio.Future[tuple[Any, BaseException | None]] = self._loop.create_future()

        def answer(value: Any, error: BaseException | None) -> None:
            if not future.done():
                future.set_result((value, error))

        # A thread cannot be stopped: it reads `ctx.cancelled` or calls `ctx.check()`, or is left behind.
        attempt.interrupted = _nothing
        handler = partial(attempt.begun, partial(definition.function, *args, **kwargs))
        errand = self._threads.call(copy_context(), handler, answer)
        attempt.kill = errand.abandon
        value, error = await future
        attempt.kill = attempt.interrupted = None
        if error is not None:
            raise error
        return value

    def _is_shutdown(self, attempt: Attempt, error: BaseException) -> bool:
        """The loop went away under the handler: there is nobody left to tell."""
        if not isinstance(error, GeneratorExit):
            return False
        try:
            return asyncio.current_task() is not attempt.task
        except RuntimeError:
            return True

    # ── ending ──

    def _ended(self, attempt: Attempt, value: Any, error: BaseException | None) -> None:
        if attempt.abandoned:
            return
        attempt.task = None  # its context holds the attempt: a circle that would have to be collected
        finish = outcome.complete(attempt, value) if error is None else outcome.raised(attempt, error)
        if finish is not None and finish.error is not None:
            finish = outcome.stamped(finish, self._core.engine.now())
        if finish is None:
            self._slots.vacate()
            self._let_go(attempt)
            self.dispatch.stir()
            return
        if attempt.journal is not None or attempt.outputs:
            attempt.soft = attempt.hard = FOREVER
            self._stray_task(self._last_words(attempt, finish))
            return
        self._slots.vacate()
        attempt.finish = finish
        self.dispatch.finish(attempt)

    async def _last_words(self, attempt: Attempt, finish: Finish) -> None:
        """What it said and put out is stored before its end is: afterwards the lease is gone."""
        job = attempt.job
        try:
            if attempt.journal is not None:
                await attempt.journal.close()
            if attempt.outputs and finish.kind == "complete":
                outcome.check_outputs(attempt)
                await send(self._core, self._store.put_outputs(job.id, job.fence, attempt.outputs))
        except Exception as error:  # noqa: BLE001 - whatever it is, the attempt must end, or its slot is lost
            log.warning("what %s left could not be stored: %s", attempt.name, error)
            if finish.kind == "complete":
                finish = outcome.stamped(outcome.unkept(attempt, error), self._core.engine.now())
        if attempt.abandoned:
            return
        self._slots.vacate()
        attempt.finish = finish
        self.dispatch.finish(attempt)

    def _let_go(self, attempt: Attempt) -> None:
        if self._slots.held.get(attempt.job.id) is attempt:
            del self._slots.held[attempt.job.id]
        elif attempt in self._slots.outlived:
            self._slots.outlived.remove(attempt)

    def late(self, attempt: Attempt) -> None:
        """Its time is over."""
        if attempt.interrupt("timeout", "its time is over", self.grace):
            self._telemetry.emit("job.timeout", id=attempt.job.id, type=attempt.job.type)
            self.overtime.arm(attempt.hard)

    def lost(self, attempt: Attempt, reason: str) -> None:
        """Its lease is somebody else's, or nobody's."""
        if attempt.is_over or attempt.why == "lost":
            return
        self._telemetry.emit("job.lost", id=attempt.job.id, type=attempt.job.type, fence=attempt.job.fence, why=reason)
        log.warning("the lease of %s was lost: %s", attempt.name, reason)
        attempt.interrupt("lost", reason, self.grace)
        self.overtime.arm(attempt.hard)

    def cancelled(self, attempt: Attempt, reason: str) -> None:
        """Somebody wants it to end."""
        if attempt.interrupt("cancelled", reason, self.grace):
            self.overtime.arm(attempt.hard)

    def stop(self, grace: float) -> None:
        """The worker stops: every handler is to end, and its job goes back."""
        for attempt in self._slots.running():
            if not attempt.interrupt("stopping", "its worker stops", grace):
                attempt.hard = min(attempt.hard, steady() + grace)
            self.overtime.arm(attempt.hard)

    def abandon(self, attempt: Attempt) -> None:
        """Nobody waits for it any more. What it still does counts no more, and its slot is free."""
        if attempt.is_over:
            return
        how = "it was killed" if attempt.definition.pool == "process" else "it may still run, and counts no more"
        error = Abandoned(f"it did not end within {self.grace:g} s of being told to; {how}")
        finish = outcome.raised(attempt, error)
        attempt.abandoned = True
        log.warning("%s was left behind (%s): %s", attempt.name, attempt.why, error)
        self._telemetry.emit("job.abandoned", id=attempt.job.id, type=attempt.job.type, why=attempt.why)
        if attempt.kill is not None:
            attempt.kill()
        if attempt.task is not None and not attempt.task.done():
            self._stray.add(attempt.task)
            attempt.task.add_done_callback(self._stray.discard)
            if attempt.interrupted is not None:  # it only waits for a thread or a process
                attempt.task.cancel()
        self._slots.vacate()
        if finish is None:
            self._let_go(attempt)
            self.dispatch.stir()
        else:
            attempt.finish = outcome.stamped(finish, self._core.engine.now())
            self.dispatch.finish(attempt)

    def _stray_task(self, coro: Any) -> None:
        task = self._loop.create_task(coro)
        self._stray.add(task)
        task.add_done_callback(self._stray.discard)

    async def close(self) -> None:
        """Threads and processes end; handlers that were left behind are cancelled once more."""
        self._threads.close()
        stray = list(self._stray)
        for task in stray:
            task.cancel()
        if stray:
            _, deaf = await asyncio.wait(stray, timeout=0.2)
            for task in deaf:
                _disown(task)
        await self._children.close()

    # ── what handlers say ──

    def log(self, hands: Attempt, data: str, stream: str) -> None:
        if hands.is_over:
            return
        if hands.journal is None:
            hands.journal = Journal(self._core, self._store, self._loop, hands)
        hands.journal.say(data, stream)

    def progressed(self, hands: Attempt) -> None:
        self.tending.progressed(hands)


def own_timeout(job: Claimed) -> float:
    """What its caller asked for; 0: nothing, or nothing that could be read."""
    try:
        return outcome.meta_of(job).timeout
    except BackstayError:
        return 0.0


def _nothing() -> None:
    pass


def _disown(task: asyncio.Task[Any]) -> None:
    """A handler that swallows its cancellation: the end of the loop must not wait for it, as asyncio.run() would, or
    the process never ends.
    """
    asyncio.tasks._unregister_task(task)  # noqa: SLF001 - documented for those who extend asyncio
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001  # pyright: ignore[reportAttributeAccessIssue] - it was told already
