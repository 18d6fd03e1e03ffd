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
from backstay.idempotency.flows import IdempotencySpec
from backstay.idempotency.lease import IdempotencyLease
from backstay.idempotency.machine import IDEMPOTENCY, Done
from backstay.runtime.core import Core
from backstay.runtime.flows import maybe_await, run
from backstay.runtime.lease import Handover
from backstay.runtime.lease_scope import LeaseScope
from backstay.runtime.serialization import Codec

#: Offsets in a stored outcome. Bytes 0 to 15: when it expires, in µs; 16 to 79: the fingerprint of the call; from 80:
#: the encoded reply.
ENDS, HEAD = 16, 80


async def run_async(core: Core, wanted: IdempotencySpec, fn: Callable[[], Any], codec: Codec) -> Any:
    begun: IdempotencyLease | Done | None = None
    if core.closed:
        core.check_open()
    if core.engine.expires_bodies:
        try:  # noqa: SIM105 - `suppress` would cost as much as the fast path saves
            begun = decode_stored_reply(await core.port.apply(ReadBody(wanted.room, wanted.name)), wanted.fingerprint)
        except EngineError:
            pass  # only the fast path failed: `begin` below asks the engine again, and raises if that fails too
    if begun is None:
        begun = await flows.begin(core, wanted)
    if isinstance(begun, Done):
        core.telemetry.counts["idempotency.replayed"] += 1
        return flows.replay_or_raise(wanted.name, begun, codec)

    async def perform(call: IdempotencyLease | None) -> Any:
        if call is None or wanted.allow:  # `fn` may run without a lease, so losing it must not cancel `fn`
            return await maybe_await(fn())
        scope = LeaseScope(call, core.port.signal)
        try:
            result = await maybe_await(fn())
        except BaseException as error:
            if scope.close() and isinstance(error, asyncio.CancelledError):
                raise call.loss() from error
            raise
        scope.close()
        return result

    return await flows.execute(begun, wanted, perform, codec)


def run_blocking(core: Core, wanted: IdempotencySpec, fn: Callable[[], Any], codec: Codec) -> Any:
    handover: Handover[IdempotencyLease] = Handover()
    try:
        return _run_blocking(core, wanted, fn, codec, handover)
    except BaseException:
        flows.give_back(core, handover)
        raise


def _run_blocking(
    core: Core,
    wanted: IdempotencySpec,
    fn: Callable[[], Any],
    codec: Codec,
    handover: Handover[IdempotencyLease],
) -> Any:
    begun: IdempotencyLease | Done | None = None
    if core.closed:
        core.check_open()
    if core.engine.expires_bodies:
        try:  # noqa: SIM105 - `suppress` would cost as much as the fast path saves
            begun = decode_stored_reply(core.engine.apply(ReadBody(wanted.room, wanted.name)), wanted.fingerprint)
        except EngineError:
            pass  # only the fast path failed: `begin` below asks the engine again, and raises if that fails too
    if begun is None:
        begun = run(flows.begin(core, wanted, handover))
    if isinstance(begun, Done):
        core.telemetry.counts["idempotency.replayed"] += 1
        return flows.replay_or_raise(wanted.name, begun, codec)

    async def perform(_: IdempotencyLease | None) -> Any:
        result = fn()
        if inspect.iscoroutine(result):  # close the coroutine, which has not started
            result.close()
            raise ConfigError(f"the function for {wanted.name!r} is async: use the async Backstay's `run`")
        return result

    return run(flows.execute(begun, wanted, perform, codec))


def decode_stored_reply(body: bytes | None, fingerprint: str) -> Done | None:
    """Decode a stored outcome, which a plain GET has read, into the reply that a `Begin` would get. So a repeated call
    needs no script. An expired outcome is never read, because its Redis key expires with it (`complete.lua`). Returns
    None if a `Begin` must be sent: there is no outcome, it has another fingerprint, or it is damaged.
    """
    if body is None or len(body) <= HEAD or (fingerprint and body[ENDS:HEAD] != fingerprint.encode()):
        return None
    try:
        done = IDEMPOTENCY.decode_reply(body[HEAD:])
    except DECODE_ERRORS:
        return None
    return done if type(done) is Done else None
