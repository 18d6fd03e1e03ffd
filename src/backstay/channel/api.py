"""`stay.hub` of the async API: publish and listen. The operations themselves are in `runtime/publishing.py`."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from backstay.channel import listeners
from backstay.channel.listeners import Listener, M, Message
from backstay.errors import Closed
from backstay.hub.protocol import CHAIN_COMPLETED, OWNERSHIP_LOST, ChainCompleted, OwnershipLost, Scheduled
from backstay.runtime import publishing
from backstay.runtime.core import Core


class AsyncListener(Listener[M]):
    """Receives messages: `async with stay.hub.listen("news") as messages: async for message in messages: …`."""

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> M:
        """Return the next message; the iteration ends when the Backstay is closed."""
        try:
            while (message := await self._next(None)) is None:
                pass
        except Closed:
            raise StopAsyncIteration from None
        return message

    async def next(self, timeout: float | None = None) -> M | None:
        """Return the next message, or None if none arrives within `timeout` seconds (default: no limit)."""
        return await self._next(timeout)


class Channels:
    """Publish and listen for messages between processes. A message may be lost, duplicated or late: use it as a hint to
    check the state, never as the state itself.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    async def publish(self, channel: str, payload: str = "") -> None:
        """Publish a message to the current listeners of a channel. It is not stored and not redelivered."""
        await publishing.publish(self._core, channel, payload)

    def listen(self, channel: str, *more: str) -> AsyncListener[Message]:
        """Return a context manager that receives the messages of one or several channels once it is entered."""
        return AsyncListener(self._core, *listeners.message_channels((channel, *more)))

    async def publish_scheduled(self, type: str, count: int = 1) -> str:  # noqa: A002 - the public name
        """Announce to the listening workers that `count` jobs of a type became pending. Returns the announcement's id.
        Workers pass it to `take_hint`, which counts down from `count`, so that only about `count` of them try to claim.
        """
        return await publishing.publish_scheduled(self._core, type, count)

    def listen_scheduled(self, types: str | Iterable[str] | None = None) -> AsyncListener[Scheduled]:
        """Return a context manager that receives announcements of pending jobs of these types (None: all types)."""
        return AsyncListener(self._core, listeners.scheduled_channel(types))

    async def take_hint(self, hint_id: str, n: int = 1) -> int:
        """Take up to `n` from an announcement's counter. Returns how many jobs the caller should try to claim: 0 if
        other workers have taken them all; `n` if the counter is unknown (it expired, or the engine is unavailable).
        """
        return await publishing.take_hint(self._core, hint_id, n)

    async def publish_chain_completed(self, id: str) -> None:  # noqa: A002 - as above
        """Announce that a chain (a job and its continuations) has completed, to the callers that wait for its
        result.
        """
        await publishing.publish_id(self._core, CHAIN_COMPLETED, id, "id")

    def listen_chain_completed(self, id: str) -> AsyncListener[ChainCompleted]:  # noqa: A002 - as above
        """Return a context manager that receives a message when one chain of jobs has completed."""
        return AsyncListener(self._core, listeners.chain_completed_channel(id))

    async def publish_ownership_lost(self, job_id: str) -> None:
        """Announce that a job no longer belongs to the worker that runs it."""
        await publishing.publish_id(self._core, OWNERSHIP_LOST, job_id, "job_id")

    def listen_ownership_lost(self, job_id: str) -> AsyncListener[OwnershipLost]:
        """Return a context manager that receives a message when a job no longer belongs to the worker that runs it."""
        return AsyncListener(self._core, listeners.ownership_lost_channel(job_id))

    def states(self) -> dict[str, str]:
        """Return, by channel, the state of this process's subscription: idle, starting, running or stopping."""
        return self._core.hub.states()
