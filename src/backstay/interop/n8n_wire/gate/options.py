"""Validate the options of a lock in n8n's keys, and choose the admin of a wire."""

from __future__ import annotations

from backstay.engine.base import Engine
from backstay.errors import ConfigError
from backstay.gate import admin
from backstay.gate.flows import Spec
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
) -> Spec:
    """Return the validated options of a lock in n8n's keys: a long TTL, no renewal unless requested, no queue."""
    if max_waiters is not MAX_WAITERS:
        raise ConfigError("wire='n8n' has no queue, so it has no max_waiters: waiters poll every `poll` seconds")
    if durability is not None:
        raise ConfigError("wire='n8n' does not wait for replicas: leave out durability=, or leave out wire=")
    return Spec(
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
    """Return the admin of a wire's locks. Raises ConfigError for a wire that the engine does not support."""
    shared = is_n8n(engine, wire) if scope is None else is_n8n_lock(engine, wire, scope)
    return n8n_admin if shared else admin
