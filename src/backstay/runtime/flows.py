"""The base of all `flows.py` modules: operations (wait, retry, give up) written once for the async and blocking APIs.

An operation is a coroutine over a `Port`. On an event loop the port awaits; on a thread it never suspends, so the
blocking API runs the same coroutine to its end with one `send(None)`. Operations never import asyncio.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from backstay.engine.base import Apply, Engine, Expired, Micros, Op, ThreadSubscribers, steady
from backstay.errors import EngineError, EngineUnavailable, OutcomeUnknown
from backstay.telemetry import Telemetry

T = TypeVar("T")

#: Seconds for which a command is valid (its `not_after`); engines reject it from then on.
COMMAND_LIFE = 10.0
COMMAND_LIFE_MICROS = int(COMMAND_LIFE * 1_000_000)
#: A command that was built in advance is sent unchanged if it was built less than this many seconds ago.
STILL_FRESH = COMMAND_LIFE / 2
#: Backoff between attempts to reach an engine: the first pause in seconds, and its growth factor.
FIRST_PAUSE, GROWTH = 0.2, 3.0
#: The pause in seconds before a second resend; it doubles.
RESEND_PAUSE = 0.01
#: Seconds that a caller that gave up waits for its cleanup. An unresponsive server must not extend its time limit.
CLEANUP_GRACE = 0.5
#: How often an expired command is sent again with a corrected clock.
CORRECTIONS = 3


class Latch(Protocol):
    """An event to wait for. Any thread may set it."""

    def set(self) -> None: ...

    def clear(self) -> None: ...


class Port(Protocol):
    """The side effects of an operation: engine calls, waiting, callbacks. One implementation for each API."""

    def latch(self) -> Latch: ...

    def thread_subscribers(self) -> ThreadSubscribers | None:
        """The connections on which each thread receives its own hints; None: the hub receives them for all callers."""
        ...

    def owner(self) -> object:
        """The calling task or thread, to detect a caller that would wait for itself."""
        ...

    def apply(self, op: Op[T]) -> Awaitable[T]: ...

    async def apply_all(self, ops: Sequence[Op[T]]) -> list[T]:
        """Apply several operations, in one round trip where the engine can. Raises the first failure."""
        ...

    async def for_each(
        self, do: Callable[[T], Coroutine[Any, Any, None]], things: Sequence[T], concurrency: int
    ) -> None:
        """Call `do` for each thing, in order; on an event loop, up to `concurrency` at a time."""
        ...

    async def park(self, latch: Latch, timeout: float | None) -> bool:
        """Wait until the latch is set (True) or the timeout is over (False)."""
        ...

    async def pause(self, seconds: float) -> None: ...

    async def invoke(self, call: Callable[[], T]) -> T:
        """Run a blocking call where it does not block the event loop."""
        ...

    async def shield(self, coro: Coroutine[Any, Any, None], grace: float | None = None) -> None:
        """Run to the end even if the caller is cancelled meanwhile; the cancellation is raised afterwards. After
        `grace` seconds a caller on an event loop returns, and the rest, which must not raise, runs in the background.
        """
        ...


def run(coro: Coroutine[Any, Any, T]) -> T:
    """Run an operation on a blocking port. An operation that suspends there is a bug."""
    try:
        coro.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    coro.close()
    raise RuntimeError("an operation suspended on a blocking port")


async def maybe_await(value: Any) -> Any:
    """Await an awaitable; return any other value as it is. For calls of the caller's own blocking or async objects. It
    suspends for an awaitable only, so `run` accepts it for a blocking one.
    """
    return await value if inspect.isawaitable(value) else value


class CommandReply(Struct, frozen=True, gc=False):
    """A reply to a command that may have been sent several times."""

    reply: Any
    #: When (steady clock) the first and the last copy of the command were sent.
    began: float
    sent_at: float
    #: Until when (engine time) an earlier copy may still be applied; 0: none is outstanding.
    doubt_until: Micros


def deadline(engine: Engine) -> Micros:
    """Return the `not_after` of a command that is sent now."""
    return engine.now() + COMMAND_LIFE_MICROS


class RetryState:
    """Counts the failures of one request and decides: back off and retry, or give up."""

    __slots__ = ("_failures", "_port", "_resends", "_retries", "_started", "_telemetry", "_what", "doubt")

    def __init__(self, port: Port, retries: int, telemetry: Telemetry, what: str, started: float) -> None:
        self._port = port
        self._retries = retries
        self._telemetry = telemetry
        self._what = what
        self._started = started
        self._failures = self._resends = 0
        #: True once a copy of the request may have been applied.
        self.doubt = False

    async def back_off(self, error: EngineError) -> None:
        """Wait until the request may be sent again; raise the error when it may not."""
        late = steady() - self._started > COMMAND_LIFE
        if isinstance(error, OutcomeUnknown):
            self.doubt = True
            self._resends += 1
            self._telemetry.emit("engine.resend", what=self._what)
            if late:
                raise error
            if self._resends > 1:  # one lost reply may be chance; do not hammer a server that drops every connection
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


async def retry_idempotent(port: Port, op: Op[T], *, retries: int, telemetry: Telemetry) -> T:
    """Apply an operation that may safely be applied twice: retries after a lost reply or an unreachable engine."""
    attempts = RetryState(port, retries, telemetry, type(op).__name__, steady())
    while True:
        try:
            return await port.apply(op)
        except (OutcomeUnknown, EngineUnavailable) as error:
            await attempts.back_off(error)


async def send_at_most_once(port: Port, op: Op[T], *, retries: int, telemetry: Telemetry) -> T:
    """Apply an operation that must not be applied twice: retries only if it was certainly not sent. Raises
    OutcomeUnknown if it may have been applied.
    """
    attempts: RetryState | None = None
    while True:
        try:
            return await port.apply(op)
        except EngineUnavailable as error:
            if attempts is None:
                attempts = RetryState(port, retries, telemetry, type(op).__name__, steady())
            await attempts.back_off(error)


async def send_idempotent(port: Port, engine: Engine, op: Apply, retries: int, telemetry: Telemetry) -> CommandReply:
    """Send a machine command that may safely arrive twice. After a lost reply it is sent again until its `not_after`;
    an unreachable engine is retried `retries` times.
    """
    started = sent = steady()
    attempts: RetryState | None = None
    doubt = corrections = 0
    while True:
        try:
            reply = await port.apply(op)
        except (OutcomeUnknown, EngineUnavailable) as error:
            if attempts is None:
                attempts = RetryState(port, retries, telemetry, f"{op.room.name} {op.name}", started)
            await attempts.back_off(error)
            doubt = op.command.not_after if attempts.doubt else 0
        else:
            if type(reply) is not Expired:
                return CommandReply(reply, started, sent, doubt)
            engine.correct_clock(reply.now)
            corrections += 1
            if corrections > CORRECTIONS:
                raise EngineUnavailable(
                    f"{op.room.name} {op.name!r}: every attempt reached the engine after its expiry"
                )
            op = Apply(op.room, op.name, replace(op.command, not_after=reply.now + COMMAND_LIFE_MICROS))
        sent = steady()
