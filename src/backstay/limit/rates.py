"""Translate rates such as "100/minute" into the rules of the machine."""

from __future__ import annotations

import math

from backstay.errors import ConfigError
from backstay.limit.algorithms import Rule
from backstay.runtime.rate import EXAMPLES as EXAMPLES  # noqa: PLC0414 - offered here
from backstay.runtime.rate import Rate as Rate  # noqa: PLC0414 - the same
from backstay.runtime.rate import parse as parse  # noqa: PLC0414 - the same

#: The largest number of rates of one limit. More are most likely a mistake.
MOST_RATES = 8
#: The largest number of hits in the sliding log of one key.
LONGEST_LOG = 10_000
#: The largest product of two numbers of a rate. For a sliding counter these are limit and window. For a token bucket
#: they are the price of a hit (`Rule.price`) and the larger one of limit and burst. The Lua scripts compute with
#: doubles, which hold whole numbers exactly only up to 2**53.
LARGEST_PRODUCT = 2**51

BUCKET = 2
#: The algorithms and their `algorithm_id`. Token bucket and GCRA are equivalent, so they share one.
ALGORITHMS = {"fixed": 0, "sliding-counter": 1, "token-bucket": BUCKET, "gcra": BUCKET, "sliding": 3}
#: The letter of each algorithm in the names of records.
LETTERS = {"fixed": "f", "sliding-counter": "c", "token-bucket": "t", "gcra": "g", "sliding": "s"}


def rule(rate: Rate, algorithm: str, burst: int | None) -> Rule:
    """Return the rule of a rate. Raises ConfigError when this algorithm cannot count the rate exactly."""
    limit, window = rate.limit, rate.window
    if algorithm == "sliding" and min(limit, window + 1) > LONGEST_LOG:
        raise ConfigError(
            f"an exact sliding window stores at most {LONGEST_LOG} hits of a key, and {rate} may need {limit};"
            " use algorithm='sliding-counter'"
        )
    gain = price = 0
    if ALGORITHMS[algorithm] == BUCKET:
        common = math.gcd(limit, window)
        gain, price = limit // common, window // common
        if max(limit, burst or 0) * price > LARGEST_PRODUCT:
            raise ConfigError(f"{algorithm} cannot count {rate} in whole numbers; choose a rounder or a smaller rate")
    elif algorithm == "sliding-counter" and limit * window > LARGEST_PRODUCT:
        raise ConfigError(f"sliding-counter cannot count {rate} in whole numbers; choose a shorter window")
    return Rule(limit, window, limit if burst is None else burst, gain, price)
