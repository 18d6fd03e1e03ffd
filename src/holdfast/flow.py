"""Flows: what waits, retries and gives up, written once for both APIs.

A flow is a coroutine over a `Port`. On an event loop the port awaits; on a thread it never suspends, so that the
blocking API runs the very same coroutine with one `send(None)`. Flows never import asyncio.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from holdfast.engine.base import Apply, Command, Engine, Expired, Micros, Op, Room, steady
from holdfast.errors import EngineUnavailable, OutcomeUnknown
from holdfast.telemetry import Telemetry

T = TypeVar("T")

#: A command is of no use to its caller after this many seconds; engines refuse it from then on.
PATIENCE = 10.0
#: Pauses between attempts to reach an engine: the first, and how they grow.
FIRST_PAUSE, GROWTH = 0.2, 3.0
#: How often a command that came too late is sent again with a corrected clock.
CORRECTIONS = 3


class Latch(Protocol):
    """Something to wait for. Set from any thread."""

    def set(self) -> None: ...

    def clear(self) -> None: ...


class Port(Protocol):
    """What a flow may do to the world."""

    def latch(self) -> Latch: ...

    def owner(self) -> object:
        """The task or thread that asks: whoever would wait for itself."""
        ...

    async def apply(self, op: Op[T]) -> T: ...

    async def apply_all(self, ops: Sequence[Op[T]]) -> list[T]:
        """Several at once, in one trip where the engine can. The first failure is raised."""
        ...

    async def park(self, latch: Latch, timeout: float | None) -> bool:
        """Wait until the latch is set (True) or the time is over (False)."""
        ...

    async def pause(self, seconds: float) -> None: ...

    async def shield(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run to the end although the caller is cancelled meanwhile; the cancellation follows afterwards."""
        ...


def run(coro: Coroutine[Any, Any, T]) -> T:
    """Run a flow on a blocking port. A flow that suspends there is a bug."""
    try:
        coro.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    coro.close()
    raise RuntimeError("a flow suspended on a blocking port")


class Asked(NamedTuple):
    """A reply, when the request that got it was sent, and until when earlier copies of it may still act."""

    reply: Any
    sent_at: float
    doubt_until: Micros


async def ask(
    port: Port,
    engine: Engine,
    room: Room[Any],
    name: str,
    build: Callable[[Micros], Command],
    *,
    retries: int,
    telemetry: Telemetry,
) -> Asked:
    """Send a natural command: one that may safely arrive twice. Lost replies are asked for again until the
    command's `not_after`; an engine that cannot be reached is tried `retries` times more.
    """
    started = steady()
    command = build(engine.now() + int(PATIENCE * 1_000_000))
    doubt = 0
    failures = corrections = 0
    while True:
        sent = steady()
        try:
            reply = await port.apply(Apply(room, name, command))
        except OutcomeUnknown:
            doubt = command.not_after
            telemetry.emit("engine.resend", room=room.name, name=name)
            if steady() - started > PATIENCE:
                raise
        except EngineUnavailable as error:
            failures += 1
            telemetry.emit("engine.retry", room=room.name, name=name, attempt=failures)
            if failures > retries or steady() - started > PATIENCE:
                if doubt:
                    raise OutcomeUnknown(f"{error}; an earlier attempt may have arrived") from error
                raise
            pause = FIRST_PAUSE * GROWTH ** (failures - 1)
            await port.pause(random.uniform(pause / 2, pause))
        else:
            if type(reply) is not Expired:
                return Asked(reply, sent, doubt)
            engine.correct(reply.now)
            corrections += 1
            if corrections > CORRECTIONS:
                raise EngineUnavailable(f"{room.name} {name!r}: the engine found every attempt too late")
            command = build(reply.now + int(PATIENCE * 1_000_000))
