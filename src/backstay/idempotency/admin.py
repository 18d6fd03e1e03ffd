"""Inspect and forget idempotency keys from outside."""

from __future__ import annotations

from backstay.engine.base import Apply, Read, Room
from backstay.idempotency.machine import IDEMPOTENCY, IDLE, Forget, Forgotten, KeyState
from backstay.idempotency.view import KeyInspection, inspection
from backstay.runtime.core import Core
from backstay.runtime.lost_replies import deadline, retry_idempotent, send_idempotent


async def inspect(core: Core, name: str, room: Room[KeyState] = IDEMPOTENCY) -> KeyInspection:
    """Read one key. Changes nothing."""
    core.check_open()
    op = Read(room, name)
    reading = await retry_idempotent(core.port, op, retries=core.policy.lock_retries, telemetry=core.telemetry)
    return inspection(name, reading.state, reading.now)


async def forget(core: Core, name: str, room: Room[KeyState] = IDEMPOTENCY) -> bool:
    """Delete the state and the outcome of a key, so that the next call runs. Returns whether there was anything to
    delete.
    """
    core.check_open()
    op = Apply(room, name, Forget(deadline(core.engine)))
    result = await send_idempotent(core.port, core.engine, op, core.policy.lock_retries, core.telemetry)
    reply: Forgotten = result.reply
    core.telemetry.emit("idempotency.forgotten", name=name, was=reply.was)
    return reply.was != IDLE or result.doubt_until > 0
