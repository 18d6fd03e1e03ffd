"""Fingerprint a request: SHA-256 over canonical JSON. A differing fingerprint shows that a key is reused for another
request.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import msgspec

from backstay.errors import ConfigError
from backstay.runtime.serialization import to_plain


def fingerprint(value: Any) -> str:
    """Return the fingerprint of plain data. The order of dict keys does not matter, the order of lists does. For None
    it is "", which means that the engine does not compare fingerprints.
    """
    if value is None:
        return ""
    try:
        text = msgspec.json.encode(value, order="sorted", enc_hook=to_plain)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise ConfigError(
            f"a fingerprint must be plain data (JSON types, dataclasses, pydantic models, dates): {error};"
            " pass the fields that matter, as in fingerprint={'amount': 5}"
        ) from error
    return hashlib.sha256(text).hexdigest()


class Arguments:
    """Fingerprints the arguments of a function's calls: all of them, or the named `fields`."""

    def __init__(self, function: Callable[..., Any], fields: Iterable[str] | None) -> None:
        self._signature = inspect.signature(function)
        self._name = f"{function.__module__}.{function.__qualname__}"
        given = cast("object", fields)
        if isinstance(given, (str, bytes)) or (given is not None and not isinstance(given, Iterable)):
            raise ConfigError(
                f"fingerprint must be a list of argument names, as in fingerprint=['amount']; got {given!r}"
            )
        self._fields = None if fields is None else tuple(fields)
        unknown = [name for name in self._fields or () if name not in self._signature.parameters]
        if unknown:
            raise ConfigError(
                f"{self._name} has no argument {', '.join(map(repr, unknown))}; it has"
                f" {', '.join(self._signature.parameters) or 'none'}"
            )

    def fingerprint(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return the fingerprint of one call. It is the same whether an argument is passed by position, by name or by
        default.
        """
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        chosen = bound.arguments
        if self._fields is not None:
            chosen = {name: bound.arguments[name] for name in self._fields}
        return fingerprint(dict(chosen))

    def key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return the default key of one call: the function's name and the fingerprint of its arguments."""
        return f"{self._name}:{self.fingerprint(args, kwargs)}"
