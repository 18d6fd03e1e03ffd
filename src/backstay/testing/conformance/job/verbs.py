"""Convert calls of store methods to plain data and back, so that they can be sent to another process."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any, get_args, get_type_hints

import msgspec

from backstay.job.store import Store


@cache
def _types(verb: str) -> dict[str, Any]:
    return get_type_hints(getattr(Store, verb))


def pack(verb: str, args: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """Convert the arguments of a method to plain data, by name."""
    bound = inspect.signature(getattr(Store, verb)).bind(None, *args, **named)
    return {name: msgspec.to_builtins(value) for name, value in bound.arguments.items() if name != "self"}


def unpack(verb: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Convert plain data back to the arguments of a method, by name."""
    return {name: msgspec.convert(value, _types(verb)[name]) for name, value in arguments.items()}


def unpack_result(verb: str, data: Any) -> Any:
    """Convert plain data back to the return value of a method."""
    (kind,) = get_args(_types(verb)["return"])
    return msgspec.convert(data, kind)
