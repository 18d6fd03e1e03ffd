"""Listeners of the hub's channels: they buffer messages until the caller reads them. Shared by both APIs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from backstay.engine.base import steady
from backstay.errors import Closed, ConfigError, EngineUnavailable
from backstay.hub import protocol
from backstay.hub.base import Subscription
from backstay.hub.protocol import ChainCompleted, OwnershipLost, Scheduled
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.flows import Latch

#: The number of unread messages that a listener buffers. On overflow it drops them all and reports `missed`.
BUFFER = 1000
#: How many seconds entering a listener waits for each subscription to become active.
OPEN_WAIT = 5.0


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a channel. With `missed`, it only reports that earlier messages may be lost, because the connection
    broke or the buffer overflowed: the reader must then read the state that the messages announced.
    """

    channel: str
    payload: str
    missed: bool = False


class Notice(Protocol):
    """The one attribute that a class of messages needs for use with a `Listener`. `missed`: this message only reports
    that earlier messages of its channel may be lost.
    """

    @property
    def missed(self) -> bool: ...


M = TypeVar("M", bound=Notice)


@dataclass(frozen=True, slots=True)
class ChannelSpec(Generic[M]):
    """One channel of a listener, and how its payloads become messages."""

    channel: str
    #: Converts a payload to a message, or to None if the payload is malformed.
    decode: Callable[[str], M | None]
    #: The message that the listener returns after messages of this channel may have been lost.
    missed: M
    #: Whether the listener returns a message. It ignores each message for which this is False.
    wants: Callable[[M], bool] = lambda _: True


class Listener(Generic[M]):
    """A bounded buffer between the hub's thread and the readers of both APIs. Several tasks or threads may read from
    one listener; each message goes to one of them.
    """

    def __init__(self, core: Core, *channels: ChannelSpec[M], buffer: int = BUFFER) -> None:
        self._core = core
        self._channels = channels
        #: Each message with its channel, so that an overflow is reported for the right channels.
        self._messages: deque[tuple[ChannelSpec[M], M]] = deque()
        #: At least two messages per channel, so that the `missed` messages of all channels do not overflow the buffer.
        self._buffer = max(buffer, 2 * len(channels))
        #: One latch (a wake-up signal) for each reader that waits for a message.
        self._waiting: set[Latch] = set()
        self._subscriptions: list[Subscription] = []

    def _on_payload(self, channel: ChannelSpec[M], payload: str | None) -> None:
        """Buffer a message; called on the hub's thread. A payload of None means that messages may have been missed."""
        messages = self._messages
        if payload is None:
            message = channel.missed
            if messages and messages[-1][1] == message:
                return
        else:
            decoded = channel.decode(payload)
            if decoded is None:
                self._core.telemetry.emit("hub.malformed", channel=channel.channel)
                return
            if not channel.wants(decoded):
                return
            message = decoded
        if len(messages) >= self._buffer:
            self._overflow(channel)
        else:
            messages.append((channel, message))
        self.wake()

    def _overflow(self, last: ChannelSpec[M]) -> None:
        """Drop all buffered messages and the one that has just arrived on the channel `last`. Buffer one `missed`
        message for each channel that lost messages.
        """
        lost: dict[str, ChannelSpec[M]] = {}
        # One by one, not with clear(): `lost` then contains only the channels of messages that were dropped here. A
        # message that a reader takes during this loop is not dropped.
        with suppress(IndexError):
            while True:
                spec, _ = self._messages.popleft()
                lost[spec.channel] = spec
        lost[last.channel] = last
        for name, spec in lost.items():
            self._messages.append((spec, spec.missed))
            self._core.telemetry.emit("hub.overflow", channel=name)

    def wake(self) -> None:
        """Wake all waiting readers: a message arrived, or the listener or its Backstay was closed."""
        for latch in list(self._waiting):
            latch.set()

    async def _open(self) -> None:
        core = self._core
        core.check_open()
        if self._subscriptions:
            raise ConfigError("this listener is entered already; create another with listen()")
        self._messages.clear()
        try:
            for channel in self._channels:
                await self._subscribe(core, channel)
        except BaseException:
            self._close()
            raise

    async def _subscribe(self, core: Core, channel: ChannelSpec[M]) -> None:
        ready = core.port.latch()
        subscription = core.hub.subscribe(
            protocol.channel(core.hub_prefix, channel.channel),
            lambda payload: self._on_payload(channel, payload),
            ready.set,
            prompt=True,
        )
        self._subscriptions.append(subscription)
        await core.park(ready, OPEN_WAIT)
        if subscription.error is not None:
            raise subscription.error
        if not subscription.is_ready:
            raise EngineUnavailable(f"the subscription to {channel.channel!r} was not ready within {OPEN_WAIT:g} s")

    async def _next(self, timeout: float | None) -> M | None:
        core, messages = self._core, self._messages
        if not self._subscriptions:
            raise ConfigError("enter the listener first: async with stay.hub.listen(channel) as messages")
        until = None if timeout is None else steady() + timeout
        left = timeout
        while True:
            with suppress(IndexError):  # no message, or another reader took the last one
                return messages.popleft()[1]
            if core.closed or not self._subscriptions:
                raise Closed("this listener was exited, or its Backstay is closed; no more messages arrive")
            if left is not None and left < 0:
                return None
            latch = core.port.latch()
            self._waiting.add(latch)
            try:
                # Both this method and `_on_payload` write first and read second, so no wake-up is lost between them.
                if not messages:
                    with suppress(Closed):  # raised above, once the messages that have arrived are read
                        await core.park(latch, left)
            finally:
                self._waiting.discard(latch)
            if until is not None:
                left = until - steady()

    def _close(self) -> None:
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            subscription.close()
        self.wake()


def message_channels(names: Iterable[str]) -> list[ChannelSpec[Message]]:
    """Return one ChannelSpec for each channel that the user named, without duplicates."""
    return [_message_channel(name) for name in dict.fromkeys(validation.check_name(name, "channel") for name in names)]


def _message_channel(name: str) -> ChannelSpec[Message]:
    return ChannelSpec(name, lambda payload: Message(name, payload), Message(name, "", missed=True))


def scheduled_channel(types: str | Iterable[str] | None) -> ChannelSpec[Scheduled]:
    """Return the ChannelSpec for announcements of pending jobs of these types; None: of all types."""
    missed = Scheduled("", "", missed=True)
    if types is None:
        return ChannelSpec(protocol.SCHEDULED, protocol.read_scheduled, missed)
    wanted = frozenset(validation.check_name(t, "type") for t in ([types] if isinstance(types, str) else types))
    if not wanted:
        raise ConfigError("listen_scheduled needs at least one type, as in listen_scheduled(['resize'])")
    return ChannelSpec(protocol.SCHEDULED, protocol.read_scheduled, missed, lambda notice: notice.type in wanted)


def chain_completed_channel(chain_id: str) -> ChannelSpec[ChainCompleted]:
    validation.check_name(chain_id, "id")
    missed = ChainCompleted(chain_id, missed=True)
    return ChannelSpec(
        protocol.CHAIN_COMPLETED, protocol.read_chain_completed, missed, lambda notice: notice.id == chain_id
    )


def ownership_lost_channel(job_id: str) -> ChannelSpec[OwnershipLost]:
    validation.check_name(job_id, "job_id")
    missed = OwnershipLost(job_id, missed=True)
    return ChannelSpec(
        protocol.OWNERSHIP_LOST, protocol.read_ownership_lost, missed, lambda notice: notice.job_id == job_id
    )
