"""Run the caller's function under an idempotency lease. When the lease is lost, an async function is cancelled; a
thread cannot be stopped.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from backstay.engine.base import DECODE_ERRORS, ReadBody
from backstay.errors import ConfigError, EngineError
from backstay.idempotency import flows
from backstay.idempotency.flows import Spec
from backstay.idempotency.lease import IdempotencyLease
from backstay.idempotency.machine import IDEMPOTENCY, Done
from backstay.runtime.core import Core
from backstay.runtime.flows import maybe_await, run
from backstay.runtime.lease_scope import LeaseScope
from backstay.runtime.serialization import Codec

#: Offsets in a stored reply. Characters 0 to 15: when the outcome expires, in µs; 16 to 79: the fingerprint of the
#: call; from 80: the outcome.
ENDS, HEAD = 16, 80


async def run_async(core: Core, wanted: Spec, fn: Callable[[], Any], codec: Codec) -> Any:
    turn: IdempotencyLease | Done | None = None
    if core.closed:
        core.check_open()
    if core.engine.expires_bodies:
        try:  # noqa: SIM105 - `suppress` would cost as much as the fast path saves
            turn = decode_recall(await core.port.apply(ReadBody(IDEMPOTENCY, wanted.name)), wanted.fingerprint)
        except EngineError:
            pass  # the Begin that follows raises it or succeeds
    if turn is None:
        turn = await flows.begin(core, wanted)
    if isinstance(turn, Done):
        core.telemetry.counts["idempotency.replayed"] += 1
        return flows.replay_or_raise(wanted.name, turn, codec)

    async def perform(call: IdempotencyLease | None) -> Any:
        if call is None or wanted.allow:  # runs unprotected, or may: a lost lease must not cancel it
            return await maybe_await(fn())
        body = LeaseScope(call, core.port.signal)
        try:
            result = await maybe_await(fn())
        except BaseException as error:
            if body.close() and isinstance(error, asyncio.CancelledError):
                raise call.loss() from error
            raise
        body.close()
        return result

    return await flows.execute(turn, wanted, perform, codec)


def run_blocking(core: Core, wanted: Spec, fn: Callable[[], Any], codec: Codec) -> Any:
    turn: IdempotencyLease | Done | None = None
    if core.closed:
        core.check_open()
    if core.engine.expires_bodies:
        try:  # noqa: SIM105 - `suppress` would cost as much as the fast path saves
            turn = decode_recall(core.engine.apply(ReadBody(IDEMPOTENCY, wanted.name)), wanted.fingerprint)
        except EngineError:
            pass  # the Begin that follows raises it or succeeds
    if turn is None:
        turn = run(flows.begin(core, wanted))
    if isinstance(turn, Done):
        core.telemetry.counts["idempotency.replayed"] += 1
        return flows.replay_or_raise(wanted.name, turn, codec)

    async def perform(_: IdempotencyLease | None) -> Any:
        result = fn()
        if inspect.iscoroutine(result):  # the coroutine has not started
            result.close()
            raise ConfigError(f"the function for {wanted.name!r} is async: use the async Backstay's `run`")
        return result

    return run(flows.execute(turn, wanted, perform, codec))


def decode_recall(kept: bytes | None, fingerprint: str) -> Done | None:
    """Decode the reply that a `Begin` would get from the body of a plain GET. That is safe because the engine deletes
    an outcome at the end of its TTL (`complete.lua`). None: send the `Begin`, because there is no outcome, it has
    another fingerprint, or it is damaged.
    """
    if kept is None or len(kept) <= HEAD or (fingerprint and kept[ENDS:HEAD] != fingerprint.encode()):
        return None
    try:
        done = IDEMPOTENCY.decode_reply(kept[HEAD:])
    except DECODE_ERRORS:
        return None
    return done if type(done) is Done else None
