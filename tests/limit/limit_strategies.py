"""Random histories of one limit for property tests, at times that stand still, jump and go back.

A draft is a command with relative times. `run_script` turns drafts into commands while it steps the machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

from hypothesis import strategies as st

from backstay.engine.base import Command, Micros
from backstay.limit import machine
from backstay.limit.algorithms import Rule
from backstay.limit.machine import LIMIT, Admitted
from support.agreement.machine_model import BASE, Model, Moment, Sweep

DAY = 86_400_000_000


@dataclass(frozen=True)
class Draft:
    kind: type[Command]
    #: In µs, or as a fraction of the longest window.
    after: Micros | float
    patience: Micros
    cost: int
    wait: Micros | float
    #: Whether a refund names the last reservation.
    last: bool
    #: The difference of this caller's limits from the others'.
    other: int


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


def rule(algorithm_id: int, limit: int, window: int, burst: int) -> Rule:
    if algorithm_id != 2:
        return Rule(limit, window, limit)
    common = gcd(limit, window)
    return Rule(limit, window, burst, limit // common, window // common)


@dataclass(frozen=True)
class Script:
    algorithm_id: int
    #: Limit, window and burst of each rate.
    rates: tuple[tuple[int, int, int], ...]
    drafts: tuple[Draft | Sweep, ...]

    def rules(self, other: int = 0) -> tuple[Rule, ...]:
        return tuple(
            rule(self.algorithm_id, max(1, limit + other), window, burst) for limit, window, burst in self.rates
        )


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
    not_after, algorithm_id, rules = now + draft.patience, script.algorithm_id, script.rules(draft.other)
    cost = min(draft.cost, *(rule.burst for rule in rules), *(rule.limit for rule in rules))
    match draft.kind:
        case machine.Hit:
            return machine.Hit(not_after, algorithm_id, rules, cost, _span(script, draft.wait))
        case machine.Peek:
            return machine.Peek(not_after, algorithm_id, rules, cost)
        case machine.Charge:
            return machine.Charge(not_after, algorithm_id, rules, tuple(draft.cost + i for i in range(len(rules))))
        case machine.Refund:
            return machine.Refund(not_after, algorithm_id, rules, draft.cost, reserved if draft.last else 0)
        case _:
            return machine.Reset(not_after)


def run_script(script: Script, model: Model | None = None, *, start: Micros = BASE) -> list[Moment]:
    """Run a script on the machine; return its history with the concrete times and commands that engines repeat."""
    model = model or Model(LIMIT)
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
