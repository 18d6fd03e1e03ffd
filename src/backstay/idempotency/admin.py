"""Inspect and forget idempotency keys from outside."""

from __future__ import annotations

from backstay.engine.base import Apply, Read
from backstay.idempotency.machine import IDEMPOTENCY, IDLE, Forget, Forgotten
from backstay.idempotency.view import KeyInspection, inspection
from backstay.runtime.core import Core
from backstay.runtime.flows import deadline, retry_idempotent, send_idempotent


async def inspect(core: Core, name: str) -> KeyInspection:
    """Read one key. Changes nothing."""
    core.check_open()
    op = Read(IDEMPOTENCY, name)
    reading = await retry_idempotent(core.port, op, retries=core.policy.lock_retries, telemetry=core.telemetry)
    return inspection(name, reading.state, reading.now)


async def forget(core: Core, name: str) -> bool:
    """Delete the state and the outcome of a key, so that the next call runs. True: there was something to delete."""
    core.check_open()
    op = Apply(IDEMPOTENCY, name, Forget(deadline(core.engine)))
    asked = await send_idempotent(core.port, core.engine, op, core.policy.lock_retries, core.telemetry)
    reply: Forgotten = asked.reply
    core.telemetry.emit("idempotency.forgotten", name=name, was=reply.was)
    return reply.was != IDLE or asked.doubt_until > 0
