"""The store's verbs as data, so that they can be asked for from another process: arguments by name, answers by type."""

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
    """The arguments of a verb as plain data."""
    bound = inspect.signature(getattr(Store, verb)).bind(None, *args, **named)
    return {name: msgspec.to_builtins(value) for name, value in bound.arguments.items() if name != "self"}


def unpack(verb: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments themselves, by name."""
    return {name: msgspec.convert(value, _types(verb)[name]) for name, value in arguments.items()}


def answer(verb: str, data: Any) -> Any:
    """What a verb answered, from plain data."""
    (kind,) = get_args(_types(verb)["return"])
    return msgspec.convert(data, kind)
