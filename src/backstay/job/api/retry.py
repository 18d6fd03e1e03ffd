"""When a job is tried again, and how a handler says so itself.

`Retry`, `Snooze` and `Cancel` are raised or returned by a handler; they are outcomes, not errors.
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

#: A job that is to be tried again later than in a year was meant to be something else.
LONGEST_DELAY = 366 * 86400.0
#: 2 ** 64 seconds are enough for anybody.
LARGEST_EXPONENT = 64
JITTER = 0.5


class Backoff(msgspec.Struct, frozen=True, array_like=True):
    """Seconds until the next attempt: `base` × `factor` ** (attempts so far - 1), at most `most`; with jitter, between
    half of that and all of it. Travels with a job whose caller asked for its own.
    """

    base: float
    factor: float = 1.0
    most: float = LONGEST_DELAY
    jitter: bool = False

    def delay(self, attempt: int) -> float:
        """Seconds after the attempt with this number (counted from 1) has failed."""
        seconds = min(self.base * self.factor ** min(max(attempt - 1, 0), LARGEST_EXPONENT), self.most)
        return random.uniform(seconds * JITTER, seconds) if self.jitter else seconds


class OwnBackoff:
    """A function of the attempt. It stays with the definition: a function cannot travel with a job."""

    def __init__(self, function: Callable[[int], Duration]) -> None:
        self.function = function

    def delay(self, attempt: int) -> float:
        """Seconds, as the function says. Raises ConfigError for what is no duration; the worker records that."""
        return validation.seconds(self.function(attempt), "backoff", zero=True)


AnyBackoff = Backoff | OwnBackoff
#: What callers may pass for one.
BackoffLike = Backoff | OwnBackoff | Duration | Callable[[int], Duration]


def fixed(seconds: Duration, *, jitter: bool = False) -> Backoff:
    """The same pause before every attempt."""
    return Backoff(validation.seconds(seconds, "backoff", zero=True), jitter=jitter)


def exponential(
    base: Duration = 1,
    *,
    max: Duration = 300,  # noqa: A002 - the word of its users
    factor: float = 2.0,
    jitter: bool = True,
) -> Backoff:
    """`base` seconds, then twice that (or `factor` times), up to `max`. jitter: between half of it and all of it."""
    first, most = validation.seconds(base, "base"), validation.seconds(max, "max")
    given = cast("object", factor)
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 1 <= given < math.inf:
        raise ConfigError(f"factor is a number from 1 on, as in factor=2; got {factor!r}")
    if most < first:
        raise ConfigError(f"max={most:g} is below base={first:g}")
    return Backoff(first, float(factor), most, jitter)


DEFAULT = exponential(1, max=300)


def backoff(value: BackoffLike) -> AnyBackoff:
    """What a caller passed, checked."""
    if isinstance(value, (Backoff, OwnBackoff)):
        return value
    if callable(value):
        return OwnBackoff(value)
    return fixed(value)


class Outcome(Exception):
    """How a handler says what shall become of its job: raised, or returned."""


class Retry(Outcome):
    """Try again, `after` seconds (None: as the back-off says). Counts as an attempt, so it may be the last."""

    def __init__(self, *, after: Duration | None = None, reason: str = "") -> None:
        super().__init__(reason or "the handler asked for another attempt")
        self.after = None if after is None else validation.seconds(after, "after", zero=True)
        self.reason = reason


class Snooze(Outcome):
    """Come back in so many seconds. Uses up no attempt: for what is not ready yet, rather than broken."""

    def __init__(self, seconds: Duration, *, reason: str = "") -> None:
        super().__init__(reason or "the handler snoozed")
        self.seconds = validation.seconds(seconds, "seconds", zero=True)
        self.reason = reason


class Cancel(Outcome):
    """Ended for good, and no failure: there is nothing (left) to do. Dependents are skipped."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "the handler cancelled")
        self.reason = reason


class Skip(Outcome):
    """It need not be done, as nobody's failure. Dependents are skipped with it."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "its condition does not hold")
        self.reason = reason
