"""The caller's function under its call: on an event loop it is cancelled when the call is lost; a thread cannot be."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from backstay.engine.base import Recall
from backstay.errors import ConfigError, EngineError
from backstay.idempotency import flows
from backstay.idempotency.flows import Spec
from backstay.idempotency.lease import Call
from backstay.idempotency.machine import IDEMPOTENCY, Done
from backstay.idempotency.recall import recalled
from backstay.runtime.core import Core
from backstay.runtime.flows import run
from backstay.runtime.lease_scope import Body
from backstay.runtime.maybe_await import settled
from backstay.runtime.serialization import Codec


async def run_async(core: Core, wanted: Spec, fn: Callable[[], Any], codec: Codec) -> Any:
    turn: Call | Done | None = None
    if core.closed:
        core.check_open()
    if core.engine.recalls:
        try:  # noqa: SIM105 - a context manager costs what a replay has to save
            turn = recalled(await core.port.apply(Recall(IDEMPOTENCY, wanted.name)), wanted.fingerprint)
        except EngineError:
            pass  # the command that follows finds out what is the matter
    if turn is None:
        turn = await flows.begin(core, wanted)
    if isinstance(turn, Done):
        core.telemetry.counts["idempotency.replayed"] += 1
        return flows.replayed(wanted.name, turn, codec)

    async def perform(call: Call | None) -> Any:
        if call is None or wanted.allow:  # nobody is to stop it
            return await settled(fn())
        body = Body(call, core.port.signal)
        try:
            result = await settled(fn())
        except BaseException as error:
            if body.close() and isinstance(error, asyncio.CancelledError):
                raise call.loss() from error
            raise
        body.close()
        return result

    return await flows.execute(turn, wanted, perform, codec)


def run_blocking(core: Core, wanted: Spec, fn: Callable[[], Any], codec: Codec) -> Any:
    turn: Call | Done | None = None
    if core.closed:
        core.check_open()
    if core.engine.recalls:
        try:  # noqa: SIM105 - a context manager costs what a replay has to save
            turn = recalled(core.engine.apply(Recall(IDEMPOTENCY, wanted.name)), wanted.fingerprint)
        except EngineError:
            pass  # the same
    if turn is None:
        turn = run(flows.begin(core, wanted))
    if isinstance(turn, Done):
        core.telemetry.counts["idempotency.replayed"] += 1
        return flows.replayed(wanted.name, turn, codec)

    async def perform(_: Call | None) -> Any:
        result = fn()
        if inspect.iscoroutine(result):  # nothing has run yet
            result.close()
            raise ConfigError(f"what runs for {wanted.name!r} is async: use the async Backstay's `run`")
        return result

    return run(flows.execute(turn, wanted, perform, codec))
