"""How outcomes are kept: plain data as msgpack, rebuilt as the function's return annotation says. Never pickle."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any, cast

import msgspec

from backstay.engine.base import UNREADABLE
from backstay.errors import ConfigError, CorruptRecord
from backstay.runtime.serialization import ANYTHING, Codec, Plain

#: Larger outcomes belong into a store of their own, with their name in the outcome.
LARGEST = 8 * 1024 * 1024
#: What is kept of an exception's words.
LONGEST_REASON = 10_000


#: By the module in which an annotation is written, and the annotation: it means the same there for every function.
_KNOWN: dict[tuple[str, Any], Plain] = {}
MOST_KNOWN = 1000
_NO_ANNOTATIONS: dict[str, Any] = {}


def codec_for(given: object, function: Callable[..., Any] | None = None) -> Codec:
    """The caller's own, or one that rebuilds what the function says it returns."""
    if given is not None:
        if not isinstance(given, Codec):
            raise ConfigError(f"codec has encode(value) -> bytes and decode(bytes); got {type(given).__name__}")
        return given
    annotation = (getattr(function, "__annotations__", None) or _NO_ANNOTATIONS).get("return", Any)
    if annotation is Any:
        return ANYTHING
    module = cast("Callable[..., Any]", function).__module__
    try:
        known = _KNOWN.get((module, annotation))
    except TypeError:  # an annotation without a hash: looked at each time
        return _rebuilding(cast("Callable[..., Any]", function))
    if known is None:
        if len(_KNOWN) >= MOST_KNOWN:
            _KNOWN.clear()
        known = _KNOWN[module, annotation] = _rebuilding(cast("Callable[..., Any]", function))
    return known


def _rebuilding(function: Callable[..., Any]) -> Plain:
    what = getattr(function, "__qualname__", repr(function))
    try:
        kind = typing.get_type_hints(function)["return"]
    except NameError as error:
        raise ConfigError(f"the return annotation of {what} cannot be read: {error}; or pass codec=") from error
    try:
        return Plain(kind)
    except TypeError as error:
        raise ConfigError(f"what {what} returns cannot be rebuilt: {error}; pass codec=") from error


def pack(name: str, codec: Codec, value: Any) -> bytes:
    """An outcome as it is kept. Raises ConfigError for what cannot be: the call has run by then."""
    try:
        raw = codec.encode(value)
    except Exception as error:
        raise ConfigError(
            f"{name!r} ran, but what it returned cannot be kept: {error}; return plain data, or pass codec="
        ) from error
    if len(raw) > LARGEST:
        raise ConfigError(
            f"{name!r} ran, but what it returned has {len(raw)} bytes and at most {LARGEST} are kept; store it"
            " elsewhere and return its name"
        )
    return raw


def keep(name: str, codec: Codec, value: Any) -> tuple[bytes, Any]:
    """An outcome as it is kept, and as everybody will get it. Raises ConfigError where that cannot be."""
    raw = pack(name, codec, value)
    try:
        return raw, codec.decode(raw)
    except Exception as error:
        raise ConfigError(
            f"{name!r} ran, but what it returned cannot be rebuilt: {error}; mend the return annotation, or pass codec="
        ) from error


def unpack(name: str, codec: Codec, raw: bytes) -> Any:
    """What was kept, rebuilt."""
    try:
        return codec.decode(raw)
    except (*UNREADABLE, ValueError, TypeError) as error:
        raise CorruptRecord(
            f"the outcome kept for {name!r} cannot be read: {error}; `backstay idempotency forget` lets it run again"
        ) from error


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """A failure that is replayed: the exception's class and words."""

    kind: str
    reason: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        kind = type(error)
        words = str(error)[:LONGEST_REASON].encode(errors="replace").decode()
        return cls(f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."), words)


FAILURES = Plain(Failure)
