"""Channels for application code: publish a hint, listen for hints. Fire and forget: never the only way to know."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import cast

from holdfast import inputs
from holdfast.core import Core
from holdfast.errors import ConfigError, EngineUnavailable
from holdfast.flow import Latch
from holdfast.hub.base import Subscription

#: Messages kept for a listener that does not read; then the oldest go, and it is told that it missed some.
BUFFER = 1000
#: How long `listen` waits until the channel is heard.
OPEN_WAIT = 5.0


@dataclass(frozen=True, slots=True)
class Message:
    """A hint. `missed`: the connection broke or the buffer overflowed, so look for yourself."""

    channel: str
    payload: str
    missed: bool = False


class Ear:
    """What both APIs' listeners share: a bounded buffer between the hub's thread and the reader."""

    def __init__(self, core: Core, channel: str, buffer: int = BUFFER) -> None:
        self._core = core
        self.channel = inputs.name(channel, "channel")
        self._messages: deque[Message] = deque()
        self._buffer = inputs.count(buffer, "buffer")
        self._latch: Latch | None = None
        self._subscription: Subscription | None = None

    def _heard(self, payload: str | None) -> None:
        if payload is None or len(self._messages) >= self._buffer:
            if self._messages and self._messages[-1].missed:
                return
            if payload is not None:
                self._messages.clear()
            self._messages.append(Message(self.channel, "", missed=True))
        else:
            self._messages.append(Message(self.channel, payload))
        if self._latch is not None:
            self._latch.set()

    async def _open(self) -> None:
        self._core.check_open()
        ready = self._core.port.latch()
        self._latch = self._core.port.latch()
        wire = full_name(self._core, self.channel)
        self._subscription = self._core.hub.subscribe(wire, self._heard, ready.set)
        await self._core.port.park(ready, OPEN_WAIT)
        if self._subscription.error is not None:
            raise self._subscription.error
        if not self._subscription.is_ready:
            self._close()
            raise EngineUnavailable(f"channel {self.channel!r} could not be opened within {OPEN_WAIT:g} s")

    async def _next(self, timeout: float | None) -> Message | None:
        if self._latch is None:
            raise ConfigError("enter the listener first: async with hf.hub.listen(channel) as messages")
        if not self._messages:
            self._latch.clear()
            if not self._messages:
                await self._core.port.park(self._latch, timeout)
        return self._messages.popleft() if self._messages else None

    def _close(self) -> None:
        if self._subscription is not None:
            self._subscription.close()


def full_name(core: Core, channel: str) -> str:
    """The channel as it is on the wire: below the namespace, so that applications do not hear each other."""
    return f"{core.engine.namespace}:{channel}"


async def publish(core: Core, channel: str, payload: str) -> None:
    core.check_open()
    given = cast("object", payload)
    if not isinstance(given, str):
        raise ConfigError(f"a payload is text; got {type(given).__name__}")
    core.telemetry.emit("hub.published", channel=channel)
    await core.port.apply(core.hub.publish(full_name(core, inputs.name(channel, "channel")), payload))
