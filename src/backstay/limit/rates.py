"""The rates of a limit, as its machine reads them."""

from __future__ import annotations

import math

from backstay.errors import ConfigError
from backstay.limit.algorithms import Rule
from backstay.runtime.rate import EXAMPLES as EXAMPLES  # noqa: PLC0414 - offered here
from backstay.runtime.rate import Rate as Rate  # noqa: PLC0414 - the same
from backstay.runtime.rate import parse as parse  # noqa: PLC0414 - the same

#: More rates than that on one limit is a slip.
MOST_RATES = 8
#: The longest exact log of one key.
LONGEST_LOG = 10_000
#: Products of limit and window stay whole in Lua, with room for what comes on top.
LARGEST_PRODUCT = 2**51

BUCKET = 2
#: The algorithms and their laws. Two are one: tokens that are left, or the time between hits, say the same.
ALGORITHMS = {"fixed": 0, "sliding-counter": 1, "token-bucket": BUCKET, "gcra": BUCKET, "sliding": 3}
#: How a record's name tells its algorithm: by the first letter, but for one.
LETTERS = {"fixed": "f", "sliding-counter": "c", "token-bucket": "t", "gcra": "g", "sliding": "s"}


def rule(rate: Rate, algorithm: str, burst: int | None) -> Rule:
    """A rate as the machine reads it, if this algorithm can keep it."""
    limit, window = rate.limit, rate.window
    if algorithm == "sliding" and min(limit, window + 1) > LONGEST_LOG:
        raise ConfigError(
            f"an exact sliding window remembers at most {LONGEST_LOG} hits of a key, and {rate} may need {limit};"
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
