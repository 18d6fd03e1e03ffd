"""Read-only views of rate limits for people: how much each key has used."""

from __future__ import annotations

from dataclasses import dataclass

from backstay.engine.base import Micros
from backstay.limit.algorithms import Rule
from backstay.limit.machine import LimitState
from backstay.limit.rates import Rate, rule
from backstay.limit.spec import RecordName


@dataclass(frozen=True, slots=True)
class Use:
    """How much one key has used of one limit, for each rate. `trouble`: why the record cannot be read."""

    name: str
    key: str
    algorithm: str
    rates: tuple[RateUse, ...]
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class RateUse:
    """One rate of a limit: `count` of `limit` are in use in `window` seconds. `reset_after`: seconds until the count is
    zero.
    """

    rate: str
    limit: int
    window: float
    count: int
    reset_after: float


def use(record: RecordName, state: LimitState, now: Micros) -> Use:
    """Build the view of a record at `now`."""
    now = max(now, state.seen)
    rates: list[RateUse] = []
    for mark, window in zip(state.marks, record.windows, strict=True):
        rate = Rate(mark.limit, window)
        current_rule: Rule = rule(rate, record.algorithm, None)
        current = mark.advance(current_rule, now)
        used = current.used(current_rule, now)
        reset = max(0, current.ends(current_rule) - now) / 1_000_000 if used else 0.0
        rates.append(RateUse(str(rate), mark.limit, window / 1000, used, reset))
    return Use(record.name, record.key, record.algorithm, tuple(rates))
