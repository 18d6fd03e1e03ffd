"""Flows: what waits, retries and gives up, written once for both APIs.

A flow is a coroutine over a `Port`. On an event loop the port awaits; on a thread it never suspends, so that the
blocking API runs the very same coroutine with one `send(None)`. Flows never import asyncio.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from backstay.engine.base import Apply, Ears, Engine, Expired, Micros, Op, steady
from backstay.errors import EngineError, EngineUnavailable, OutcomeUnknown
from backstay.telemetry import Telemetry

T = TypeVar("T")

#: A command is of no use to its caller after this many seconds; engines refuse it from then on.
PATIENCE = 10.0
PATIENCE_MICROS = int(PATIENCE * 1_000_000)
#: A command that was made ready in advance is sent as it is while this much of its time is left.
STILL_FRESH = PATIENCE / 2
#: Pauses between attempts to reach an engine: the first, and how they grow.
FIRST_PAUSE, GROWTH = 0.2, 3.0
#: The pause before a second resend; it doubles.
RESEND_PAUSE = 0.01
#: How long a caller who gave up is kept for the sake of tidiness. A silent server must not stretch his time limit.
GRACE = 0.5
#: How often a command that came too late is sent again with a corrected clock.
CORRECTIONS = 3


class Latch(Protocol):
    """Something to wait for. Set from any thread."""

    def set(self) -> None: ...

    def clear(self) -> None: ...


class Port(Protocol):
    """What a flow may do to the world."""

    def latch(self) -> Latch: ...

    def ears(self) -> Ears | None:
        """Where this caller hears hints by itself; None: the hub hears them for it."""
        ...

    def owner(self) -> object:
        """The task or thread that asks: whoever would wait for itself."""
        ...

    def apply(self, op: Op[T]) -> Awaitable[T]: ...

    async def apply_all(self, ops: Sequence[Op[T]]) -> list[T]:
        """Several at once, in one trip where the engine can. The first failure is raised."""
        ...

    async def each(self, do: Callable[[T], Coroutine[Any, Any, None]], things: Sequence[T], abreast: int) -> None:
        """`do` for each, in order; where there is an event loop, so many at a time."""
        ...

    async def park(self, latch: Latch, timeout: float | None) -> bool:
        """Wait until the latch is set (True) or the time is over (False)."""
        ...

    async def pause(self, seconds: float) -> None: ...

    async def invoke(self, call: Callable[[], T]) -> T:
        """Run something that blocks, where it holds up nobody else."""
        ...

    async def shield(self, coro: Coroutine[Any, Any, None], grace: float | None = None) -> None:
        """Run to the end although the caller is cancelled meanwhile; the cancellation follows afterwards. After `grace`
        seconds a caller on an event loop is let go, and the rest, which must not raise, happens behind its back.
        """
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


class Asked(Struct, frozen=True, gc=False):
    """A reply, when its first and its last copy were sent, and until when earlier copies may still act."""

    reply: Any
    began: float
    sent_at: float
    doubt_until: Micros


def deadline(engine: Engine) -> Micros:
    """The `not_after` of a command that is sent now."""
    return engine.now() + PATIENCE_MICROS


class Attempts:
    """Counts the failures of one request and decides: pause and try again, or give up."""

    __slots__ = ("_failures", "_port", "_resends", "_retries", "_started", "_telemetry", "_what", "doubt")

    def __init__(self, port: Port, retries: int, telemetry: Telemetry, what: str, started: float) -> None:
        self._port = port
        self._retries = retries
        self._telemetry = telemetry
        self._what = what
        self._started = started
        self._failures = self._resends = 0
        #: True once a copy of the request may have arrived.
        self.doubt = False

    async def failed(self, error: EngineError) -> None:
        """Returns when the request may be sent again; raises when it may not."""
        late = steady() - self._started > PATIENCE
        if isinstance(error, OutcomeUnknown):
            self.doubt = True
            self._resends += 1
            self._telemetry.emit("engine.resend", what=self._what)
            if late:
                raise error
            if self._resends > 1:  # once may be chance; a server that hangs up every time is not hammered
                await self._port.pause(min(RESEND_PAUSE * 2**self._resends, FIRST_PAUSE * GROWTH))
            return
        self._failures += 1
        self._telemetry.emit("engine.retry", what=self._what, attempt=self._failures)
        if late or self._failures > self._retries:
            if self.doubt:
                raise OutcomeUnknown(f"{error}; an earlier attempt may have arrived") from error
            raise error
        pause = FIRST_PAUSE * GROWTH ** (self._failures - 1)
        await self._port.pause(random.uniform(pause / 2, pause))


async def persist(port: Port, op: Op[T], *, retries: int, telemetry: Telemetry) -> T:
    """Carry out an operation that may safely happen twice, through lost replies and short absences."""
    attempts = Attempts(port, retries, telemetry, type(op).__name__, steady())
    while True:
        try:
            return await port.apply(op)
        except (OutcomeUnknown, EngineUnavailable) as error:
            await attempts.failed(error)


async def count_once(port: Port, op: Op[T], *, retries: int, telemetry: Telemetry) -> T:
    """Carry out an operation that counts: sent again only when it certainly never left. Raises OutcomeUnknown when
    it may have.
    """
    attempts: Attempts | None = None
    while True:
        try:
            return await port.apply(op)
        except EngineUnavailable as error:
            if attempts is None:
                attempts = Attempts(port, retries, telemetry, type(op).__name__, steady())
            await attempts.failed(error)


async def ask(port: Port, engine: Engine, op: Apply, retries: int, telemetry: Telemetry) -> Asked:
    """Send a natural command: one that may safely arrive twice. Lost replies are asked for again until the
    command's `not_after`; an engine that cannot be reached is tried `retries` times more.
    """
    started = sent = steady()
    attempts: Attempts | None = None
    doubt = corrections = 0
    while True:
        try:
            reply = await port.apply(op)
        except (OutcomeUnknown, EngineUnavailable) as error:
            if attempts is None:
                attempts = Attempts(port, retries, telemetry, f"{op.room.name} {op.name}", started)
            await attempts.failed(error)
            doubt = op.command.not_after if attempts.doubt else 0
        else:
            if type(reply) is not Expired:
                return Asked(reply, started, sent, doubt)
            engine.correct(reply.now)
            corrections += 1
            if corrections > CORRECTIONS:
                raise EngineUnavailable(f"{op.room.name} {op.name!r}: the engine found every attempt too late")
            op = Apply(op.room, op.name, replace(op.command, not_after=reply.now + PATIENCE_MICROS))
        sent = steady()
