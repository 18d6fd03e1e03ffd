"""Validate the option `wire=`: Backstay's own records, or the Redis keys that n8n's nodes use."""

from __future__ import annotations

from backstay.engine.base import Engine
from backstay.errors import ConfigError
from backstay.interop.n8n_wire import keys
from backstay.runtime import validation


def is_n8n(engine: Engine, wire: str) -> bool:
    """Return whether `wire` is n8n's. Raises ConfigError for an unknown wire and for an engine without Redis keys."""
    if wire == "backstay":
        return False
    if wire != "n8n":
        raise ConfigError(f"wire must be 'backstay' or 'n8n'; got {wire!r}")
    if not engine.exposes_redis_keys:
        raise ConfigError(
            "wire='n8n' needs Redis, the only store that n8n's own nodes use: use redis://…, or leave out wire="
        )
    return True


def require_scope(value: str, what: str) -> str:
    """Validate the scope of a lock or limit. A blank scope is rejected, because n8n's primitives reject it, too."""
    if not validation.check_name(value, what).strip():
        raise ConfigError(f"{what} {value!r} is blank, which n8n's primitives reject: name the protected resource")
    return value


def is_n8n_lock(engine: Engine, wire: str, scope: str) -> bool:
    """Like `is_n8n`, for a lock. Raises ConfigError on a Redis Cluster if the scope has no hash tag, because the two
    keys of a lock must be in one slot.
    """
    if not is_n8n(engine, wire):
        return False
    if engine.is_clustered and not keys.hash_tag(scope):
        raise ConfigError(
            f"on a Redis Cluster the two keys of {scope!r} may be on two nodes: give the scope a hash tag, as in"
            f" {'{' + scope + '}'!r}, here and in n8n"
        )
    return True
