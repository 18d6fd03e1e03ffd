"""What a look at an engine found, in plain words. The worst finding is the verdict."""

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

#: Fences order grants over a failover as long as clocks agree better than this.
SKEW_PROBLEM = 1.0
SKEW_WARNING = 0.25
#: A lock takes two trips: at this pace, ten locks a second and task.
SLOW_TRIP = 0.05
#: Trips that are timed. Odd, so that the median is one of them.
TRIPS = 21


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `advice` is empty when there is nothing to do."""

    level: Level
    topic: str
    what: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """All findings about one engine. `engine` is where it is, without its password."""

    engine: str
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Level:
        return worst(finding.level for finding in self.findings)


def worst(levels: Iterable[Level]) -> Level:
    found = set(levels)
    return PROBLEM if PROBLEM in found else WARNING if WARNING in found else OK


def above(value: float, warning: float, problem: float) -> Level:
    """The level of a number of which less is better."""
    return PROBLEM if value > problem else WARNING if value > warning else OK


def round_trip(trip: Callable[[], object]) -> Finding:
    """How long a trip takes, judged."""
    return judged(timed(trip))


def timed(trip: Callable[[], object]) -> float:
    """Seconds: the median of some trips, after one that warms up."""
    trip()
    took: list[float] = []
    for _ in range(TRIPS):
        began = time.perf_counter()
        trip()
        took.append(time.perf_counter() - began)
    return median(took)


def judged(middle: float, where: str = "") -> Finding:
    """A median trip; `where` it went, if there are several places."""
    what = f"a round trip{where} takes {middle * 1000:.2g} ms (p50 of {TRIPS})"
    if middle > SLOW_TRIP:
        return Finding(WARNING, "round trip", what, "run Backstay nearer to its engine: every lock takes two trips")
    return Finding(OK, "round trip", what)
