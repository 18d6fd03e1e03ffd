"""Local decisions of one process: a cache of denials, and the policy while the engine is unavailable.

A denial includes the time at which the same hit would be admitted. Until then a repeated hit is denied from the cache,
so abuse costs one dict lookup. A refund or reset by another process may free the key earlier, so a cached denial is
valid for one second at most.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from backstay.engine.base import Apply, Command, Micros, steady
from backstay.errors import Decision
from backstay.limit.algorithms import Rule
from backstay.limit.machine import LIMIT, Admitted, Charge, Denied, LimitState, Reply, step
from backstay.limit.spec import Spec
from backstay.runtime.flows import COMMAND_LIFE_MICROS

#: The longest time for which a denial is cached.
DENIAL_CACHE_SECONDS = 1.0
#: The most denials, and the most local records. Dropping a denial costs a request; dropping a record loses its count.
MAX_RECORDS = 10_000
#: Seconds after a failure before one caller probes the engine.
PROBE_INTERVAL = 0.5
PROBE_INTERVAL_MICROS = int(PROBE_INTERVAL * 1_000_000)


class CachedDenial(NamedTuple):
    """The engine's denial of `cost`, received at `since` and certain until `until` (steady clock)."""

    decision: Decision
    rules: tuple[Rule, ...]
    cost: int
    since: float
    until: float


class LocalRecord(NamedTuple):
    """The state of one key that only this process has, while the engine is unavailable."""

    spec: Spec
    state: LimitState
    keep_until: Micros

    def used(self, now: Micros) -> tuple[int, ...]:
        marks = zip(self.state.marks, self.spec.rules, strict=True)
        return tuple(mark.advance(rule, now).used(rule, now) for mark, rule in marks)


class PendingCharge(NamedTuple):
    """A charge for what was admitted locally, up to the state `local`, and is not on the engine yet."""

    record: str
    local: LocalRecord
    charge: Apply


class LocalFallback:
    """Decides locally for one engine in one process. Thread-safe."""

    def __init__(self) -> None:
        self.denials: dict[str, CachedDenial] = {}
        self.locals: dict[str, LocalRecord] = {}
        #: The part of `locals` that the engine has been charged with.
        self._charged: dict[str, LocalRecord] = {}
        self._lock = threading.Lock()
        #: Held during a reconcile, so that only one keeper at a time charges the engine.
        self.reconciling = threading.Lock()
        self.is_away = False
        self.last_error = ""
        #: When the next caller may probe the engine (steady clock).
        self._probe_at = 0.0

    # ── denials ──

    def cached_decision(self, denial: CachedDenial, record: str, rules: tuple[Rule, ...], cost: int) -> Decision | None:
        """Return the denial again if the engine would certainly repeat it, for the same rules and the same cost."""
        d, asked, of, since, until = denial
        if cost != of or (asked is not rules and asked != rules):
            return None
        now = steady()
        if now >= until:
            self.denials.pop(record, None)
            return None
        passed = now - since
        return Decision(
            False,
            d.scope,
            d.count,
            d.limit,
            d.remaining,
            d.reset_after - passed,
            d.retry_after - passed,
            d.window,
            d.at + passed,
            "memory",
        )

    def cache_denial(self, record: str, rules: tuple[Rule, ...], cost: int, decision: Decision, sent: float) -> None:
        """Cache a denial. The engine decided between `sent` and now: the cached denial ends `retry_after` after `sent`,
        so it is never too long, and `retry_after` counts from now, so a retry is never too early.
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
        self.is_away = True
        self.last_error = str(error)
        self._probe_at = steady() + PROBE_INTERVAL

    def may_probe(self) -> bool:
        """Return True for one caller per interval. That caller must probe and then call `probe_later`."""
        with self._lock:
            if steady() < self._probe_at:
                return False
            self._probe_at = float("inf")
            return True

    def probe_later(self) -> None:
        self._probe_at = steady() + PROBE_INTERVAL

    def decide(self, spec: Spec, record: str, command: Command, now: Micros) -> Reply:
        """Decide by the policy instead of the engine."""
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
        """Return the charges that the engine does not have yet. The local records stay valid until `resume_engine`."""
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
        """Let the engine decide from now on. Return the charges for what was admitted since the last round."""
        with self._lock:
            rest = self._pending_charges(now)
            self.locals, self._charged = {}, {}
            self.is_away = False
            return rest
