"""Parse and format durations: 30, 1.5, 30s, 5m, 2h."""

from __future__ import annotations

import re

import typer

UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
FOREVER = float("inf")

_SHAPE = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*([smh]?)", re.ASCII)


def duration(text: str | float) -> float:
    """Parse a duration such as `30`, `30s`, `5m` or `2h` into seconds. A number without a unit is in seconds."""
    found = _SHAPE.fullmatch(str(text).strip().lower())
    if not found:
        raise typer.BadParameter(f"{text!r} is not a duration; write 30, 1.5, 30s, 5m or 2h")
    return float(found[1]) * UNITS[found[2]]


def duration_or_forever(text: str | float) -> float:
    """Parse a duration, or the word `forever`."""
    return FOREVER if str(text).strip().lower() in {"forever", "inf"} else duration(text)


def span(seconds: float) -> str:
    """Format seconds: 0.4s, 12s, 3m 12s, 2h 5m, 3d 4h."""
    if seconds < 10:  # noqa: PLR2004 - short spans show tenths of a second
        return f"{max(0.0, seconds):.1f}s"
    whole = round(seconds)
    for unit, size, smaller, least in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size}{unit} {whole % size // least}{smaller}"
    return f"{whole}s"
