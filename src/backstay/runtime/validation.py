"""Validate arguments of the public API: durations, counts, names and key templates. Each check raises ConfigError."""

from __future__ import annotations

import inspect
import math
import string
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, cast

from backstay.errors import ConfigError

Duration = float | int | timedelta
#: The key format of a lock or a limit: Backstay's own, or the one that n8n's Redis nodes read and write.
Wire = Literal["backstay", "n8n"]

#: Names become keys of the engine; a longer name is most likely a mistake.
LONGEST_NAME = 512
#: A larger count is most likely a mistake. Below it, Lua's numbers are exact.
LARGEST_COUNT = 1_000_000_000
#: Ten years: long enough for any lease, and microseconds still fit into the 53 bits of a double.
LONGEST_DURATION = 10 * 365 * 86400.0


def to_seconds(value: Duration, what: str, *, zero: bool = False) -> float:
    """Return a duration as seconds. It must be above 0 (`zero` allows 0, too) and at most ten years."""
    if isinstance(value, (int, float)) and value is not True and 0 < value <= LONGEST_DURATION:
        return float(value)
    if isinstance(value, timedelta):
        value = value.total_seconds()
    given = cast("object", value)  # callers without a type checker may pass a value of any type
    if isinstance(given, bool) or not isinstance(given, (int, float)) or math.isnan(given):
        raise ConfigError(f"{what} is a number of seconds or a timedelta, as in {what}=30; got {value!r}")
    if value < 0 or (value == 0 and not zero) or value > LONGEST_DURATION:
        least = "0 or more" if zero else "above 0"
        raise ConfigError(f"{what} must be {least} and below ten years; got {value!r}")
    return float(value)


def to_micros(value: float) -> int:
    """Convert seconds to the engine's microseconds, at least 1."""
    return int(value * 1_000_000 + 0.5) or 1


def check_count(value: int, what: str, *, least: int = 1) -> int:
    given = cast("object", value)
    if isinstance(given, bool) or not isinstance(given, int) or not least <= given <= LARGEST_COUNT:
        raise ConfigError(f"{what} is a whole number from {least} to {LARGEST_COUNT}; got {value!r}")
    return value


def check_name(value: str, what: str = "name") -> str:
    """Check that a name is text of 1 to 512 bytes. Braces, colons, newlines, NUL and unicode are all allowed."""
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


def check_key(value: str, what: str) -> str:
    """Check a name that is stored in a text column. It must not contain NUL, which not every engine can store."""
    if "\0" in check_name(value, what):
        raise ConfigError(f"{what} {value!r} contains a NUL character")
    return value


def check_label(value: str, what: str) -> str:
    """Check a name that people type and read. It must not contain control characters."""
    if any(c < " " or c == "\x7f" for c in check_name(value, what)):
        raise ConfigError(f"{what} {value!r} contains control characters")
    return value


def check_namespace(value: str, what: str = "namespace") -> str:
    """Check a namespace, the common prefix of an application's keys and tables. It must be printable, without braces
    and percent signs.
    """
    check_name(value, what)
    if any(c in value for c in "{}%") or not value.isprintable():
        raise ConfigError(f"{what} {value!r} contains braces, percent signs or control characters; try 'backstay'")
    return value


class KeyTemplate:
    """Builds a key from a function's arguments: "user:{user_id}", "resource:{0}", "{order.id}"."""

    def __init__(self, text: str, function: Callable[..., Any]) -> None:
        self.text = text
        self._signature = inspect.signature(function)
        parameters = self._signature.parameters.values()
        simple = all(p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for p in parameters)
        #: The names of the function's parameters, if every parameter takes one value by position or by name. Empty if
        #: there are others, such as `*args`.
        self._positional = tuple(p.name for p in parameters) if simple else ()
        named = {p.name for p in self._signature.parameters.values()}
        takes_any = {p.kind for p in self._signature.parameters.values()}
        try:
            fields = [field for _, field, _, _ in string.Formatter().parse(text) if field is not None]
        except ValueError as error:
            raise ConfigError(f"key template {text!r}: {error}") from None
        for field in fields:
            root = field.partition(".")[0].partition("[")[0]
            known = root in named or (root.isdigit() and self._accepts_position(int(root)))
            if not known and inspect.Parameter.VAR_KEYWORD not in takes_any:
                raise ConfigError(
                    f"key template {text!r}: {getattr(function, '__qualname__', function)} has no argument"
                    f" {root!r}; it has {', '.join(self._signature.parameters) or 'none'}"
                )

    def _accepts_position(self, position: int) -> bool:
        kinds = [p.kind for p in self._signature.parameters.values()]
        return position < len(kinds) or inspect.Parameter.VAR_POSITIONAL in kinds

    def key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return the key of a call with these arguments."""
        if not kwargs and len(args) == len(self._positional):  # the usual call: skip the slow `bind`
            return self._format(args, dict(zip(self._positional, args, strict=True)))
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
        return self._format(by_position, by_name)

    def _format(self, by_position: Sequence[Any], by_name: dict[str, Any]) -> str:
        try:
            return self.text.format(*by_position, **by_name)
        except (LookupError, AttributeError, TypeError, ValueError) as error:
            raise ConfigError(
                f"key template {self.text!r} does not fit this call: {type(error).__name__}: {error}"
            ) from error
