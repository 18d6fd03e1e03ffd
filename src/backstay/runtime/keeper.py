"""The keeper: one thread per engine that renews all leases of the process, many in one call.

It is a thread, so a blocked event loop does not lose leases, and has a connection of its own, so a full pipeline does
not delay renewals. A failed call is retried until the lease really ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from msgspec.structs import replace

from backstay.engine.base import Apply, Engine, Expired, steady
from backstay.errors import EngineUnavailable, OutcomeUnknown
from backstay.runtime.lease import LIVE, BaseLease
from backstay.telemetry import Telemetry

#: Leases due within this part of their TTL are renewed together with those due now: fewer round trips.
TOGETHER = 1 / 6
#: Seconds until a failed renewal is retried: an eighth of the lease's remaining time, within these bounds.
RETRY_AT_LEAST, RETRY_AT_MOST = 0.02, 1.0
#: The longest renewal call in seconds. One unresponsive server must not delay the detection of other lost leases.
LONGEST_CALL = 5.0
LONGEST_CALL_MICROS = int(LONGEST_CALL * 1_000_000)
#: How often pending commands are sent at close: the first attempt may only detect a dead connection.
FINAL_SENDS = 2
#: Seconds between two attempts of a task, and the longest time that one attempt may wait for the engine.
TASK_PAUSE, TASK_CALL = 0.5, 1.0
FOREVER = float("inf")

#: A task that is attempted until it succeeds: gets a timeout in seconds, returns True when it is done.
Task = Callable[[float], bool]


class Renewer(Protocol):
    """Renews leases of its own kind, many at a time: a worker does so for the jobs it runs."""

    def renew_due(self, now: float) -> float:
        """Renew the leases that are due, on the keeper's thread, within about `LONGEST_CALL` seconds. Returns when
        (steady clock) to be called again.
        """
        ...


class Keeper:
    """Renews each added lease until it is discarded, lost, or past its `max_hold`. Any thread may call any method."""

    def __init__(
        self, engine: Engine, telemetry: Telemetry, forget: Callable[[BaseLease], None] = lambda _: None
    ) -> None:
        self._engine = engine
        #: Called with every lease that is lost.
        self._forget = forget
        self._telemetry = telemetry
        self._reset()

    def _reset(self) -> None:
        self._leases: dict[BaseLease, None] = {}
        #: Commands to send, each with the time (steady clock) after which it is dropped.
        self._pending: list[tuple[Apply, float]] = []
        self._renewers: dict[Renewer, None] = {}
        self._tasks: dict[str, Task] = {}
        self._tasks_at = FOREVER
        self._wake_at = FOREVER
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
        """Account for an earlier `due` or `deadline` of a lease."""
        self._wake_by(min(lease.due, lease.deadline))

    def register(self, renewer: Renewer) -> None:
        """Call a renewer from now on; it sets the time of its first call with `wake`."""
        self._renewers[renewer] = None

    def unregister(self, renewer: Renewer) -> None:
        self._renewers.pop(renewer, None)

    def wake(self, at: float) -> None:
        """Call the renewers no later than `at` (steady clock), even if they returned a later time."""
        if at < self._wake_at:
            self._wake_by(at)

    def send_later(self, op: Apply, until: float) -> None:
        """Send a command that the caller could not send (a release, a withdrawal); retry it until `until`."""
        with self._lock:
            self._pending.append((op, until))
        self._wake_by(steady())

    def run_until_done(self, name: str, task: Task) -> None:
        """Attempt a task every `TASK_PAUSE` seconds until it is done. Does nothing if one of that name is pending."""
        if name in self._tasks:
            return
        with self._lock:
            self._tasks[name] = task
            self._tasks_at = min(self._tasks_at, steady() + TASK_PAUSE)
        self._wake_by(self._tasks_at)

    def _wake_by(self, at: float) -> None:
        with self._changed:
            self._wake_at = min(self._wake_at, at)
            if self._thread is None and not self._stopping:
                self._thread = threading.Thread(target=self._run, name="backstay-keeper", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._stopping:
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
        """Renew the leases that are due, mark those that ended as lost, send pending commands and run tasks. Returns
        when (steady clock) to tick again.
        """
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
                lease.due = FOREVER  # max_hold is reached: let it expire
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
            until, why = lease.judge(reply)
            if why:
                self._lose(lease, why)
            elif until:
                lease.extend(until, sent, ttl)
                if lease.hold_until <= sent + ttl:
                    lease.due = FOREVER
            else:  # expired by the engine's clock: `judge` has corrected the offset, so renew again at once
                lease.due = sent
        self._telemetry.emit("lease.renewed", count=len(renewing) - failed, failed=failed)

    def _lose(self, lease: BaseLease, reason: str) -> None:
        self.discard(lease)
        self._forget(lease)
        if lease.lose(reason):
            self._telemetry.emit("lease.lost", name=lease.name, lock_id=lease.id, fence=lease.fence, reason=reason)

    def _spare_time(self, most: float) -> float:
        """Return the seconds, up to `most`, that other work may take without delaying a renewal."""
        ends = min((min(lease.due, lease.deadline) for lease in list(self._leases)), default=FOREVER)
        return min(most, max(RETRY_AT_LEAST, (ends - steady()) / 2))

    def _run_tasks(self) -> None:
        with self._lock:
            # Removed before they run: a task of the same name that is added meanwhile must not be dropped.
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
        ops = [Apply(op.room, op.name, replace(op.command, not_after=not_after)) for op, _ in sending]
        again: list[tuple[Apply, float]] = []
        for (op, until), reply in zip(sending, self._engine.apply_many(ops, timeout), strict=True):
            if isinstance(reply, Expired):
                self._engine.correct_clock(reply.now)
            # A rejection (a wrong password, a damaged record) is permanent, so it is not retried.
            if isinstance(reply, (EngineUnavailable, OutcomeUnknown, Expired)) and until > now:
                again.append((op, until))
        with self._lock:
            self._pending += again

    def close(self) -> None:
        """Stop the thread, then send pending commands up to `FINAL_SENDS` times. Open leases expire. Safe to call
        twice.
        """
        with self._changed:
            self._stopping = True
            thread = self._thread
            self._changed.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._run_tasks()
        for _ in range(FINAL_SENDS):
            if self._pending:
                self._send_pending(steady())
        self._pending, self._tasks = [], {}

    def after_fork(self) -> None:
        """In a forked child: mark the inherited leases as lost; they belong to the parent."""
        inherited = list(self._leases)
        self._reset()
        for lease in inherited:
            lease.lose("this process was forked; the lease stays with its parent")
