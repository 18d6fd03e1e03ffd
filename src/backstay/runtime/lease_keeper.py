"""The keeper: one thread per engine that renews all leases of the process, many in one call.

It is a thread, so a blocked event loop does not lose leases, and has a connection of its own, so a full pipeline does
not delay renewals. A failed renewal is retried until the lease has expired.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from backstay.engine.base import Apply, Engine, Expired, steady
from backstay.errors import EngineError
from backstay.runtime.lease import LIVE, BaseLease
from backstay.telemetry import Telemetry

#: A lease that is due within this fraction of its TTL is renewed together with those due now, to save round trips.
TOGETHER = 1 / 6
#: After a failed renewal, the next attempt follows after an eighth of the lease's remaining time, but not sooner than
#: RETRY_AT_LEAST and not later than RETRY_AT_MOST seconds.
RETRY_AT_LEAST, RETRY_AT_MOST = 0.02, 1.0
#: The timeout of one renewal call in seconds. While the call waits for a server, the keeper cannot notice that other
#: leases are lost.
LONGEST_CALL = 5.0
LONGEST_CALL_MICROS = int(LONGEST_CALL * 1_000_000)
#: How often `close` sends the commands given to `send_later` that have not arrived. The first attempt may fail merely
#: because the connection has died while it was idle.
FINAL_SENDS = 2
#: TASK_PAUSE: seconds between two attempts of a task (`run_until_done`). TASK_CALL: the longest time, in seconds, that
#: one attempt may wait for the engine.
TASK_PAUSE, TASK_CALL = 0.5, 1.0
FOREVER = float("inf")

#: A function that the keeper calls until it returns True: the task is done. It gets a timeout in seconds.
Task = Callable[[float], bool]


class DeferredCommand(NamedTuple):
    """A command given to `send_later`."""

    op: Apply
    #: The time (steady clock) after which the command is dropped.
    until: float
    #: The lease that the keeper renews until the command has arrived or is dropped; None: no lease.
    lease: BaseLease | None = None


class Renewer(Protocol):
    """An object that renews many leases in one call, so that they need not be added to the keeper one by one. A worker
    registers a renewer for the leases of its jobs.
    """

    def renew_due(self, now: float) -> float:
        """Renew the leases that are due, on the keeper's thread, within about `LONGEST_CALL` seconds. Returns when
        (steady clock) to be called again.
        """
        ...


class Keeper:
    """Renews each lease that was added to it until the lease is discarded or lost, or was held for its `max_hold`. Any
    thread may call any method.
    """

    def __init__(
        self, engine: Engine, telemetry: Telemetry, forget: Callable[[BaseLease], None] = lambda _: None
    ) -> None:
        self._engine = engine
        #: A callback that gets every lease that is lost. The core stops tracking the lease.
        self._forget = forget
        self._telemetry = telemetry
        self._reset()

    def _reset(self) -> None:
        self._leases: dict[BaseLease, None] = {}
        self._pending: list[DeferredCommand] = []
        self._renewers: dict[Renewer, None] = {}
        self._tasks: dict[str, Task] = {}
        self._tasks_at = FOREVER
        #: The callbacks given to `call_soon`.
        self._calls: deque[Callable[[], None]] = deque()
        self._wake_at = FOREVER
        #: Callers take this lock itself, never the condition: a signal handler that raises in the Python code of
        #: `Condition.__exit__` would leave the lock locked for ever. The keeper's own thread runs no signal handlers.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._stopping = False

    def add(self, lease: BaseLease) -> None:
        self._leases[lease] = None
        if lease.due < self._wake_at or lease.deadline < self._wake_at:
            self._wake_by(min(lease.due, lease.deadline))

    def discard(self, lease: BaseLease) -> None:
        self._leases.pop(lease, None)

    def reschedule(self, lease: BaseLease) -> None:
        """Wake the keeper in time for a lease whose `due` or `deadline` has become earlier."""
        self._wake_by(min(lease.due, lease.deadline))

    def register(self, renewer: Renewer) -> None:
        """Add a renewer, which the keeper calls from now on. The renewer itself calls `wake` to set the time of the
        first call.
        """
        self._renewers[renewer] = None

    def unregister(self, renewer: Renewer) -> None:
        self._renewers.pop(renewer, None)

    def wake(self, at: float) -> None:
        """Call the renewers no later than `at` (steady clock), even if they returned a later time."""
        if at < self._wake_at:
            self._wake_by(at)

    def send_later(self, op: Apply, until: float, lease: BaseLease | None = None) -> None:
        """Send a command (such as the release of a lock) in the background, because the caller could not send it. It is
        retried until `until` (steady clock), whatever the engine's failure, unless that is permanent. `lease`: a live
        lease that the command ends. It is renewed until then, so that no other caller gets it before.
        """
        with self._lock:
            self._pending.append(DeferredCommand(op, until, lease))
        if lease is not None:
            self._leases[lease] = None
        self._wake_by(steady())

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, on the keeper's thread. A weak reference's callback may call this: it runs at any
        moment, even while this thread holds the keeper's lock, so this method never waits for that lock. If the lock is
        taken, the keeper makes the call at its next tick.
        """
        self._calls.append(callback)
        if self._lock.acquire(blocking=False):
            try:
                self._wake_locked(steady())
            finally:
                self._lock.release()

    def run_until_done(self, name: str, task: Task) -> None:
        """Attempt a task every `TASK_PAUSE` seconds until it is done. Does nothing if a task of the same name is not
        done yet.
        """
        if name in self._tasks:
            return
        with self._lock:
            self._tasks[name] = task
            self._tasks_at = min(self._tasks_at, steady() + TASK_PAUSE)
        self._wake_by(self._tasks_at)

    def _wake_by(self, at: float) -> None:
        with self._lock:
            self._wake_locked(at)

    def _wake_locked(self, at: float) -> None:
        self._wake_at = min(self._wake_at, at)
        if self._thread is None and not self._stopping:
            self._thread = threading.Thread(target=self._run, name="backstay-keeper", daemon=True)
            try:
                self._thread.start()
            except BaseException:  # no thread, or an interrupt: if the thread did start, `_run` ends it
                self._thread = None
                raise
        self._changed.notify()

    def _run(self) -> None:
        with self._lock:
            if self._thread is not threading.current_thread():
                return  # the caller that started this thread was interrupted; the next caller starts another
        while True:
            with self._changed:
                while not self._stopping and not self._calls:
                    pause = self._wake_at - steady()
                    if pause <= 0:
                        break
                    self._changed.wait(None if pause == FOREVER else pause)
                if self._stopping:
                    return
                self._wake_at = FOREVER
            try:
                wake_at = self.tick()
            except Exception:  # noqa: BLE001 - all leases depend on this thread: it must not end
                self._telemetry.emit("keeper.failed")
                wake_at = steady() + RETRY_AT_MOST
            with self._changed:
                self._wake_at = min(self._wake_at, wake_at)

    def tick(self) -> float:
        """Renew the leases that are due, mark expired ones as lost, make the calls given to `call_soon`, send the
        commands given to `send_later`, call the renewers, and run the tasks that are due. Returns when (steady clock)
        to tick again.
        """
        self._make_calls()
        now = steady()
        due: list[BaseLease] = []
        soon: list[BaseLease] = []
        for lease in list(self._leases):
            if lease.state is not LIVE:
                self.discard(lease)
            elif now >= lease.deadline:
                self._lose(lease, "it expired before it could be renewed")
            elif lease.due <= now:
                due.append(lease)
            elif lease.due <= now + lease.ttl * TOGETHER:
                soon.append(lease)
        if due:
            self._renew(due + soon, now)
        if self._pending:
            self._send_pending(now)
        renewers_at = self._call_renewers()
        if now >= self._tasks_at:
            self._run_tasks()
        wake_at = min((min(lease.due, lease.deadline) for lease in list(self._leases)), default=FOREVER)
        wake_at = min(wake_at, renewers_at, self._tasks_at)
        return min(wake_at, steady() + RETRY_AT_MOST / 4) if self._pending else wake_at

    def _make_calls(self) -> None:
        while self._calls:
            self._calls.popleft()()

    def _call_renewers(self) -> float:
        wake_at = FOREVER
        for renewer in list(self._renewers):
            try:
                wake_at = min(wake_at, renewer.renew_due(steady()))
            except Exception:  # noqa: BLE001 - a failing renewer must not stop the others
                self._telemetry.emit("keeper.failed")
                wake_at = min(wake_at, steady() + RETRY_AT_MOST)
        return wake_at

    def _renew(self, leases: list[BaseLease], now: float) -> None:
        renewing: list[tuple[BaseLease, float]] = []
        for lease in leases:
            if ttl := lease.next_ttl(now):
                renewing.append((lease, ttl))
            else:
                lease.due = FOREVER  # max_hold is reached: no more renewals, the lease expires
        if not renewing:
            return
        shortest = min((lease.deadline for lease in list(self._leases)), default=FOREVER) - now
        timeout = min(LONGEST_CALL, max(RETRY_AT_LEAST, shortest / 2))
        not_after = self._engine.now() + LONGEST_CALL_MICROS
        sent = steady()
        replies = self._engine.apply_many([lease.renewal(not_after, ttl) for lease, ttl in renewing], timeout)
        failed = 0
        for (lease, ttl), reply in zip(renewing, replies, strict=True):
            if isinstance(reply, BaseException):
                failed += 1
                left = lease.deadline - steady()
                lease.due = steady() + min(RETRY_AT_MOST, max(RETRY_AT_LEAST, left / 8))
                continue
            result = lease.judge(reply)
            if result.lost:
                self._lose(lease, result.lost)
            elif result.until:
                lease.record_renewal(result, sent, ttl)
                if lease.hold_until <= sent + ttl:
                    lease.due = FOREVER
            else:  # the command arrived after its `not_after`: renew again at once
                lease.due = sent
        self._telemetry.emit("lease.renewed", count=len(renewing) - failed, failed=failed)

    def _lose(self, lease: BaseLease, reason: str) -> None:
        self.discard(lease)
        self._forget(lease)
        if lease.lose(reason):
            self._telemetry.emit("lease.lost", name=lease.name, lock_id=lease.id, fence=lease.fence, reason=reason)

    def _spare_time(self, most: float) -> float:
        """Return how many seconds a task or a delayed command may take, so that no renewal is late: half of the time
        until the next lease is due, at most `most`, at least `RETRY_AT_LEAST`.
        """
        ends = min((min(lease.due, lease.deadline) for lease in list(self._leases)), default=FOREVER)
        return min(most, max(RETRY_AT_LEAST, (ends - steady()) / 2))

    def _run_tasks(self) -> None:
        with self._lock:
            # Empty the dict before the tasks run: a task of the same name that another thread adds during the run must
            # be kept.
            tasks, self._tasks, self._tasks_at = self._tasks, {}, FOREVER
        for name, task in tasks.items():
            try:
                done = task(self._spare_time(TASK_CALL))
            except Exception:  # noqa: BLE001 - the task is attempted again; it must not stop the renewals
                self._telemetry.emit("keeper.failed")
                done = False
            if not done:
                self.run_until_done(name, task)

    def _send_pending(self, now: float) -> None:
        timeout = self._spare_time(LONGEST_CALL)
        with self._lock:
            sending, self._pending = self._pending, []
        not_after = self._engine.now() + LONGEST_CALL_MICROS
        ops = [Apply(sent.op.room, sent.op.name, replace(sent.op.command, not_after=not_after)) for sent in sending]
        again: list[DeferredCommand] = []
        for sent, reply in zip(sending, self._engine.apply_many(ops, timeout), strict=True):
            if isinstance(reply, Expired):
                self._engine.correct_clock(reply.now)
            may_pass = isinstance(reply, Expired) or (isinstance(reply, EngineError) and not reply.is_permanent)
            if may_pass and sent.until > now:
                again.append(sent)
            else:
                failed = isinstance(reply, (BaseException, Expired))
                self._end_deferred(sent, type(reply).__name__ if failed else "")
        with self._lock:
            self._pending += again

    def _end_deferred(self, sent: DeferredCommand, why: str) -> None:
        """Forget a deferred command that has arrived or, if `why` says so, is dropped."""
        if sent.lease is not None:
            self.discard(sent.lease)
            sent.lease.finish()
        if why:
            op = sent.op
            command = type(op.command).__name__
            self._telemetry.emit("keeper.gave_up", room=op.room.name, name=op.name, command=command, why=why)

    def close(self) -> None:
        """Stop the thread, attempt each unfinished task once more, and send the commands given to `send_later` up to
        `FINAL_SENDS` times. Leases that are still held are no longer renewed, so they expire. Safe to call twice.
        """
        with self._lock:
            self._stopping = True
            thread = self._thread
            self._changed.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._make_calls()
        self._run_tasks()
        for _ in range(FINAL_SENDS):
            if self._pending:
                self._send_pending(steady())
        dropped, self._pending, self._tasks = self._pending, [], {}
        for sent in dropped:
            self._end_deferred(sent, "closed")

    def after_fork(self) -> None:
        """In a forked child: mark the inherited leases as lost; they belong to the parent."""
        inherited = list(self._leases)
        self._reset()
        for lease in inherited:
            lease.lose("this process was forked; the lease stays with its parent")
