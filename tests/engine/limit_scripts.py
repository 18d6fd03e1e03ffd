"""Random histories of one limit for property tests: costs that fit and do not, at times that stand still, jump and go
back. A draft says what a caller would do; `play` turns drafts into commands while it steps the machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

from hypothesis import strategies as st

from backstay.engine.base import Command, Micros
from backstay.limit import machine
from backstay.limit.algorithms import Rule
from backstay.limit.machine import Admitted, Taken, step

BASE = 1_700_000_000_000_000
DAY = 86_400_000_000


@dataclass(frozen=True)
class Draft:
    kind: type[Command]
    #: µs, or a part of the longest window.
    after: Micros | float
    patience: Micros
    cost: int
    wait: Micros | float
    #: Refund what was last reserved, or any.
    last: bool
    #: Whether this caller has another idea of the limits.
    other: int


@dataclass(frozen=True)
class Sweep:
    """Time passes to around the record's `keep_until`; then it may be removed."""

    off: Micros


@dataclass(frozen=True)
class Moment:
    """What arrived, and what the machine made of it. `command` None: the record was removed if that was allowed."""

    now: Micros
    command: Command | None
    reply: Any = None
    state: Taken | None = None


_FIELDS: dict[str, tuple[Any, ...]] = {
    "kind": (machine.Hit,) * 14 + (machine.Peek, machine.Refund) * 2 + (machine.Charge, machine.Reset),
    "after": (0, 0, 0, 1, 1, 999, 1000, 1001, 5000, 0.01, 0.1, 0.3, 0.5, 0.9, 1.0, 1.1, 2.0) * 4
    + (-1, -1000, -0.5, -DAY // 2),
    "patience": (10_000_000,) * 20 + (1, 0, -1),
    "cost": (1,) * 8 + (2, 3, 5, 10),
    "wait": (0,) * 10 + (1, 1000, 0.1, 0.5, 1.0, 3.0),
    "last": (True, False),
    "other": (0,) * 12 + (1, -1, 3),
}
_WINDOWS = (1, 2, 3, 7, 10, 100, 999, 1000, 1000, 60_000, 3_600_000, 86_400_000)
_LIMITS = (1, 2, 3, 3, 5, 7, 10, 100, 1000, 99_991)


def _draft(dice: bytes) -> Draft | Sweep:
    if dice[0] > 244:
        return Sweep((-1, 0, 1, 1000)[dice[0] % 4])
    fields = {name: options[die % len(options)] for die, (name, options) in zip(dice, _FIELDS.items(), strict=True)}
    return Draft(**fields)


def rule(law: int, limit: int, window: int, burst: int) -> Rule:
    if law != 2:
        return Rule(limit, window, limit)
    common = gcd(limit, window)
    return Rule(limit, window, burst, limit // common, window // common)


@dataclass(frozen=True)
class Script:
    law: int
    #: Limit, window and burst of each rate.
    rates: tuple[tuple[int, int, int], ...]
    drafts: tuple[Draft | Sweep, ...]

    def rules(self, other: int = 0) -> tuple[Rule, ...]:
        return tuple(rule(self.law, max(1, limit + other), window, burst) for limit, window, burst in self.rates)


_rate = st.tuples(st.sampled_from(_LIMITS), st.sampled_from(_WINDOWS), st.sampled_from(_LIMITS))
scripts = st.builds(
    Script,
    st.integers(0, 3),
    st.lists(_rate, min_size=1, max_size=3).map(tuple),
    st.lists(
        st.binary(min_size=len(_FIELDS), max_size=len(_FIELDS)).map(_draft),
        min_size=8,
        max_size=28,
    ).map(tuple),
)


def _span(script: Script, amount: Micros | float) -> Micros:
    longest = max(window for _, window, _ in script.rates) * 1000
    return int(amount * longest) if isinstance(amount, float) else amount


def command(script: Script, draft: Draft, now: Micros, reserved: Micros) -> Command:
    not_after, law, rules = now + draft.patience, script.law, script.rules(draft.other)
    cost = min(draft.cost, *(rule.burst for rule in rules), *(rule.limit for rule in rules))
    match draft.kind:
        case machine.Hit:
            return machine.Hit(not_after, law, rules, cost, _span(script, draft.wait))
        case machine.Peek:
            return machine.Peek(not_after, law, rules, cost)
        case machine.Charge:
            return machine.Charge(not_after, law, rules, tuple(draft.cost + i for i in range(len(rules))))
        case machine.Refund:
            return machine.Refund(not_after, law, rules, draft.cost, reserved if draft.last else 0)
        case _:
            return machine.Reset(not_after)


class Model:
    """The machine with its one record. `monotone`: as on an engine whose clock never goes back behind a write."""

    def __init__(self, *, monotone: bool = False) -> None:
        self.state: Taken | None = None
        self.keep_until = 0
        self._latest = 0 if monotone else None

    def apply(self, command: Command, now: Micros) -> Moment:
        if self._latest is not None:
            now = max(self._latest, now)
        done = step(self.state, command, now)
        if done.write:
            if self._latest is not None and (self.state is not None or done.state is not None):
                self._latest = now  # what changes nothing on disk moves no clock there
            self.state, self.keep_until = done.state, done.keep_until
        return Moment(now, command, done.reply, self.state)

    def sweep(self, now: Micros) -> Moment:
        time = now if self._latest is None else max(self._latest, now)
        if self.state is not None and self.keep_until < now:
            self.state = None
            self._latest = None if self._latest is None else time
        return Moment(time, None, None, self.state)


def play(script: Script, model: Model | None = None, *, start: Micros = BASE) -> list[Moment]:
    """The machine's own history of a script, with the concrete times and commands others must repeat."""
    model = model or Model()
    now, reserved, history = start, 0, []
    for draft in script.drafts:
        if isinstance(draft, Sweep):
            if model.state is not None:
                now = max(now, model.keep_until + draft.off)
                history.append(model.sweep(now))
            continue
        now += _span(script, draft.after)
        history.append(model.apply(command(script, draft, now, reserved), now))
        if isinstance(reply := history[-1].reply, Admitted) and reply.delay:
            reserved = reply.at
    return history


def replay(history: list[Moment], model: Model) -> list[Moment]:
    """The same commands at the same times through another model."""
    return [
        model.sweep(moment.now) if moment.command is None else model.apply(moment.command, moment.now)
        for moment in history
    ]
