"""Locks of `wire="n8n"` and their Redis keys."""

from __future__ import annotations

from backstay.interop.n8n_wire import keys as n8n_keys

POLL = 0.02


def keys(scope):
    return n8n_keys.lock_key(scope), n8n_keys.meta_key(scope)


def lock(stay, scope, **options):
    return stay.lock(scope, wire="n8n", poll=POLL, **options)
