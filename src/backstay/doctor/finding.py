"""Findings of the doctor, their levels, and the measurement of round trips. The worst finding is the verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median
from typing import Literal

OK: Literal["ok"] = "ok"
WARNING: Literal["warning"] = "warning"
PROBLEM: Literal["problem"] = "problem"
Level = Literal["ok", "warning", "problem"]

#: Clock skew in seconds. Fences stay ordered across a failover as long as clocks differ by less than this.
SKEW_PROBLEM = 1.0
SKEW_WARNING = 0.25
#: A slow round trip in seconds. A lock takes two, so this allows ten locks per second and task.
SLOW_TRIP = 0.05
#: The number of round trips that are measured. Odd, so that the median is one of them.
TRIPS = 21


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `advice` is empty if there is nothing to do."""

    level: Level
    topic: str
    what: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """All findings about one engine. `engine` is its address without the password."""

    engine: str
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Level:
        return worst(finding.level for finding in self.findings)


def worst(levels: Iterable[Level]) -> Level:
    found = set(levels)
    return PROBLEM if PROBLEM in found else WARNING if WARNING in found else OK


def rate_excess(value: float, warning: float, problem: float) -> Level:
    """Return the level of a value for which lower is better."""
    return PROBLEM if value > problem else WARNING if value > warning else OK


def check_round_trip(trip: Callable[[], object]) -> Finding:
    """Measure a round trip and rate it."""
    return rate_round_trip(measure_round_trip(trip))


def measure_round_trip(trip: Callable[[], object]) -> float:
    """Return the median duration in seconds of `TRIPS` round trips, after one that warms up."""
    trip()
    took: list[float] = []
    for _ in range(TRIPS):
        began = time.perf_counter()
        trip()
        took.append(time.perf_counter() - began)
    return median(took)


def rate_round_trip(middle: float, where: str = "") -> Finding:
    """Rate a median round trip; `where` names the server if there are several."""
    what = f"a round trip{where} takes {middle * 1000:.2g} ms (p50 of {TRIPS})"
    if middle > SLOW_TRIP:
        return Finding(
            WARNING, "round trip", what, "run Backstay closer to its engine: every lock takes two round trips"
        )
    return Finding(OK, "round trip", what)
