"""Send commands and resolve lost replies: what happens when a command was sent and its reply never came.

An idempotent command is sent again until its `not_after`. A command that must not be applied twice is sent again only
if it was certainly not sent; otherwise the caller gets OutcomeUnknown. An engine that cannot be reached is retried with
backoff. The room's `flows.py` chooses the function that fits its command.
"""

from __future__ import annotations

from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from backstay.engine.base import Apply, Engine, Expired, Micros, Op, steady
from backstay.engine.jitter import RANDOM
from backstay.errors import EngineError, EngineUnavailable, OutcomeUnknown
from backstay.runtime.flows import Port
from backstay.telemetry import Telemetry

T = TypeVar("T")

#: Seconds until a command's `not_after`: an engine that receives the command later rejects it.
COMMAND_LIFE = 10.0
COMMAND_LIFE_MICROS = int(COMMAND_LIFE * 1_000_000)
#: A command may be built some time before it is sent. If more than this many seconds have passed, it is built again,
#: because its `not_after` is too close.
STILL_FRESH = COMMAND_LIFE / 2
#: Backoff between attempts to reach an engine: the first pause in seconds, and its growth factor.
FIRST_PAUSE, GROWTH = 0.2, 3.0
#: After a lost reply, the first resend is immediate. Before the n-th resend (n > 1), the pause is this many seconds
#: times 2^n.
RESEND_PAUSE = 0.01
#: How many seconds a caller that gives up waits for its cleanup (withdraw a ticket, refund a reservation). With an
#: unresponsive server, the cleanup must not delay the caller's timeout for long.
CLEANUP_GRACE = 0.5
#: How often a command is sent again, with a later `not_after`, after the engine rejected it as expired.
CORRECTIONS = 3


class CommandReply(Struct, frozen=True, gc=False):
    """The engine's reply to a command, with the times at which the command was sent. If a reply is lost, the command is
    sent again, so the engine may receive several copies of it.
    """

    reply: Any
    #: When (steady clock) the first copy of the command was sent.
    began: float
    #: When (steady clock) the last copy of the command was sent.
    sent_at: float
    #: The engine may still apply an earlier copy, whose reply was lost, until this time (engine clock). 0: no reply was
    #: lost.
    doubt_until: Micros


def deadline(engine: Engine) -> Micros:
    """Return the `not_after` of a command that is sent now: the time after which the engine rejects the command."""
    return engine.now() + COMMAND_LIFE_MICROS


class RetryState:
    """Counts the failed attempts to send one request, and decides after each: wait and send it again, or give up."""

    __slots__ = ("_failures", "_port", "_resends", "_retries", "_started", "_telemetry", "_what", "doubt")

    def __init__(self, port: Port, retries: int, telemetry: Telemetry, what: str, started: float) -> None:
        self._port = port
        self._retries = retries
        self._telemetry = telemetry
        self._what = what
        self._started = started
        self._failures = self._resends = 0
        #: True once the reply to a copy of the request was lost, so that this copy may have been applied.
        self.doubt = False

    async def back_off(self, error: EngineError) -> None:
        """Wait until the request may be sent again. Raises the error, or OutcomeUnknown, when it is time to give up."""
        late = steady() - self._started > COMMAND_LIFE
        if isinstance(error, OutcomeUnknown):
            self.doubt = True
            self._resends += 1
            self._telemetry.emit("engine.resend", what=self._what)
            if late:
                raise error
            # A single lost reply is resent at once; pause only if the server keeps dropping connections.
            if self._resends > 1:
                await self._port.pause(min(RESEND_PAUSE * 2**self._resends, FIRST_PAUSE * GROWTH))
            return
        self._failures += 1
        self._telemetry.emit("engine.retry", what=self._what, attempt=self._failures)
        if late or self._failures > self._retries:
            if self.doubt:
                raise OutcomeUnknown(f"{error}; an earlier attempt may have arrived") from error
            raise error
        pause = FIRST_PAUSE * GROWTH ** (self._failures - 1)
        await self._port.pause(RANDOM.uniform(pause / 2, pause))


async def retry_idempotent(port: Port, op: Op[T], *, retries: int, telemetry: Telemetry) -> T:
    """Apply an engine operation that may safely be applied twice. Retries after a lost reply, and while the engine is
    unreachable.
    """
    attempts = RetryState(port, retries, telemetry, type(op).__name__, steady())
    while True:
        try:
            return await port.apply(op)
        except (OutcomeUnknown, EngineUnavailable) as error:
            await attempts.back_off(error)


async def send_at_most_once(port: Port, op: Op[T], *, retries: int, telemetry: Telemetry) -> T:
    """Apply an engine operation that must not be applied twice. Retries only if it was certainly not sent. Raises
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
