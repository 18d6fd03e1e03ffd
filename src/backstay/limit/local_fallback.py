"""What one process knows of its limits by itself: denials that still stand, and what to say while the engine is away.

A denial comes with the moment at which the same hit would be admitted, so a repeated one is answered here until then:
abuse costs a look into a dict. A refund or reset by somebody else may free a key earlier: after a second the engine is
asked again in any case.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from backstay.engine.base import Apply, Command, Micros, steady
from backstay.errors import Decision
from backstay.limit.algorithms import Rule
from backstay.limit.machine import LIMIT, Admitted, Charge, Denied, Reply, Taken, step
from backstay.limit.spec import Spec
from backstay.runtime.flows import PATIENCE_MICROS

#: How long a denial is answered here at most.
MEMORY = 1.0
#: Denials and local records kept; losing one costs a question, or some of what a key had taken.
MOST = 10_000
#: How long the engine is left alone after it failed, before one caller looks whether it is back.
PAUSE = 0.5
PAUSE_MICROS = int(PAUSE * 1_000_000)


class Denial(NamedTuple):
    """What the engine said to `cost` in a reply that came at `since` (steady); and until when it can say no other."""

    decision: Decision
    rules: tuple[Rule, ...]
    cost: int
    since: float
    until: float


class Local(NamedTuple):
    """A record of this process alone."""

    spec: Spec
    state: Taken
    keep_until: Micros

    def used(self, now: Micros) -> tuple[int, ...]:
        marks = zip(self.state.marks, self.spec.rules, strict=True)
        return tuple(mark.passed(rule, now).used(rule, now) for mark, rule in marks)


class Untold(NamedTuple):
    """What was admitted here and the engine does not know, up to `local`."""

    record: str
    local: Local
    charge: Apply


class Desk:
    """One per engine and process. Any thread may use it."""

    def __init__(self) -> None:
        self.denials: dict[str, Denial] = {}
        self.locals: dict[str, Local] = {}
        #: As much of them as the engine has been told.
        self._told: dict[str, Local] = {}
        self._lock = threading.Lock()
        #: Held by whoever tells the engine.
        self.telling = threading.Lock()
        self.away = False
        self.trouble = ""
        #: When somebody may look whether the engine is back (steady).
        self._look_at = 0.0

    # ── denials ──

    def repeated(self, denial: Denial, record: str, rules: tuple[Rule, ...], cost: int) -> Decision | None:
        """What the engine would say again, if it is certain. Another cost has another time to come back."""
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

    def remember(self, record: str, rules: tuple[Rule, ...], cost: int, decision: Decision, sent: float) -> None:
        """The engine decided after `sent`, so nobody is denied a moment too long; and before now, so that whoever comes
        back when told is not a moment too early.
        """
        if len(self.denials) >= MOST:
            self.denials.clear()
        self.denials[record] = Denial(decision, rules, cost, steady(), sent + min(decision.retry_after, MEMORY))

    def forget(self, record: str) -> None:
        self.denials.pop(record, None)

    # ── while the engine is away ──

    def lost(self, error: Exception) -> None:
        self.away = True
        self.trouble = str(error)
        self._look_at = steady() + PAUSE

    def may_look(self) -> bool:
        """True for one caller at a time, now and then: it must tell how that ended."""
        with self._lock:
            if steady() < self._look_at:
                return False
            self._look_at = float("inf")
            return True

    def look_later(self) -> None:
        self._look_at = steady() + PAUSE

    def instead(self, spec: Spec, record: str, command: Command, now: Micros) -> Reply:
        """What the policy says in the engine's place."""
        rule = spec.rules[0]
        if spec.on_unavailable == "allow":
            return Admitted(now, 0, 0, rule.burst, 0, 0)
        if spec.on_unavailable == "deny":
            return Denied(now, 0, 0, 0, PAUSE_MICROS, PAUSE_MICROS)
        with self._lock:
            known = self.locals.get(record)
            done = step(known.state if known else None, command, now)
            if done.write and done.state is None:
                self._drop(record)
            elif done.write and done.state is not None:
                self.locals[record] = Local(spec, done.state, done.keep_until)
                self._tidy(now)
        reply: Reply = done.reply
        return reply

    def _tidy(self, now: Micros) -> None:
        if len(self.locals) <= MOST:
            return
        for record in [record for record, local in self.locals.items() if local.keep_until <= now]:
            self._drop(record)
        if len(self.locals) > MOST:
            self.locals, self._told = {}, {}

    def drop(self, record: str) -> None:
        """A record of this process is void."""
        with self._lock:
            self._drop(record)

    def _drop(self, record: str) -> None:
        self.locals.pop(record, None)
        self._told.pop(record, None)

    # ── when it is back ──

    def untold(self, now: Micros) -> list[Untold]:
        """What the engine is to be told. It counts here until the engine decides again."""
        with self._lock:
            return self._untold(now)

    def _untold(self, now: Micros) -> list[Untold]:
        found: list[Untold] = []
        for record, local in self.locals.items():
            told = self._told.get(record)
            if told is local:
                continue
            known = told.used(now) if told else (0,) * len(local.spec.rules)
            costs = tuple(max(0, here - there) for here, there in zip(local.used(now), known, strict=True))
            if any(costs):
                command = Charge(now + PATIENCE_MICROS, local.spec.law, local.spec.rules, costs)
                found.append(Untold(record, local, Apply(LIMIT, record, command)))
        return found

    def told(self, record: str, local: Local) -> None:
        with self._lock:
            if record in self.locals:
                self._told[record] = local

    def back(self, now: Micros) -> list[Untold]:
        """The engine decides from now on. Answers what was admitted here in the last moment."""
        with self._lock:
            rest = self._untold(now)
            self.locals, self._told = {}, {}
            self.away = False
            return rest
