"""What one process knows of its limits by itself: denials that still stand, and what to say while the engine is away.

A denial comes with the moment at which the same hit would be admitted, so a repeated one is answered here until then:
abuse costs a look into a dict. A refund or reset by somebody else may free a key earlier: after a second the engine is
asked again in any case.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.engine.base import Apply, Command, Engine, Micros, steady
from holdfast.errors import Decision
from holdfast.flow import PATIENCE_MICROS
from holdfast.limit.machine import LIMIT, Admitted, Charge, Denied, Reply, Taken, step
from holdfast.limit.marks import Rule
from holdfast.limit.spec import Spec

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


class Desk:
    """One per Holdfast and process."""

    def __init__(self) -> None:
        self.denials: dict[str, Denial] = {}
        self.locals: dict[str, Local] = {}
        self.away = False
        self.trouble = ""
        #: When somebody may look whether the engine is back (steady).
        self._look_at = 0.0

    # ── denials ──

    def repeated(self, denial: Denial, record: str, rules: tuple[Rule, ...], cost: int) -> Decision | None:
        """What the engine would say again, if it is certain."""
        d, asked, least, since, until = denial
        if cost < least or (asked is not rules and asked != rules):
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
        known = self.locals.get(record)
        done = step(known.state if known else None, command, now)
        if done.write:
            if done.state is None:
                self.locals.pop(record, None)
            else:
                self.locals[record] = Local(spec, done.state, done.keep_until)
                self._tidy(now)
        reply: Reply = done.reply
        return reply

    def _tidy(self, now: Micros) -> None:
        if len(self.locals) <= MOST:
            return
        self.locals = {record: local for record, local in self.locals.items() if local.keep_until > now}
        if len(self.locals) > MOST:
            self.locals.clear()

    def charges(self, engine: Engine) -> list[Apply]:
        """What was admitted here, to be told to the engine. Nothing of it is known here afterwards."""
        found, self.locals = self.locals, {}
        now = engine.now()
        return [
            Apply(LIMIT, record, Charge(now + PATIENCE_MICROS, local.spec.law, local.spec.rules, costs))
            for record, local in found.items()
            if any(costs := local.used(now))
        ]
