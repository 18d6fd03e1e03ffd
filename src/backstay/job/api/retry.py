"""Backoff between attempts, and the outcomes that a handler can request itself.

A handler raises or returns `Retry`, `Snooze` or `Cancel`; they are outcomes, not errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import msgspec

from backstay.engine.jitter import RANDOM
from backstay.errors import ConfigError
from backstay.runtime import validation
from backstay.runtime.validation import Duration

#: Longest delay before a retry, in seconds: a year.
LONGEST_DELAY = 366 * 86400.0
#: The largest exponent of the factor: a larger one could overflow the float.
LARGEST_EXPONENT = 64
JITTER = 0.5


class Backoff(msgspec.Struct, frozen=True, array_like=True):
    """The seconds until the next attempt are `base` × `factor` ** (attempts so far - 1), at most `most`. With jitter,
    they are drawn at random between half of this value and the full value. A backoff that is
    set for one enqueue, not in the definition of the job type, is stored with the job.
    """

    base: float
    factor: float = 1.0
    most: float = LONGEST_DELAY
    jitter: bool = False

    def delay(self, attempt: int) -> float:
        """Return the seconds to wait after attempt number `attempt` (counted from 1) has failed."""
        seconds = min(self.base * self.factor ** min(max(attempt - 1, 0), LARGEST_EXPONENT), self.most)
        return RANDOM.uniform(seconds * JITTER, seconds) if self.jitter else seconds


class FunctionBackoff:
    """A backoff given as a function of the attempt number. Only the definition of a job type can have one, not a single
    enqueue: a function cannot be stored with a job.
    """

    def __init__(self, function: Callable[[int], Duration]) -> None:
        self.function = function

    def delay(self, attempt: int) -> float:
        """Return the seconds that the function returns. Raises ConfigError if it returns anything but a duration."""
        return validation.to_seconds(self.function(attempt), "backoff", zero=True)


AnyBackoff = Backoff | FunctionBackoff
#: Types that the option `backoff` accepts.
BackoffLike = Backoff | FunctionBackoff | Duration | Callable[[int], Duration]


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
    """Return a backoff of `base` seconds that doubles (or grows by `factor`) with each retry, up to `max`. With jitter,
    each delay is drawn at random between half of this value and the full value.
    """
    first, most = validation.to_seconds(base, "base"), validation.to_seconds(max, "max")
    given = cast("object", factor)
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 1 <= given < math.inf:
        raise ConfigError(f"factor must be a number of at least 1, as in factor=2; got {factor!r}")
    if most < first:
        raise ConfigError(f"max={most:g} is below base={first:g}")
    return Backoff(first, float(factor), most, jitter)


DEFAULT = exponential(1, max=300)


def to_backoff(value: BackoffLike) -> AnyBackoff:
    """Return the option `backoff` as a backoff: a number of seconds becomes a fixed one. Raises ConfigError."""
    if isinstance(value, (Backoff, FunctionBackoff)):
        return value
    if callable(value):
        return FunctionBackoff(value)
    return fixed(value)


class Outcome(Exception):
    """Base class of the outcomes that a handler raises or returns."""


class Retry(Outcome):
    """Retry the job after `after` seconds (None: after its backoff). It uses up an attempt: if none is left, the job
    fails.
    """

    def __init__(self, *, after: Duration | None = None, reason: str = "") -> None:
        super().__init__(reason or "the handler asked for another attempt")
        self.after = None if after is None else validation.to_seconds(after, "after", zero=True)
        self.reason = reason


class Snooze(Outcome):
    """Run the job again in `seconds` without using up an attempt: the job cannot run yet, but has not failed."""

    def __init__(self, seconds: Duration, *, reason: str = "") -> None:
        super().__init__(reason or "the handler snoozed")
        self.seconds = validation.to_seconds(seconds, "seconds", zero=True)
        self.reason = reason


class Cancel(Outcome):
    """Cancel the job: it has nothing left to do and has not failed. Jobs that wait for it are skipped."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "the handler cancelled")
        self.reason = reason


class Skip(Outcome):
    """Skip the job, which has not failed: the condition under which a workflow runs it does not hold. Jobs that wait
    for it are skipped, too.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "its condition does not hold")
        self.reason = reason
