"""Looking at keys from outside, and setting right what went wrong."""

from __future__ import annotations

from backstay.engine.base import Apply, Read
from backstay.idempotency.machine import IDEMPOTENCY, IDLE, Forget, Forgotten
from backstay.idempotency.view import KeyInspection, inspection
from backstay.runtime.core import Core
from backstay.runtime.flows import ask, deadline, persist


async def inspect(core: Core, name: str) -> KeyInspection:
    """One key at this moment."""
    core.check_open()
    op = Read(IDEMPOTENCY, name)
    reading = await persist(core.port, op, retries=core.policy.lock_retries, telemetry=core.telemetry)
    return inspection(name, reading.state, reading.now)


async def forget(core: Core, name: str) -> bool:
    """Let the next call run, whatever came of earlier ones. True: there was something to forget."""
    core.check_open()
    op = Apply(IDEMPOTENCY, name, Forget(deadline(core.engine)))
    asked = await ask(core.port, core.engine, op, core.policy.lock_retries, core.telemetry)
    reply: Forgotten = asked.reply
    core.telemetry.emit("idempotency.forgotten", name=name, was=reply.was)
    return reply.was != IDLE or asked.doubt_until > 0
