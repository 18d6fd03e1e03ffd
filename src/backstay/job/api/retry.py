"""Backoff between attempts, and the outcomes that a handler can request itself.

A handler raises or returns `Retry`, `Snooze` or `Cancel`; they are outcomes, not errors.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import cast

import msgspec

from backstay.errors import ConfigError
from backstay.runtime import validation
from backstay.runtime.validation import Duration

#: Longest delay before a retry, in seconds: a year.
LONGEST_DELAY = 366 * 86400.0
#: Bounds the power of the factor: keeps the float from overflowing.
LARGEST_EXPONENT = 64
JITTER = 0.5


class Backoff(msgspec.Struct, frozen=True, array_like=True):
    """Seconds until the next attempt: `base` × `factor` ** (attempts so far - 1), at most `most`; with jitter, between
    half of that and all of it. Travels with a job whose call sets its own backoff.
    """

    base: float
    factor: float = 1.0
    most: float = LONGEST_DELAY
    jitter: bool = False

    def delay(self, attempt: int) -> float:
        """Return the seconds to wait after attempt number `attempt` (counted from 1) has failed."""
        seconds = min(self.base * self.factor ** min(max(attempt - 1, 0), LARGEST_EXPONENT), self.most)
        return random.uniform(seconds * JITTER, seconds) if self.jitter else seconds


class OwnBackoff:
    """A backoff function of the attempt number. Only a definition can have one: a function cannot be stored."""

    def __init__(self, function: Callable[[int], Duration]) -> None:
        self.function = function

    def delay(self, attempt: int) -> float:
        """Return the function's seconds. Raises ConfigError if it returns no duration; the worker records the error."""
        return validation.to_seconds(self.function(attempt), "backoff", zero=True)


AnyBackoff = Backoff | OwnBackoff
#: Types that the option `backoff` accepts.
BackoffLike = Backoff | OwnBackoff | Duration | Callable[[int], Duration]


def fixed(seconds: Duration, *, jitter: bool = False) -> Backoff:
    """Return a backoff with the same delay before every retry."""
    return Backoff(validation.to_seconds(seconds, "backoff", zero=True), jitter=jitter)


def exponential(
    base: Duration = 1,
    *,
    max: Duration = 300,  # noqa: A002 - the word of its users
    factor: float = 2.0,
    jitter: bool = True,
) -> Backoff:
    """Return a backoff of `base` seconds that doubles (or grows by `factor`) with each retry, up to `max`. jitter: draw
    between half of the delay and all of it.
    """
    first, most = validation.to_seconds(base, "base"), validation.to_seconds(max, "max")
    given = cast("object", factor)
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 1 <= given < math.inf:
        raise ConfigError(f"factor must be a number of at least 1, as in factor=2; got {factor!r}")
    if most < first:
        raise ConfigError(f"max={most:g} is below base={first:g}")
    return Backoff(first, float(factor), most, jitter)


DEFAULT = exponential(1, max=300)


def backoff(value: BackoffLike) -> AnyBackoff:
    """Validate the option `backoff`."""
    if isinstance(value, (Backoff, OwnBackoff)):
        return value
    if callable(value):
        return OwnBackoff(value)
    return fixed(value)


class Outcome(Exception):
    """Base class of the outcomes that a handler raises or returns."""


class Retry(Outcome):
    """Retry the job after `after` seconds (None: after its backoff). Counts as an attempt, so it may be the last."""

    def __init__(self, *, after: Duration | None = None, reason: str = "") -> None:
        super().__init__(reason or "the handler asked for another attempt")
        self.after = None if after is None else validation.to_seconds(after, "after", zero=True)
        self.reason = reason


class Snooze(Outcome):
    """Run the job again in `seconds`. Uses up no attempt: for a job that is not ready yet, not one that failed."""

    def __init__(self, seconds: Duration, *, reason: str = "") -> None:
        super().__init__(reason or "the handler snoozed")
        self.seconds = validation.to_seconds(seconds, "seconds", zero=True)
        self.reason = reason


class Cancel(Outcome):
    """Cancel the job: nothing is left to do, and it is not a failure. Its dependents are skipped."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "the handler cancelled")
        self.reason = reason


class Skip(Outcome):
    """Skip the job: it need not run, and it is not a failure. Its dependents are skipped too."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "its condition does not hold")
        self.reason = reason
