"""Whose keys a lock or a limit lives in: Backstay's own, or those that n8n's Redis nodes can speak."""

from __future__ import annotations

from typing import Literal

from backstay.engine.base import Engine
from backstay.errors import ConfigError
from backstay.interop.n8n_wire import keys
from backstay.runtime import validation

Wire = Literal["backstay", "n8n"]


def is_n8n(engine: Engine, wire: str) -> bool:
    """Whether it is n8n's wire that is asked for. Raises ConfigError where that cannot be."""
    if wire == "backstay":
        return False
    if wire != "n8n":
        raise ConfigError(f"wire is 'backstay' or 'n8n'; got {wire!r}")
    if getattr(engine, "dialect", "") != "redis":
        raise ConfigError(
            "wire='n8n' is for Redis, the only store that n8n's own nodes reach: use redis://…, or leave out wire="
        )
    return True


def taken_scope(value: str, what: str) -> str:
    """A scope to take or to count on. n8n's primitives refuse a blank one, so nobody else may hold it either."""
    if not validation.name(value, what).strip():
        raise ConfigError(f"{what} {value!r} is blank, and n8n's primitives take no such scope: name what is protected")
    return value


def locks_n8n(engine: Engine, wire: str, scope: str) -> bool:
    """The same for a lock, whose keys must live in one place."""
    if not is_n8n(engine, wire):
        return False
    if getattr(engine, "spreads", False) and not keys.hash_tag(scope):
        raise ConfigError(
            f"on a Redis Cluster the two keys of {scope!r} may live on two nodes: give the scope a hash tag, as in"
            f" {'{' + scope + '}'!r}, here and in n8n"
        )
    return True
