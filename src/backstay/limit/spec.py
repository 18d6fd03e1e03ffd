"""The validated options of a rate limit, and the names of its records."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, Protocol, get_args

from msgspec import Struct

from backstay.errors import ConfigError, Decision
from backstay.limit.algorithms import Rule
from backstay.limit.rates import ALGORITHMS, BUCKET, EXAMPLES, LETTERS, MOST_RATES, Rate, parse, rule
from backstay.policy import OnUnavailable
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.validation import Wire

ALGORITHM = "sliding"


class LimitSpec(Struct, frozen=True, gc=False):
    """The validated options of a limit. The limit has one record per key, whose name is `prefix` plus the key."""

    name: str
    algorithm: str
    rates: tuple[Rate, ...]
    algorithm_id: int
    rules: tuple[Rule, ...]
    prefix: str
    on_unavailable: OnUnavailable
    #: The largest cost of one hit that can ever be admitted.
    max_cost: int
    #: The wire that counts in another program's keys (`wire="n8n"`); None: the limit counts in Backstay's own records.
    wire: LimitWire | None = None

    def record(self, key: str) -> str:
        return self.prefix + validation.check_name(key, "key")

    def cost(self, cost: int) -> int:
        if type(cost) is int and 0 < cost <= self.max_cost:
            return cost
        validation.check_count(cost, "cost")
        raise ConfigError(f"cost={cost} can never be admitted: {self.name!r} admits at most {self.max_cost} at once")


class LimitWire(Protocol):
    """Counts a limit in the Redis keys of another program, such as n8n. `backstay.interop` implements it."""

    async def hit(self, core: Core, spec: LimitSpec, key: str, cost: int, /) -> Decision: ...
    async def peek(self, core: Core, spec: LimitSpec, key: str, cost: int, /) -> Decision: ...
    async def reset(self, core: Core, spec: LimitSpec, key: str, /) -> None: ...
    def refuse(self, what: str, /) -> ConfigError:
        """Return the error to raise when `wait` or `refund` (`what`) is called: a wire does not support them."""
        ...


#: Returns the LimitSpec of a limit over a wire, from its name, rates, algorithm, burst and on_unavailable. Raises
#: ConfigError for an unknown wire and for one that the engine does not support.
WiredSpec = Callable[[Core, Wire, str, tuple[str, ...], str, int | None, OnUnavailable | None], LimitSpec]


def spec(
    name: str, rates: tuple[str, ...], algorithm: str, burst: int | None, on_unavailable: OnUnavailable
) -> LimitSpec:
    """Validate the options. The result is cached, because programs request the same few limits again and again."""
    try:
        return _cached_spec(name, rates, algorithm, burst, on_unavailable)
    except TypeError:  # an unhashable option cannot be cached: validate it, so that the error names the option
        return _spec(name, rates, algorithm, burst, on_unavailable)


def _spec(
    name: str, rates: tuple[str, ...], algorithm: str, burst: int | None, on_unavailable: OnUnavailable
) -> LimitSpec:
    validation.check_name(name)
    if algorithm not in tuple(ALGORITHMS):
        raise ConfigError(f"algorithm is one of {', '.join(sorted(ALGORITHMS))}; got {algorithm!r}")
    if on_unavailable not in get_args(OnUnavailable):
        raise ConfigError(f"on_unavailable is one of {', '.join(get_args(OnUnavailable))}; got {on_unavailable!r}")
    if not 1 <= len(rates) <= MOST_RATES:
        raise ConfigError(f"a limit has 1 to {MOST_RATES} rates, as in {EXAMPLES}; got {len(rates)}")
    parsed = tuple(map(parse, rates))
    if len({rate.window for rate in parsed}) < len(parsed):
        raise ConfigError(f"two rates of {name!r} have the same window: {', '.join(map(str, parsed))}")
    if burst is not None:
        validation.check_count(burst, "burst")
        if ALGORITHMS[algorithm] != BUCKET:
            raise ConfigError(f"burst= is for token-bucket and gcra; {algorithm} admits its whole limit at once")
    algorithm_id = ALGORITHMS[algorithm]
    rules = tuple(rule(rate, algorithm, burst) for rate in parsed)
    prefix = f"{quote(name)}:{LETTERS[algorithm]}{'+'.join(f'{rate.window / 1000:.12g}' for rate in parsed)}:"
    return LimitSpec(name, algorithm, parsed, algorithm_id, rules, prefix, on_unavailable, min(r.burst for r in rules))


_cached_spec = lru_cache(maxsize=1024, typed=True)(_spec)


class RecordName(NamedTuple):
    """The parts of a record's name: limit, algorithm, the windows of its rates in milliseconds, and key."""

    name: str
    algorithm: str
    windows: tuple[int, ...]
    key: str


def quote(name: str) -> str:
    """Escape the colons in a limit's name: in a record's name, the first colon ends the limit's name. So two limits
    never share a record.
    """
    return name.replace("%", "%25").replace(":", "%3A")


def parse_record_name(record: str) -> RecordName | None:
    """Split a record's name into its parts. Returns None if it is not the name of a limit's record."""
    name, _, rest = record.partition(":")
    tag, _, key = rest.partition(":")
    algorithm = next((algorithm for algorithm, letter in LETTERS.items() if tag.startswith(letter)), "")
    if not key or not algorithm:
        return None
    try:
        windows = tuple(round(float(seconds) * 1000) for seconds in tag[1:].split("+"))
    except ValueError:
        return None
    return RecordName(name.replace("%3A", ":").replace("%25", "%"), algorithm, windows, key)
