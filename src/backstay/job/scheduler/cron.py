"""Cron schedules: parse five fields (minute, hour, day, month, weekday) and compute when a schedule fires.

Daylight saving: a schedule with explicit hours follows the local wall clock. A local time that the clocks skip is
shifted by the length of the gap (02:30 becomes 03:30); a local time that occurs twice counts at its first occurrence
only. A schedule with `*` for the hour follows elapsed time: it fires as often per hour while the clocks change as at
any other time.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import cast
from zoneinfo import ZoneInfo

from backstay.errors import ConfigError

EXAMPLES = "'*/5 * * * *' (every five minutes), '30 2 * * mon-fri' or '@daily'"
MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
MONTHS = {name.lower(): number for number, name in enumerate(calendar.month_abbr) if name}
WEEKDAYS = {name: number for number, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}
#: Each field's name, smallest and largest value, and the names that may stand for values, such as jan or mon.
FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day", 1, 31, {}),
    ("month", 1, 12, MONTHS),
    ("weekday", 0, 7, WEEKDAYS),
)
PART = re.compile(r"(\*|[0-9a-z]+)(?:-([0-9a-z]+))?(?:/([0-9]+))?", re.ASCII)
#: How many days to search for a match: 29 February may be eight years away. A day not found within nine years never
#: comes.
SEARCH_DAYS = 366 * 9
#: No time zone shifts its offset by more than this, so at this distance from a shift each local time occurs once.
LARGEST_SHIFT = timedelta(hours=3)
SUNDAY = 7


class Cron:
    """One cron schedule. The moments at which it fires are aware datetimes in UTC, on whole minutes."""

    def __init__(self, text: str, timezone: str = "UTC") -> None:
        self.text = text
        given = cast("object", text)
        if not isinstance(given, str):
            raise ConfigError(f"cron must be a string, as in {EXAMPLES}; got {given!r}")
        words = MACROS.get(text.strip().lower(), text).lower().split()
        if len(words) != len(FIELDS):
            raise ConfigError(
                f"cron {text!r} has {len(words)} fields and needs five: minute, hour, day, month, weekday;"
                f" as in {EXAMPLES}"
            )
        self.zone = _zone(timezone)
        minutes, hours, days, months, weekdays = (
            _field(text, word, *field) for word, field in zip(words, FIELDS, strict=True)
        )
        self._minutes, self._hours = sorted(minutes), sorted(hours)
        self._days, self._months = days, months
        self._weekdays = {day % SUNDAY for day in weekdays}
        #: Standard cron rule: if both day and weekday are restricted, a date that matches one of them is enough.
        self._any_day, self._any_weekday = words[2].startswith("*"), words[4].startswith("*")
        self._uses_elapsed_time = words[1].startswith("*")
        if self.next(datetime(2024, 1, 1, tzinfo=UTC)) is None:
            raise ConfigError(f"cron {text!r} never fires: its day does not exist; write it as in {EXAMPLES}")

    def __repr__(self) -> str:
        return f"Cron({self.text!r}, {self.zone.key!r})"

    def next(self, after: datetime) -> datetime | None:
        """Return the first moment after `after` at which the schedule fires; None: it does not within nine years."""
        start = self._wall(after if self._has_constant_offset(after) else after - LARGEST_SHIFT)
        best: datetime | None = None
        for wall in self._walls(start, step=1):
            moments = self._moments(wall)
            for moment in moments:
                if moment > after and (best is None or moment < best):
                    best = moment
            if best is not None and (
                self._has_constant_offset(best) or (moments and moments[0] > best + LARGEST_SHIFT)
            ):
                return best
        return best

    def previous(self, before: datetime) -> datetime | None:
        """Return the last moment up to `before` (inclusive) at which the schedule fires; None: none in nine years."""
        start = self._wall(before if self._has_constant_offset(before) else before + LARGEST_SHIFT)
        best: datetime | None = None
        for wall in self._walls(start, step=-1):
            moments = self._moments(wall)
            for moment in moments:
                if moment <= before and (best is None or moment > best):
                    best = moment
            if best is not None and (
                self._has_constant_offset(best) or (moments and moments[-1] < best - LARGEST_SHIFT)
            ):
                return best
        return best

    def between(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """Yield all moments at which the schedule fires after `after`, up to and including `until`."""
        moment = self.next(after)
        while moment is not None and moment <= until:
            yield moment
            moment = self.next(moment)

    def _wall(self, moment: datetime) -> datetime:
        """Return the local wall-clock time of a moment, without a time zone."""
        return moment.astimezone(self.zone).replace(second=0, microsecond=0, tzinfo=None)

    def _has_constant_offset(self, moment: datetime) -> bool:
        """Whether the zone's UTC offset is the same LARGEST_SHIFT before the moment, at it and LARGEST_SHIFT after it.
        Then no clock change is near, so a later local time near the moment is also a later moment.
        """
        offsets = {
            (moment + shift).astimezone(self.zone).utcoffset()
            for shift in (-LARGEST_SHIFT, timedelta(0), LARGEST_SHIFT)
        }
        return len(offsets) == 1

    def _moments(self, wall: datetime) -> list[datetime]:
        """Return the moments (in UTC) at which the schedule fires for the local time `wall`: one for a schedule with
        explicit hours; none, one or two for a schedule that follows elapsed time.
        """
        first = wall.replace(tzinfo=self.zone).astimezone(UTC)
        if not self._uses_elapsed_time:
            return [first]
        second = wall.replace(tzinfo=self.zone, fold=1).astimezone(UTC)
        return sorted({moment for moment in (first, second) if self._wall(moment) == wall})

    def _walls(self, start: datetime, step: int) -> Iterator[datetime]:
        """Yield the local wall-clock times that match the schedule, from `start` on, forwards (step=1) or backwards
        (step=-1).
        """
        hours = self._hours if step > 0 else self._hours[::-1]
        minutes = self._minutes if step > 0 else self._minutes[::-1]
        day = start.date()
        for _ in range(SEARCH_DAYS):
            if self._fits(day):
                for hour in hours:
                    if day == start.date() and (hour < start.hour if step > 0 else hour > start.hour):
                        continue
                    for minute in minutes:
                        wall = datetime.combine(day, time(hour, minute))
                        if (wall >= start) if step > 0 else (wall <= start):
                            yield wall
            try:
                day += timedelta(days=step)
            except OverflowError:
                return

    def _fits(self, day: date) -> bool:
        if day.month not in self._months:
            return False
        by_day, by_weekday = day.day in self._days, day.isoweekday() % SUNDAY in self._weekdays
        if self._any_day or self._any_weekday:
            return by_day and by_weekday
        return by_day or by_weekday


@lru_cache(maxsize=1024)
def parse_cron(text: str, timezone: str = "UTC") -> Cron:
    """Parse a schedule, or return it from a cache. Raises ConfigError for an invalid schedule or time zone."""
    return Cron(text, timezone)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except Exception:  # noqa: BLE001 - zoneinfo raises many classes for a bad name
        raise ConfigError(f"unknown timezone {name!r}; write it as in 'Europe/Berlin' or 'UTC'") from None


def _field(text: str, word: str, name: str, least: int, most: int, names: dict[str, int]) -> set[int]:
    values: set[int] = set()
    for part in word.split(","):
        found = PART.fullmatch(part)
        if found is None:
            raise _bad(text, name, part, least, most)
        first, last, step = found.groups()
        if first == "*":
            if last is not None:
                raise _bad(text, name, part, least, most)
            low, high = least, most
        else:
            low = _value(text, name, first, least, most, names)
            high = _value(text, name, last, least, most, names) if last is not None else (most if step else low)
        if last is not None and high == 0 and name == "weekday" and low > high:
            high = SUNDAY  # fri-sun
        every = int(step) if step else 1
        if low > high or not 1 <= every <= most:
            raise _bad(text, name, part, least, most)
        values.update(range(low, high + 1, every))
    return values


def _value(text: str, name: str, word: str, least: int, most: int, names: dict[str, int]) -> int:
    value = names.get(word, -1) if not word.isdecimal() else int(word)
    if not least <= value <= most:
        raise _bad(text, name, word, least, most)
    return value


def _bad(text: str, name: str, part: str, least: int, most: int) -> ConfigError:
    return ConfigError(
        f"cron {text!r}: {part!r} is not a valid {name}; use {least} to {most}, '*', a range, a list or a step;"
        f" as in {EXAMPLES}"
    )
