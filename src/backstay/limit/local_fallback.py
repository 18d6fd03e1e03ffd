"""Local decisions of one process: a cache of denials, and the policy while the engine is unavailable.

A denial includes the time at which the same hit would be admitted. Until then a repeated hit is denied from the cache,
so a client that keeps hitting a full limit costs one dict lookup per hit. A refund or reset by another process may free
the key earlier, so a cached denial is valid for one second at most.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import NamedTuple

from backstay.engine.base import Apply, Command, Micros, steady
from backstay.errors import Decision
from backstay.limit.algorithms import Rule
from backstay.limit.machine import LIMIT, Admitted, Charge, Denied, LimitState, Reply, step
from backstay.limit.spec import LimitSpec
from backstay.runtime.lost_replies import COMMAND_LIFE_MICROS

#: The longest time for which a denial is cached.
DENIAL_CACHE_SECONDS = 1.0
#: The largest number of cached denials, and the largest number of local records. At the limit, they are dropped. A
#: dropped denial costs one request to the engine; with a dropped local record, the hits counted in it are forgotten.
MAX_RECORDS = 10_000
#: Seconds after a failure until one caller probes the engine.
PROBE_INTERVAL = 0.5
PROBE_INTERVAL_MICROS = int(PROBE_INTERVAL * 1_000_000)

_new = object.__new__


@dataclass(slots=True)  # its fields are read faster than those of a NamedTuple
class CachedDenial:
    """The engine's denial of a hit of `cost`, received at `since`. The engine would certainly repeat it until
    `until`. Both times are on the steady clock.
    """

    decision: Decision
    rules: tuple[Rule, ...]
    cost: int
    since: float
    until: float


class LocalRecord(NamedTuple):
    """The hits on one key of a limit that this process has counted by itself while the engine was unavailable."""

    spec: LimitSpec
    state: LimitState
    keep_until: Micros

    def used(self, now: Micros) -> tuple[int, ...]:
        marks = zip(self.state.marks, self.spec.rules, strict=True)
        return tuple(mark.advance(rule, now).used(rule, now) for mark, rule in marks)


class PendingCharge(NamedTuple):
    """Hits that this process admitted while the engine was unavailable and that are still to be charged there.

    record: the name of the limit's record for one key.
    local: the local record when the charge was computed; hits that were admitted after that are not in the charge.
    charge: the operation that charges the hits to the engine's record.
    """

    record: str
    local: LocalRecord
    charge: Apply


class LocalFallback:
    """Decides locally for one engine in one process. Thread-safe."""

    def __init__(self) -> None:
        self.denials: dict[str, CachedDenial] = {}
        self.locals: dict[str, LocalRecord] = {}
        #: By the record's name: the local record as it was when its hits were last charged to the engine. Only hits
        #: that were admitted after that are still to be charged.
        self._charged: dict[str, LocalRecord] = {}
        self._lock = threading.Lock()
        #: Held while pending charges are sent to the engine (reconcile.py). Several Backstays of this process may share
        #: the engine, and only one of their keepers may send the charges.
        self.reconciling = threading.Lock()
        self.is_unavailable = False
        self.last_error = ""
        #: When the next caller may probe the engine (steady clock).
        self._probe_at = 0.0

    # ── denials ──

    def repeat_denial(self, record: str, rules: tuple[Rule, ...], cost: int) -> Decision | None:
        """Return the cached denial of the record if it is for the same rules and cost and the engine would certainly
        repeat it; else None. The caller need not have validated the record's name and the cost: only validated ones are
        cached.
        """
        denial = self.denials.get(record)
        if denial is None:
            return None
        # `True` and `1.0` equal 1, and neither is a valid cost.
        if cost != denial.cost or type(cost) is not int or (denial.rules is not rules and denial.rules != rules):
            return None
        now = steady()
        if now >= denial.until:
            self.denials.pop(record, None)
            return None
        denied, passed = denial.decision, now - denial.since
        # Assigning the fields takes half as long as calling the class, whose `__init__` is a function in Python.
        decision: Decision = _new(Decision)
        decision.allowed = False
        decision.scope = denied.scope
        decision.count = denied.count
        decision.limit = denied.limit
        decision.remaining = denied.remaining
        decision.reset_after = denied.reset_after - passed
        decision.retry_after = denied.retry_after - passed
        decision.window = denied.window
        decision.at = denied.at + passed
        decision.by = "memory"
        decision.trouble = ""
        return decision

    def cache_denial(self, record: str, rules: tuple[Rule, ...], cost: int, decision: Decision, sent: float) -> None:
        """Cache a denial. The engine decided at some time between `sent` and now. The cache entry ends `retry_after`
        seconds after `sent`, so it never outlasts the denial; callers count `retry_after` from now, so they never retry
        too early.
        """
        if len(self.denials) >= MAX_RECORDS:
            self.denials.clear()
        self.denials[record] = CachedDenial(
            decision, rules, cost, steady(), sent + min(decision.retry_after, DENIAL_CACHE_SECONDS)
        )

    def drop_denial(self, record: str) -> None:
        self.denials.pop(record, None)

    # ── while the engine is unavailable ──

    def mark_unavailable(self, error: Exception) -> None:
        self.is_unavailable = True
        self.last_error = str(error)
        self._probe_at = steady() + PROBE_INTERVAL

    def may_probe(self) -> bool:
        """Return True to only one caller per PROBE_INTERVAL. That caller must probe the engine and then call
        `probe_later`.
        """
        with self._lock:
            if steady() < self._probe_at:
                return False
            self._probe_at = float("inf")
            return True

    def probe_later(self) -> None:
        self._probe_at = steady() + PROBE_INTERVAL

    def decide(self, spec: LimitSpec, record: str, command: Command, now: Micros) -> Reply:
        """Answer a command in place of the unavailable engine, as the limit's `on_unavailable` says: allow it, deny it,
        or count in this process ("local").
        """
        rule = spec.rules[0]
        if spec.on_unavailable == "allow":
            return Admitted(now, 0, 0, rule.burst, 0, 0)
        if spec.on_unavailable == "deny":
            return Denied(now, 0, 0, 0, PROBE_INTERVAL_MICROS, PROBE_INTERVAL_MICROS)
        with self._lock:
            known = self.locals.get(record)
            done = step(known.state if known else None, command, now)
            if done.write and done.state is None:
                self._drop(record)
            elif done.write and done.state is not None:
                self.locals[record] = LocalRecord(spec, done.state, done.keep_until)
                self._evict(now)
        reply: Reply = done.reply
        return reply

    def _evict(self, now: Micros) -> None:
        if len(self.locals) <= MAX_RECORDS:
            return
        for record in [record for record, local in self.locals.items() if local.keep_until <= now]:
            self._drop(record)
        if len(self.locals) > MAX_RECORDS:
            self.locals, self._charged = {}, {}

    def drop(self, record: str) -> None:
        """Drop the local record of a key."""
        with self._lock:
            self._drop(record)

    def _drop(self, record: str) -> None:
        self.locals.pop(record, None)
        self._charged.pop(record, None)

    # ── when the engine is available again ──

    def pending_charges(self, now: Micros) -> list[PendingCharge]:
        """Return the locally admitted hits that are not charged to the engine yet. This process still decides locally
        until `resume_engine` is called.
        """
        with self._lock:
            return self._pending_charges(now)

    def _pending_charges(self, now: Micros) -> list[PendingCharge]:
        found: list[PendingCharge] = []
        for record, local in self.locals.items():
            charged = self._charged.get(record)
            if charged is local:
                continue
            known = charged.used(now) if charged else (0,) * len(local.spec.rules)
            costs = tuple(max(0, here - there) for here, there in zip(local.used(now), known, strict=True))
            if any(costs):
                command = Charge(now + COMMAND_LIFE_MICROS, local.spec.algorithm_id, local.spec.rules, costs)
                found.append(PendingCharge(record, local, Apply(LIMIT, record, command)))
        return found

    def mark_charged(self, record: str, local: LocalRecord) -> None:
        with self._lock:
            if record in self.locals:
                self._charged[record] = local

    def resume_engine(self, now: Micros) -> list[PendingCharge]:
        """Let the engine decide from now on, and drop the local records. Returns the hits that are not charged to the
        engine yet: some may have been admitted locally since the last call of `pending_charges`.
        """
        with self._lock:
            rest = self._pending_charges(now)
            self.locals, self._charged = {}, {}
            self.is_unavailable = False
            return rest
