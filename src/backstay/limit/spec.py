"""What a caller wants of a limit, checked; and the names under which its records lie."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, get_args

from msgspec import Struct
from msgspec.structs import replace

from backstay.errors import ConfigError
from backstay.limit.algorithms import Rule
from backstay.limit.rates import ALGORITHMS, BUCKET, EXAMPLES, LETTERS, MOST_RATES, Rate, parse, rule
from backstay.policy import OnUnavailable
from backstay.runtime import validation

ALGORITHM = "sliding"


class Spec(Struct, frozen=True, gc=False):
    """A limit, checked. `prefix` and a key make the name of a record."""

    name: str
    algorithm: str
    rates: tuple[Rate, ...]
    law: int
    rules: tuple[Rule, ...]
    prefix: str
    on_unavailable: OnUnavailable
    #: The largest cost that can ever be admitted.
    most: int
    #: Whether it is counted where n8n counts.
    n8n: bool = False

    def record(self, key: str) -> str:
        return self.prefix + validation.name(key, "key")

    def cost(self, cost: int) -> int:
        if type(cost) is int and 0 < cost <= self.most:
            return cost
        validation.count(cost, "cost")
        raise ConfigError(f"cost={cost} can never be admitted: {self.name!r} admits at most {self.most} at once")


def spec(name: str, rates: tuple[str, ...], algorithm: str, burst: int | None, on_unavailable: OnUnavailable) -> Spec:
    """What the caller asked for, checked. Programs ask for the same few limits over and over."""
    try:
        return _known(name, rates, algorithm, burst, on_unavailable)
    except TypeError:  # something that no dict takes: it is refused by name
        return _spec(name, rates, algorithm, burst, on_unavailable)


def _spec(name: str, rates: tuple[str, ...], algorithm: str, burst: int | None, on_unavailable: OnUnavailable) -> Spec:
    validation.name(name)
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
        validation.count(burst, "burst")
        if ALGORITHMS[algorithm] != BUCKET:
            raise ConfigError(f"burst= is for token-bucket and gcra; {algorithm} admits its whole limit at once")
    law = ALGORITHMS[algorithm]
    rules = tuple(rule(rate, algorithm, burst) for rate in parsed)
    prefix = f"{quote(name)}:{LETTERS[algorithm]}{'+'.join(f'{rate.window / 1000:.12g}' for rate in parsed)}:"
    return Spec(name, algorithm, parsed, law, rules, prefix, on_unavailable, min(r.burst for r in rules))


_known = lru_cache(maxsize=1024, typed=True)(_spec)


def n8n_spec(
    name: str,
    rates: tuple[str, ...],
    algorithm: str,
    burst: int | None,
    on_unavailable: OnUnavailable | None,
    else_: OnUnavailable,
) -> Spec:
    """A limit in n8n's windows: one rate of whole seconds. Nobody can count there for an engine that is away."""
    if on_unavailable == "local":
        raise ConfigError(
            "on_unavailable='local' would count what n8n never hears of: with wire='n8n' use deny or allow"
        )
    mode: OnUnavailable = on_unavailable if on_unavailable is not None else "deny" if else_ == "local" else else_
    if algorithm not in (ALGORITHM, "fixed") or burst is not None:
        raise ConfigError("wire='n8n' counts in fixed windows: leave out algorithm= and burst=")
    found = spec(name, rates, "fixed", None, mode)
    if len(found.rates) != 1 or found.rates[0].window % 1000:
        raise ConfigError(f"wire='n8n' takes one rate of whole seconds, as in '100/minute'; got {', '.join(rates)}")
    return replace(found, n8n=True)


class Place(NamedTuple):
    """What a record's name tells: whose it is, by which law, and the windows of its rates in milliseconds."""

    name: str
    algorithm: str
    windows: tuple[int, ...]
    key: str


def quote(name: str) -> str:
    """A limit's name before the first colon of a record's name; no name can look like another's."""
    return name.replace("%", "%25").replace(":", "%3A")


def place(record: str) -> Place | None:
    """None: not the name of a limit's record."""
    name, _, rest = record.partition(":")
    tag, _, key = rest.partition(":")
    algorithm = next((algorithm for algorithm, letter in LETTERS.items() if tag.startswith(letter)), "")
    if not key or not algorithm:
        return None
    try:
        windows = tuple(round(float(seconds) * 1000) for seconds in tag[1:].split("+"))
    except ValueError:
        return None
    return Place(name.replace("%3A", ":").replace("%25", "%"), algorithm, windows, key)
