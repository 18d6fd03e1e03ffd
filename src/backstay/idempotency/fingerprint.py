"""What a call is about, in 64 characters: SHA-256 over canonical JSON. The same key with another one is a mistake."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import msgspec

from backstay.errors import ConfigError
from backstay.runtime.serialization import to_plain


def fingerprint(value: Any) -> str:
    """The order of keys does not matter; the order of lists does. None: there is nothing to compare."""
    if value is None:
        return ""
    try:
        text = msgspec.json.encode(value, order="sorted", enc_hook=to_plain)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise ConfigError(
            f"a fingerprint is made of plain data (what JSON can say, dataclasses, pydantic models, dates): {error};"
            " pass the fields that matter, as in fingerprint={'amount': 5}"
        ) from error
    return hashlib.sha256(text).hexdigest()


class Arguments:
    """The arguments of a function's call by name, all of them or those that matter."""

    def __init__(self, function: Callable[..., Any], fields: Iterable[str] | None) -> None:
        self._signature = inspect.signature(function)
        self._name = f"{function.__module__}.{function.__qualname__}"
        given = cast("object", fields)
        if isinstance(given, (str, bytes)) or (given is not None and not isinstance(given, Iterable)):
            raise ConfigError(f"fingerprint is a list of argument names, as in fingerprint=['amount']; got {given!r}")
        self._fields = None if fields is None else tuple(fields)
        unknown = [name for name in self._fields or () if name not in self._signature.parameters]
        if unknown:
            raise ConfigError(
                f"{self._name} has no argument {', '.join(map(repr, unknown))}; it has"
                f" {', '.join(self._signature.parameters) or 'none'}"
            )

    def fingerprint(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """However a caller passes them, by position, by name or by default."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        chosen = bound.arguments
        if self._fields is not None:
            chosen = {name: bound.arguments[name] for name in self._fields}
        return fingerprint(dict(chosen))

    def key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Where nobody names the call: the function and everything it is called with."""
        return f"{self._name}:{self.fingerprint(args, kwargs)}"
