"""Serialize values: plain data as msgpack, decoded to the type that an annotation names. Never pickle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast, runtime_checkable

import msgspec


@runtime_checkable
class Codec(Protocol):
    """Converts a value to bytes and back. Any thread may call it."""

    def encode(self, value: Any, /) -> bytes: ...

    def decode(self, raw: bytes, /) -> Any: ...


def escape_surrogates(text: str) -> str:
    """Replace each lone surrogate by its escape: no store can encode one as UTF-8."""
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode()


def printable(text: str) -> str:
    """Escape control characters, so that foreign text cannot move the cursor, colour the terminal or break the line."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def to_plain(value: Any) -> Any:
    """Convert a value that msgspec cannot encode: a pydantic model. The encoder's `enc_hook`."""
    if hasattr(value, "model_dump"):  # a pydantic model; pydantic need not be installed
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__module__}.{type(value).__qualname__} is not plain data")


def from_plain(kind: type, value: Any) -> Any:
    """Build a value of a type that msgspec cannot decode: a pydantic model. The decoder's `dec_hook`."""
    if kind is object:
        return value
    if hasattr(kind, "model_validate"):
        return cast("Any", kind).model_validate(value)
    raise TypeError(f"{kind.__module__}.{kind.__qualname__} cannot be built from plain data")


class PlainCodec:
    """Encodes plain data, dataclasses, msgspec Structs, pydantic models and dates; decodes to the type `kind`."""

    def __init__(self, kind: Any = Any) -> None:
        self._encoder = msgspec.msgpack.Encoder(enc_hook=to_plain)
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(kind, dec_hook=from_plain)
        self.encode: Callable[[Any], bytes] = self._encoder.encode
        self.decode: Callable[[bytes], Any] = self._decoder.decode


#: The codec without a type to decode to: it decodes to plain data, never to dataclasses or models.
PLAIN_CODEC = PlainCodec()


def to_json_value(value: Any) -> Any:
    """Convert plain data to what JSON can express: bytes as base64, datetimes and all keys as text, no NaN."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value))
    except (TypeError, ValueError):  # a mapping key that JSON cannot express
        return _with_text_keys(value)


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _with_text_keys(one) for key, one in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_with_text_keys(one) for one in cast("Sequence[Any]", value)]
    try:
        return msgspec.json.decode(msgspec.json.encode(value))
    except (TypeError, ValueError):
        return str(value)
