"""Durations, attempts and retry policies as the worker protocol gives them: all numbers are whole. A duration in
seconds is rounded, and stands beside its exact value in milliseconds.
"""

from __future__ import annotations

from math import ceil

from backstay.job.api.retry import DEFAULT, Backoff
from backstay.server.schemas.jobs import BackoffView, ExponentialDelay, FixedDelay, RetryPolicy

NO_DELAY = Backoff(0.0)


def count_from_zero(attempt: int) -> int:
    """Return the number of an attempt as the worker protocol counts it: 0 for the first one, also before it starts."""
    return max(0, attempt - 1)


def to_millis(seconds: float) -> int:
    return round(seconds * 1000)


def round_up(seconds: float) -> int:
    return ceil(to_millis(seconds) / 1000)


def build_retry_policy(retries: int, backoff: Backoff | None) -> RetryPolicy:
    """Build the view of a job's retries. Without retries, the default backoff is not used, so it is not shown."""
    used = backoff or (DEFAULT if retries else NO_DELAY)
    if used.factor != 1.0:
        grows = ExponentialDelay(
            base_secs=round_up(used.base),
            max_secs=round_up(used.most),
            base_ms=to_millis(used.base),
            max_ms=to_millis(used.most),
        )
        return RetryPolicy(max_retries=retries, backoff=BackoffView(exponential=grows))
    if not used.base:
        return RetryPolicy(max_retries=retries, backoff="None")
    fixed = FixedDelay(delay_secs=round_up(used.base), delay_ms=to_millis(used.base))
    return RetryPolicy(max_retries=retries, backoff=BackoffView(fixed=fixed))
