"""The hub's verbs, written once for both APIs. Fire and forget: never the only way to know.

Publishing and taking are counting commands: sent again only when they certainly never left. A publish whose reply was
lost raises OutcomeUnknown: it may have been heard. A take never raises for the engine's sake: whoever cannot be told
"no" looks for itself (fail open), since a look too many costs little and a look too few leaves work lying.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast

from backstay.engine.base import Op, PublishHint, steady
from backstay.errors import Closed, ConfigError, EngineError, EngineUnavailable
from backstay.hub import protocol
from backstay.hub.base import Subscription
from backstay.hub.protocol import LONGEST_PAYLOAD, ChainCompleted, OwnershipLost, Scheduled
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.flows import Latch, count_once

#: Messages kept for a listener that does not read; then they go, and it is told that it missed some.
BUFFER = 1000
#: How long `listen` waits until the channel is heard.
OPEN_WAIT = 5.0
#: A hint is worth one more try, no more: by then somebody has looked.
RETRIES = 1


@dataclass(frozen=True, slots=True)
class Message:
    """A hint. `missed`: the connection broke or the buffer overflowed, so look for yourself."""

    channel: str
    payload: str
    missed: bool = False


class Notice(Protocol):
    """Anything a listener hands out."""

    @property
    def missed(self) -> bool: ...


M = TypeVar("M", bound=Notice)


@dataclass(frozen=True, slots=True)
class Tuning(Generic[M]):
    """One channel of a listener: how payloads are read, and what is handed out when some were missed. `read` answers
    None for what cannot be read; `wants` tells whose business it is.
    """

    channel: str
    read: Callable[[str], M | None]
    missed: M
    wants: Callable[[M], bool] = lambda _: True


class Ear(Generic[M]):
    """What both APIs' listeners share: a bounded buffer between the hub's thread and whoever reads. Several tasks or
    threads may read from one; each message goes to one of them.
    """

    def __init__(self, core: Core, *tunings: Tuning[M], buffer: int = BUFFER) -> None:
        self._core = core
        self._tunings = tunings
        #: With the channel each came on: whoever loses some is told for which.
        self._messages: deque[tuple[Tuning[M], M]] = deque()
        #: Notices for every channel never fill it by themselves.
        self._buffer = max(buffer, 2 * len(tunings))
        #: Those who wait for a message now.
        self._waiting: set[Latch] = set()
        self._subscriptions: list[Subscription] = []

    def _heard(self, tuning: Tuning[M], payload: str | None) -> None:
        messages = self._messages
        if payload is None:
            message = tuning.missed
            if messages and messages[-1][1] == message:
                return
        else:
            read = tuning.read(payload)
            if read is None:
                self._core.telemetry.emit("hub.malformed", channel=tuning.channel)
                return
            if not tuning.wants(read):
                return
            message = read
        if len(messages) >= self._buffer:
            self._overflow(tuning)
        else:
            messages.append((tuning, message))
        self.wake()

    def _overflow(self, last: Tuning[M]) -> None:
        """Everything goes, the message that came `last` too; each channel that lost one says so."""
        lost: dict[str, Tuning[M]] = {}
        with suppress(IndexError):  # one by one: others read meanwhile, and what they got is not lost
            while True:
                tuning, _ = self._messages.popleft()
                lost[tuning.channel] = tuning
        lost[last.channel] = last
        for channel, tuning in lost.items():
            self._messages.append((tuning, tuning.missed))
            self._core.telemetry.emit("hub.overflow", channel=channel)

    def wake(self) -> None:
        for latch in list(self._waiting):
            latch.set()

    async def _open(self) -> None:
        core = self._core
        core.check_open()
        if self._subscriptions:
            raise ConfigError("this listener is entered already; make another with listen()")
        self._messages.clear()
        core.sleepers.add(self)
        try:
            for tuning in self._tunings:
                await self._tune(core, tuning)
        except BaseException:
            self._close()
            raise

    async def _tune(self, core: Core, tuning: Tuning[M]) -> None:
        ready = core.port.latch()
        subscription = core.hub.subscribe(
            protocol.channel(core.hub_prefix, tuning.channel),
            lambda payload: self._heard(tuning, payload),
            ready.set,
            prompt=True,
        )
        self._subscriptions.append(subscription)
        await core.port.park(ready, OPEN_WAIT)
        if subscription.error is not None:
            raise subscription.error
        if not subscription.is_ready:
            raise EngineUnavailable(f"channel {tuning.channel!r} could not be opened within {OPEN_WAIT:g} s")

    async def _next(self, timeout: float | None) -> M | None:
        core, messages = self._core, self._messages
        if not self._subscriptions:
            raise ConfigError("enter the listener first: async with stay.hub.listen(channel) as messages")
        until = None if timeout is None else steady() + timeout
        left = timeout
        while True:
            with suppress(IndexError):  # empty, or another reader was quicker
                return messages.popleft()[1]
            if core.closed or not self._subscriptions:
                raise Closed("this listener was left, or its Backstay closed; nothing will be heard here any more")
            if left is not None and left < 0:
                return None
            latch = core.port.latch()
            self._waiting.add(latch)
            try:
                # Written first, looked at second, here and in `_heard`: one of the two sees the other.
                if not messages and not core.closed:
                    await core.port.park(latch, left)
            finally:
                self._waiting.discard(latch)
            if until is not None:
                left = until - steady()

    def _close(self) -> None:
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            subscription.close()
        self._core.sleepers.discard(self)
        self.wake()


def plain(channels: Iterable[str]) -> list[Tuning[Message]]:
    """Channels by name, payloads as they are."""
    return [_plain(channel) for channel in dict.fromkeys(validation.name(channel, "channel") for channel in channels)]


def _plain(channel: str) -> Tuning[Message]:
    return Tuning(channel, lambda payload: Message(channel, payload), Message(channel, "", missed=True))


def scheduled(types: str | Iterable[str] | None) -> Tuning[Scheduled]:
    """Announcements of some types, or of all."""
    missed = Scheduled("", "", missed=True)
    if types is None:
        return Tuning(protocol.SCHEDULED, protocol.read_scheduled, missed)
    wanted = frozenset(validation.name(t, "type") for t in ([types] if isinstance(types, str) else types))
    if not wanted:
        raise ConfigError("listen_scheduled needs at least one type, as in listen_scheduled(['resize'])")
    return Tuning(protocol.SCHEDULED, protocol.read_scheduled, missed, lambda notice: notice.type in wanted)


def chain_completed(chain_id: str) -> Tuning[ChainCompleted]:
    validation.name(chain_id, "id")
    missed = ChainCompleted(chain_id, missed=True)
    return Tuning(protocol.CHAIN_COMPLETED, protocol.read_chain_completed, missed, lambda notice: notice.id == chain_id)


def ownership_lost(job_id: str) -> Tuning[OwnershipLost]:
    validation.name(job_id, "job_id")
    missed = OwnershipLost(job_id, missed=True)
    return Tuning(protocol.OWNERSHIP_LOST, protocol.read_ownership_lost, missed, lambda notice: notice.job_id == job_id)


async def publish(core: Core, channel: str, payload: str) -> None:
    given = cast("object", payload)
    if not isinstance(given, str):
        raise ConfigError(f"a payload is text; got {type(given).__name__}")
    try:
        length = len(payload.encode())
    except UnicodeEncodeError:
        raise ConfigError("a payload is valid unicode; this one has lone surrogates") from None
    if length > LONGEST_PAYLOAD:
        raise ConfigError(
            f"a payload has at most {LONGEST_PAYLOAD} bytes; got {length}. Store it, and publish where it lies."
        )
    name = validation.name(channel, "channel")
    await _send(core, name, core.hub.publish(protocol.channel(core.hub_prefix, name), payload))


async def publish_scheduled(core: Core, job_type: str, count: int) -> str:
    """Announce work. Answers the hint's id."""
    validation.name(job_type, "type")
    validation.count(count, "count")
    hint_id = protocol.new_hint_id()
    await _send(core, protocol.SCHEDULED, hint_of(core, job_type, count, hint_id))
    return hint_id


def hint_of(core: Core, job_type: str, count: int, hint_id: str = "") -> PublishHint:
    """The operation that announces work, with a counter of its own."""
    hint_id = hint_id or protocol.new_hint_id()
    channel = protocol.channel(core.hub_prefix, protocol.SCHEDULED)
    payload = protocol.write_scheduled(hint_id, job_type)
    return core.hub.publish_hint(protocol.hint_key(core.hub_prefix, hint_id), count, channel, payload)


async def publish_id(core: Core, channel: str, value: str, what: str) -> None:
    """A message that is a name: of a chain, of a job."""
    await publish(core, channel, validation.name(value, what))


async def _send(core: Core, channel: str, op: Op[Any]) -> None:
    core.check_open()
    await count_once(core.post, op, retries=RETRIES, telemetry=core.telemetry)
    core.telemetry.emit("hub.published", channel=channel)


async def take_hint(core: Core, hint_id: str, n: int) -> int:
    core.check_open()
    validation.count(n, "n")
    if hint_id == "":  # a notice of something missed has none
        return n
    given = cast("object", hint_id)
    if not isinstance(given, str) or not protocol.is_hint_id(given):
        raise ConfigError(f"hint_id is a UUID, as a notice of listen_scheduled carries it; got {hint_id!r}")
    try:
        taken = await core.post.apply(core.hub.take_hint(protocol.hint_key(core.hub_prefix, hint_id), n))
    except EngineError as error:
        core.telemetry.emit("hub.hint_unknown", hint_id=hint_id, why=type(error).__name__)
        return n
    core.telemetry.emit("hub.hint_taken" if taken else "hub.hint_denied", hint_id=hint_id, count=taken)
    return taken
