"""Validate the options of a lock in n8n's keys, and choose the code that inspects and repairs locks (LockAdmin)."""

from __future__ import annotations

from backstay.engine.base import Engine
from backstay.errors import ConfigError
from backstay.gate import admin
from backstay.gate.flows import GateSpec
from backstay.gate.options import MAX_WAITERS
from backstay.gate.wire import LockAdmin
from backstay.interop.n8n_wire import keys
from backstay.interop.n8n_wire.gate import admin as n8n_admin
from backstay.interop.n8n_wire.gate import flows
from backstay.interop.n8n_wire.option import is_n8n, is_n8n_lock, require_scope
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.validation import Duration


def n8n_spec(
    core: Core,
    name: str,
    ttl: Duration | None,
    renew: bool | None,
    max_hold: Duration | None,
    max_waiters: int,
    reentrant: bool,
    durability: str | None,
    poll: Duration | None,
) -> GateSpec:
    """Validate the options of a lock in n8n's keys. Defaults: a TTL of one day, and no renewal. There is no queue."""
    if max_waiters is not MAX_WAITERS:
        raise ConfigError("wire='n8n' has no queue, so it has no max_waiters: waiters poll every `poll` seconds")
    if durability is not None:
        raise ConfigError("wire='n8n' does not wait for replicas: leave out durability=, or leave out wire=")
    return GateSpec(
        require_scope(name, "name"),
        True,
        1,
        float(keys.TTL_SECONDS) if ttl is None else validation.to_seconds(ttl, "ttl"),
        renew is True,
        core.policy.lock_max_hold if max_hold is None else validation.to_seconds(max_hold, "max_hold"),
        MAX_WAITERS,
        reentrant,
        wire=flows,
        poll=keys.POLL_SECONDS if poll is None else validation.to_seconds(poll, "poll"),
    )


def choose_admin(engine: Engine, wire: str, scope: str | None) -> LockAdmin:
    """Return the LockAdmin for `wire`: "backstay" (Backstay's own records) or "n8n" (n8n's Redis keys). Raises
    ConfigError for any other wire, for "n8n" if the engine is not Redis, and on a Cluster if the lock's name `scope`
    has no hash tag.
    """
    shared = is_n8n(engine, wire) if scope is None else is_n8n_lock(engine, wire, scope)
    return n8n_admin if shared else admin
