"""Encode outcomes as msgpack and decode them to the function's return annotation. Never pickle."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any, cast

import msgspec

from backstay.engine.base import DECODE_ERRORS
from backstay.errors import ConfigError, CorruptRecord
from backstay.runtime.serialization import PLAIN_CODEC, Codec, PlainCodec

#: The largest outcome in bytes. Store larger data elsewhere and return its name.
LARGEST = 8 * 1024 * 1024
#: How many characters of an exception's message are stored.
LONGEST_REASON = 10_000


#: A cache of codecs by module and return annotation. An annotation may be text, such as "Order", which names the same
#: type only within one module.
_CODECS: dict[tuple[str, Any], PlainCodec] = {}
MAX_CODECS = 1000
_NO_ANNOTATIONS: dict[str, Any] = {}


def codec_for(given: object, function: Callable[..., Any] | None = None) -> Codec:
    """Return `given`, the codec that the caller passed. If it is None, return one for the return annotation."""
    if given is not None:
        if not isinstance(given, Codec):
            raise ConfigError(f"codec must have encode(value) -> bytes and decode(bytes); got {type(given).__name__}")
        return given
    annotation = (getattr(function, "__annotations__", None) or _NO_ANNOTATIONS).get("return", Any)
    if annotation is Any:
        return PLAIN_CODEC
    module = cast("Callable[..., Any]", function).__module__
    try:
        known = _CODECS.get((module, annotation))
    except TypeError:  # an unhashable annotation cannot be cached
        return _codec_from_annotation(cast("Callable[..., Any]", function))
    if known is None:
        if len(_CODECS) >= MAX_CODECS:
            _CODECS.clear()
        known = _CODECS[module, annotation] = _codec_from_annotation(cast("Callable[..., Any]", function))
    return known


def _codec_from_annotation(function: Callable[..., Any]) -> PlainCodec:
    what = getattr(function, "__qualname__", repr(function))
    try:
        kind = typing.get_type_hints(function)["return"]
    except NameError as error:
        raise ConfigError(f"the return annotation of {what} cannot be resolved: {error}; or pass codec=") from error
    try:
        return PlainCodec(kind)
    except TypeError as error:
        raise ConfigError(f"the return type of {what} cannot be decoded: {error}; pass codec=") from error


def pack(name: str, codec: Codec, value: Any) -> bytes:
    """Encode the outcome of a call that has run. Raises ConfigError if it cannot be encoded or is too large."""
    try:
        raw = codec.encode(value)
    except Exception as error:
        raise ConfigError(
            f"{name!r} ran, but its result cannot be stored: {error}; return plain data, or pass codec="
        ) from error
    if len(raw) > LARGEST:
        raise ConfigError(
            f"{name!r} ran, but its result has {len(raw)} bytes, more than the {LARGEST} that can be stored; store it"
            " elsewhere and return its name"
        )
    return raw


def encode_and_rebuild(name: str, codec: Codec, value: Any) -> tuple[bytes, Any]:
    """Encode an outcome, and decode it again, so that the first caller gets the same value as later callers. Raises
    ConfigError if encoding or decoding fails.
    """
    raw = pack(name, codec, value)
    try:
        return raw, codec.decode(raw)
    except Exception as error:
        raise ConfigError(
            f"{name!r} ran, but its result cannot be decoded again: {error}; fix the return annotation, or pass codec="
        ) from error


def unpack(name: str, codec: Codec, raw: bytes) -> Any:
    """Decode a stored outcome. Raises CorruptRecord."""
    try:
        return codec.decode(raw)
    except (*DECODE_ERRORS, ValueError, TypeError) as error:
        raise CorruptRecord(
            f"the stored outcome of {name!r} cannot be read: {error}; `backstay idempotency forget` lets it run again"
        ) from error


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """A stored failure: the exception's class and message."""

    kind: str
    reason: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        kind = type(error)
        message = str(error)[:LONGEST_REASON].encode(errors="replace").decode()
        return cls(f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."), message)


FAILURES = PlainCodec(Failure)
