"""What people see of limits: who has taken how much. Read from the records, never changing them."""

from __future__ import annotations

from dataclasses import dataclass

from backstay.engine.base import Micros
from backstay.limit.algorithms import Rule
from backstay.limit.machine import Taken
from backstay.limit.rates import Rate, rule
from backstay.limit.spec import Place


@dataclass(frozen=True, slots=True)
class Use:
    """How much one key has taken of one limit, by its rates; `trouble` says why that cannot be read."""

    name: str
    key: str
    algorithm: str
    rates: tuple[RateUse, ...]
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class RateUse:
    """`count` of `limit` in `window` seconds, and the seconds until nothing of it is left."""

    rate: str
    limit: int
    window: float
    count: int
    reset_after: float


def use(place: Place, state: Taken, now: Micros) -> Use:
    now = max(now, state.seen)
    rates: list[RateUse] = []
    for mark, window in zip(state.marks, place.windows, strict=True):
        rate = Rate(mark.limit, window)
        law: Rule = rule(rate, place.algorithm, None)
        left = mark.passed(law, now)
        reset = max(0, left.ends(law) - now) / 1_000_000 if left.used(law, now) else 0.0
        rates.append(RateUse(str(rate), mark.limit, window / 1000, left.used(law, now), reset))
    return Use(place.name, place.key, place.algorithm, tuple(rates))
