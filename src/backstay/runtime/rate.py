"""Parse and format rates: "100/minute", "10/second", "5 per 15 minutes"."""

from __future__ import annotations

import re
from typing import cast

from msgspec import Struct

from backstay.errors import ConfigError
from backstay.runtime import validation

#: The length of each unit in milliseconds, by all its names.
UNITS = {
    **dict.fromkeys(("ms", "millisecond"), 1),
    **dict.fromkeys(("s", "sec", "second"), 1000),
    **dict.fromkeys(("m", "min", "minute"), 60_000),
    **dict.fromkeys(("h", "hour"), 3_600_000),
    **dict.fromkeys(("d", "day"), 86_400_000),
    **dict.fromkeys(("w", "week"), 604_800_000),
}
#: The units that rates are formatted with, the longest first.
DISPLAY_UNITS = [(name, UNITS[name]) for name in ("week", "day", "hour", "minute", "second", "millisecond")]
PATTERN = re.compile(r"\s*(\d{1,15})\s*(?:/|per)\s*(\d{0,15})\s*([a-z]+)\s*", re.ASCII)
#: Unit names of up to this many letters are abbreviations ("min") and have no plural. Longer names have one
#: ("minutes").
LONGEST_ABBREVIATION = 3
EXAMPLES = "'100/minute', '10/second' or '1000/12 hours'"
#: The longest window in milliseconds: a year.
LONGEST_WINDOW = 366 * 86_400_000


class Rate(Struct, frozen=True, gc=False):
    """At most `limit` in `window` milliseconds."""

    limit: int
    window: int

    def __str__(self) -> str:
        return f"{self.limit}/{_unit(self.window)}"


def parse(text: str) -> Rate:
    given = cast("object", text)
    if not isinstance(given, str):
        raise ConfigError(f"a rate is text, as in {EXAMPLES}; got {given!r}")
    found = PATTERN.fullmatch(text.lower())
    unit = found[3] if found else ""
    size = UNITS.get(unit) or (UNITS.get(unit.removesuffix("s")) if len(unit) > LONGEST_ABBREVIATION else None)
    if found is None or size is None:
        raise ConfigError(f"rate {text!r} cannot be parsed; write it as in {EXAMPLES}")
    limit, window = int(found[1]), int(found[2] or 1) * size
    if not 1 <= limit <= validation.LARGEST_COUNT:
        raise ConfigError(f"rate {text!r}: the limit is 1 to {validation.LARGEST_COUNT}, as in {EXAMPLES}")
    if not 1 <= window <= LONGEST_WINDOW:
        raise ConfigError(f"rate {text!r}: the window is 1 millisecond to 366 days, as in {EXAMPLES}")
    return Rate(limit, window)


def _unit(window: int) -> str:
    """Format a window in the largest unit that divides it."""
    name, size = next((name, size) for name, size in DISPLAY_UNITS if window % size == 0)
    times = window // size
    return name if times == 1 else f"{times} {name}s"
