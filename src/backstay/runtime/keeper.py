"""The keeper: one thread per engine that renews every lease of the process, in one call for all of them.

A thread, because a blocked event loop must not lose leases; on a link of its own, because a full pipe must not
delay them. A failed call is tried again until the lease really ends.
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

#: Leases due within this part of their TTL are renewed along with those due now: fewer trips.
TOGETHER = 1 / 6
#: After a failed call: a fraction of the shortest life left, within these bounds.
RETRY_AT_LEAST, RETRY_AT_MOST = 0.02, 1.0
#: A renewal call may take this long at most, so that one silent server does not hide the end of other leases.
LONGEST_CALL = 5.0
LONGEST_CALL_MICROS = int(LONGEST_CALL * 1_000_000)
#: How often what is unsaid at the end is said: a connection that has gone silent is found out by the first.
LAST_WORDS = 2
#: Between two attempts at an errand, and how long one may wait for the engine (s).
ERRAND_PAUSE, ERRAND_CALL = 0.5, 1.0
FOREVER = float("inf")

#: Something a room has to settle with the engine: an attempt within so many seconds; True: it is done.
Errand = Callable[[float], bool]


class Tended(Protocol):
    """Whoever has leases of its own kind to look after, many at a time: a worker and the jobs it runs."""

    def tend(self, now: float) -> float:
        """Do what is due, on the keeper's thread, within about `LONGEST_CALL`; answers when (steady) to come again."""
        ...


class Keeper:
    """Renews what is added until it is discarded, lost, or past its `max_hold`."""

    def __init__(
        self, engine: Engine, telemetry: Telemetry, forget: Callable[[BaseLease], None] = lambda _: None
    ) -> None:
        self._engine = engine
        #: Told of every lease that is lost.
        self._forget = forget
        self._telemetry = telemetry
        self._reset()

    def _reset(self) -> None:
        self._leases: dict[BaseLease, None] = {}
        self._later: list[tuple[Apply, float]] = []
        self._tended: dict[Tended, None] = {}
        self._errands: dict[str, Errand] = {}
        self._errands_at = FOREVER
        self._wake_at = FOREVER
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._stopping = False

    def add(self, lease: BaseLease) -> None:
        self._leases[lease] = None
        if lease.due < self._wake_at or lease.deadline < self._wake_at:
            self._nudge(min(lease.due, lease.deadline))

    def discard(self, lease: BaseLease) -> None:
        self._leases.pop(lease, None)

    def changed(self, lease: BaseLease) -> None:
        """Its times moved closer."""
        self._nudge(min(lease.due, lease.deadline))

    def attend(self, party: Tended) -> None:
        """Look after a party from now on; `wake` tells when."""
        self._tended[party] = None

    def dismiss(self, party: Tended) -> None:
        self._tended.pop(party, None)

    def wake(self, at: float) -> None:
        """Somebody has to be tended at a moment (steady) that may be sooner than was said. From any thread."""
        if at < self._wake_at:
            self._nudge(at)

    def later(self, op: Apply, until: float) -> None:
        """Something that could not be said now (a release, a withdrawal): keep saying it until `until`."""
        with self._lock:
            self._later.append((op, until))
        self._nudge(steady())

    def errand(self, name: str, errand: Errand) -> None:
        """Attempt it now and then until it is done. Nothing happens when it is under way already."""
        if name in self._errands:
            return
        with self._lock:
            self._errands[name] = errand
            self._errands_at = min(self._errands_at, steady() + ERRAND_PAUSE)
        self._nudge(self._errands_at)

    def _nudge(self, at: float) -> None:
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
            except Exception:  # noqa: BLE001 - this thread keeps every lease alive: it must go on
                self._telemetry.emit("keeper.failed")
                wake_at = steady() + RETRY_AT_MOST
            with self._changed:
                self._wake_at = min(self._wake_at, wake_at)

    def tick(self) -> float:
        """Renew what is due, give up what has ended; answers when to look again."""
        now = steady()
        due: list[BaseLease] = []
        soon: list[BaseLease] = []
        for lease in list(self._leases):
            if lease.state is not LIVE:
                self.discard(lease)
            elif now >= lease.deadline:
                self._lose(lease, "it ran out before it could be renewed")
            elif lease.due <= now:
                due.append(lease)
            elif lease.due <= now + lease.ttl * TOGETHER:
                soon.append(lease)
        if due:
            self._renew(due + soon, now)
        if self._later:
            self._say_later(now)
        tended = self._tend()
        if now >= self._errands_at:
            self._run_errands()
        wake_at = min((min(lease.due, lease.deadline) for lease in list(self._leases)), default=FOREVER)
        wake_at = min(wake_at, tended, self._errands_at)
        return min(wake_at, steady() + RETRY_AT_MOST / 4) if self._later else wake_at

    def _tend(self) -> float:
        wake_at = FOREVER
        for party in list(self._tended):
            try:
                wake_at = min(wake_at, party.tend(steady()))
            except Exception:  # noqa: BLE001 - one party's trouble is not another's
                self._telemetry.emit("keeper.failed")
                wake_at = min(wake_at, steady() + RETRY_AT_MOST)
        return wake_at

    def _renew(self, leases: list[BaseLease], now: float) -> None:
        asking: list[tuple[BaseLease, float]] = []
        for lease in leases:
            if ttl := lease.next_ttl(now):
                asking.append((lease, ttl))
            else:
                lease.due = FOREVER  # max_hold is reached: it may run out now
        if not asking:
            return
        shortest = min((lease.deadline for lease in list(self._leases)), default=FOREVER) - now
        timeout = min(LONGEST_CALL, max(RETRY_AT_LEAST, shortest / 2))
        not_after = self._engine.now() + LONGEST_CALL_MICROS
        sent = steady()
        replies = self._engine.apply_many([lease.renewal(not_after, ttl) for lease, ttl in asking], timeout)
        failed = 0
        for (lease, ttl), reply in zip(asking, replies, strict=True):
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
            else:  # too late for the engine's clock: `judge` has corrected it, ask again at once
                lease.due = sent
        self._telemetry.emit("lease.renewed", count=len(asking) - failed, failed=failed)

    def _lose(self, lease: BaseLease, reason: str) -> None:
        self.discard(lease)
        self._forget(lease)
        if lease.lose(reason):
            self._telemetry.emit("lease.lost", name=lease.name, lock_id=lease.id, fence=lease.fence, reason=reason)

    def _spare(self, most: float) -> float:
        """Leases come first: nothing else may take longer than they can wait."""
        ends = min((min(lease.due, lease.deadline) for lease in list(self._leases)), default=FOREVER)
        return min(most, max(RETRY_AT_LEAST, (ends - steady()) / 2))

    def _run_errands(self) -> None:
        with self._lock:
            # Taken out before they are run: whoever has a new one meanwhile finds its place free.
            errands, self._errands, self._errands_at = self._errands, {}, FOREVER
        for name, errand in errands.items():
            try:
                done = errand(self._spare(ERRAND_CALL))
            except Exception:  # noqa: BLE001 - it is attempted again; leases are waiting
                self._telemetry.emit("keeper.failed")
                done = False
            if not done:
                self.errand(name, errand)

    def _say_later(self, now: float) -> None:
        timeout = self._spare(LONGEST_CALL)
        with self._lock:
            saying, self._later = self._later, []
        not_after = self._engine.now() + LONGEST_CALL_MICROS
        ops = [Apply(op.room, op.name, replace(op.command, not_after=not_after)) for op, _ in saying]
        again: list[tuple[Apply, float]] = []
        for (op, until), answer in zip(saying, self._engine.apply_many(ops, timeout), strict=True):
            if isinstance(answer, Expired):
                self._engine.correct(answer.now)
            # A refusal stays one: a wrong password or a damaged record is not asked again and again.
            if isinstance(answer, (EngineUnavailable, OutcomeUnknown, Expired)) and until > now:
                again.append((op, until))
        with self._lock:
            self._later += again

    def close(self) -> None:
        """Stop. What is unsaid is said, twice if need be; leases that remain run out by themselves. Safe twice."""
        with self._changed:
            self._stopping = True
            thread = self._thread
            self._changed.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._run_errands()
        for _ in range(LAST_WORDS):
            if self._later:
                self._say_later(steady())
        self._later, self._errands = [], {}

    def after_fork(self) -> None:
        """The parent's leases are not ours."""
        inherited = list(self._leases)
        self._reset()
        for lease in inherited:
            lease.lose("this process was forked; the lease stays with its parent")
