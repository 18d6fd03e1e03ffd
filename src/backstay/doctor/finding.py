"""Findings of the doctor, their levels, and the measurement of round trips. The level of the worst finding is the
doctor's verdict.
"""

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

#: A difference between two clocks of this many seconds is a problem. New fences are at least the server's time. A
#: failover may lose the last stored fence; then the next fences are larger than the lost one only if the new server's
#: clock is not far behind.
SKEW_PROBLEM = 1.0
SKEW_WARNING = 0.25
#: A round trip of this many seconds is slow. A lock takes two round trips, so a task can then take ten locks per
#: second.
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
        return find_worst(finding.level for finding in self.findings)


def find_worst(levels: Iterable[Level]) -> Level:
    found = set(levels)
    return PROBLEM if PROBLEM in found else WARNING if WARNING in found else OK


def rate_excess(value: float, warning: float, problem: float) -> Level:
    """Rate a value for which lower is better: PROBLEM if it is above `problem`, WARNING above `warning`, else OK."""
    return PROBLEM if value > problem else WARNING if value > warning else OK


def rate_set_back(ahead: float) -> Finding:
    """Return the finding about a server whose clock may have been set back. `ahead`: the seconds by which the latest
    time that it has stored is ahead of its clock.
    """
    level = rate_excess(ahead, SKEW_WARNING, SKEW_PROBLEM)
    if level == OK:
        return Finding(OK, "time", "the server's clock is not behind the times that it has stored")
    what = f"the server's clock was set back: it is {ahead:.1f} s behind a time that it has stored"
    advice = (
        "until it has caught up, leases from before do not end and jobs scheduled before do not start:"
        " let NTP (chrony) slew the clock instead of stepping it"
    )
    return Finding(level, "time", what, advice)


def check_round_trip(trip: Callable[[], object]) -> Finding:
    """Measure a round trip and rate it."""
    return rate_round_trip(measure_round_trip(trip))


def measure_round_trip(trip: Callable[[], object]) -> float:
    """Return the median duration in seconds of `TRIPS` round trips. One round trip before them is not counted."""
    trip()
    took: list[float] = []
    for _ in range(TRIPS):
        began = time.perf_counter()
        trip()
        took.append(time.perf_counter() - began)
    return median(took)


def rate_round_trip(middle: float, where: str = "") -> Finding:
    """Return the finding for a median round trip of `middle` seconds. `where`: the server, if there are several."""
    what = f"a round trip{where} takes {middle * 1000:.2g} ms (p50 of {TRIPS})"
    if middle > SLOW_TRIP:
        return Finding(
            WARNING, "round trip", what, "run Backstay closer to its engine: every lock takes two round trips"
        )
    return Finding(OK, "round trip", what)
