"""Values as bytes and back: plain data as msgpack, rebuilt as an annotation says. Never pickle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast, runtime_checkable

import msgspec


@runtime_checkable
class Codec(Protocol):
    """Turns a value into bytes and back."""

    def encode(self, value: Any, /) -> bytes: ...

    def decode(self, raw: bytes, /) -> Any: ...


def storable(text: str) -> str:
    """Text as every store takes it: a lone surrogate, half a character, is written as its escape."""
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode()


def to_plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):  # pydantic, without importing it
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__module__}.{type(value).__qualname__} is not plain data")


def from_plain(kind: type, value: Any) -> Any:
    if kind is object:
        return value
    if hasattr(kind, "model_validate"):
        return cast("Any", kind).model_validate(value)
    raise TypeError(f"{kind.__module__}.{kind.__qualname__} cannot be rebuilt from plain data")


class Plain:
    """Plain data, dataclasses, msgspec Structs, pydantic models, dates; rebuilt as `kind`."""

    def __init__(self, kind: Any = Any) -> None:
        self._encoder = msgspec.msgpack.Encoder(enc_hook=to_plain)
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(kind, dec_hook=from_plain)
        self.encode: Callable[[Any], bytes] = self._encoder.encode
        self.decode: Callable[[bytes], Any] = self._decoder.decode


ANYTHING = Plain()


def jsonable(value: Any) -> Any:
    """Plain data as JSON can have it: bytes as base64, moments as text, any key as text, no NaN."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value))
    except (TypeError, ValueError):  # a key that JSON has no word for
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
