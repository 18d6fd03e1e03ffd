"""What callers pass, checked at the edge: durations, names, key templates."""

from __future__ import annotations

import inspect
import math
import string
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

from backstay.errors import ConfigError

Duration = float | int | timedelta

#: Names become keys; longer ones are a mistake more often than a wish.
LONGEST_NAME = 512
#: More permits or waiters than that is a slip; and Lua's numbers stay exact.
LARGEST_COUNT = 1_000_000_000
#: Ten years: far enough for any lease, near enough for 53-bit microseconds.
LONGEST_DURATION = 10 * 365 * 86400.0


def seconds(value: Duration, what: str, *, zero: bool = False) -> float:
    """A duration as seconds, above 0 (or `zero` allowed) and below ten years."""
    if isinstance(value, (int, float)) and value is not True and 0 < value <= LONGEST_DURATION:
        return float(value)
    if isinstance(value, timedelta):
        value = value.total_seconds()
    given = cast("object", value)  # callers without a type checker pass anything
    if isinstance(given, bool) or not isinstance(given, (int, float)) or math.isnan(given):
        raise ConfigError(f"{what} is a number of seconds or a timedelta, as in {what}=30; got {value!r}")
    if value < 0 or (value == 0 and not zero) or value > LONGEST_DURATION:
        least = "0 or more" if zero else "above 0"
        raise ConfigError(f"{what} must be {least} and below ten years; got {value!r}")
    return float(value)


def micros(value: float) -> int:
    """Seconds as the engine's microseconds; never rounded down to nothing."""
    return int(value * 1_000_000 + 0.5) or 1


def count(value: int, what: str, *, least: int = 1) -> int:
    given = cast("object", value)
    if isinstance(given, bool) or not isinstance(given, int) or not least <= given <= LARGEST_COUNT:
        raise ConfigError(f"{what} is a whole number from {least} to {LARGEST_COUNT}; got {value!r}")
    return value


def name(value: str, what: str = "name") -> str:
    """Any text of 1 to 512 bytes: braces, colons, newlines, NUL and unicode are all fine."""
    if type(value) is str and 0 < len(value) <= LONGEST_NAME and value.isascii():
        return value
    given = cast("object", value)
    if not isinstance(given, str):
        raise ConfigError(f"{what} is text, as in 'invoice:42'; got {type(given).__name__}")
    try:
        length = len(value.encode())
    except UnicodeEncodeError:
        raise ConfigError(f"{what} {value!r} is not valid unicode (lone surrogates)") from None
    if not 1 <= length <= LONGEST_NAME:
        raise ConfigError(f"{what} has 1 to {LONGEST_NAME} bytes; got {length}")
    return value


def key(value: str, what: str) -> str:
    """A name that every engine can keep in a column of text: one without NUL."""
    if "\0" in name(value, what):
        raise ConfigError(f"{what} {value!r} has a NUL in it")
    return value


def word(value: str, what: str) -> str:
    """A name that people type and read: one without control characters."""
    if any(c < " " or c == "\x7f" for c in name(value, what)):
        raise ConfigError(f"{what} {value!r} has control characters in it")
    return value


def namespace(value: str, what: str = "namespace") -> str:
    """A short plain prefix, shared by everything that shall meet."""
    name(value, what)
    if any(c in value for c in "{}%") or not value.isprintable():
        raise ConfigError(f"{what} {value!r} has braces, percent signs or control characters; try 'backstay'")
    return value


class Template:
    """A key made from a function's arguments: "user:{user_id}", "resource:{0}", "{order.id}"."""

    def __init__(self, text: str, function: Callable[..., Any]) -> None:
        self.text = text
        self._signature = inspect.signature(function)
        parameters = self._signature.parameters.values()
        #: The names of all parameters, where each takes one value and may be passed by position; else none.
        simple = all(p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for p in parameters)
        self._plain = tuple(p.name for p in parameters) if simple else ()
        named = {p.name for p in self._signature.parameters.values()}
        takes_any = {p.kind for p in self._signature.parameters.values()}
        try:
            fields = [field for _, field, _, _ in string.Formatter().parse(text) if field is not None]
        except ValueError as error:
            raise ConfigError(f"key template {text!r}: {error}") from None
        for field in fields:
            root = field.partition(".")[0].partition("[")[0]
            known = root in named or (root.isdigit() and self._takes(int(root)))
            if not known and inspect.Parameter.VAR_KEYWORD not in takes_any:
                raise ConfigError(
                    f"key template {text!r}: {getattr(function, '__qualname__', function)} has no argument"
                    f" {root!r}; it has {', '.join(self._signature.parameters) or 'none'}"
                )

    def _takes(self, position: int) -> bool:
        kinds = [p.kind for p in self._signature.parameters.values()]
        return position < len(kinds) or inspect.Parameter.VAR_POSITIONAL in kinds

    def key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        if not kwargs and len(args) == len(self._plain):  # the usual call, without binding
            return self._filled(args, dict(zip(self._plain, args, strict=True)))
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        by_position: list[Any] = []
        by_name: dict[str, Any] = {}
        for parameter in self._signature.parameters.values():
            value = bound.arguments[parameter.name]
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                by_position += value
            elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
                by_name |= value
            else:
                by_position.append(value)
            by_name.setdefault(parameter.name, value)
        return self._filled(by_position, by_name)

    def _filled(self, by_position: Sequence[Any], by_name: dict[str, Any]) -> str:
        try:
            return self.text.format(*by_position, **by_name)
        except (LookupError, AttributeError, TypeError, ValueError) as error:
            raise ConfigError(
                f"key template {self.text!r} does not fit this call: {type(error).__name__}: {error}"
            ) from error
