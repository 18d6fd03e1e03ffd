"""`stay.hub`: what callers hear and say, in both APIs. The verbs themselves are in `channel.py`, once."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from backstay.channel import listeners as channels
from backstay.channel.listeners import Ear, M, Message
from backstay.errors import Closed
from backstay.hub.protocol import CHAIN_COMPLETED, OWNERSHIP_LOST, ChainCompleted, OwnershipLost, Scheduled
from backstay.runtime.core import Core
from backstay.runtime.flows import run


class Listening(Ear[M]):
    """What comes on a channel: `async with stay.hub.listen("news") as messages: async for message in messages: …`."""

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
        """Ends when the Backstay is closed."""
        try:
            while (message := await self._next(None)) is None:
                pass
        except Closed:
            raise StopAsyncIteration from None
        return message

    async def next(self, timeout: float | None = None) -> M | None:
        """The next message, or None when none came in time."""
        return await self._next(timeout)


class Channels:
    """Hints between processes: publish and listen. Any of them may be lost, doubled or late."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def publish(self, channel: str, payload: str = "") -> None:
        """Tell whoever listens now. Not stored, not repeated."""
        await channels.publish(self._core, channel, payload)

    def listen(self, channel: str, *more: str) -> Listening[Message]:
        """Hear what is published on one channel or several, from entering on."""
        return Listening(self._core, *channels.plain((channel, *more)))

    async def publish_scheduled(self, type: str, count: int = 1) -> str:  # noqa: A002 - the word of its users
        """Announce that `count` jobs of a type became pending: about so many of those who listen will come. Answers
        the hint's id.
        """
        return await channels.publish_scheduled(self._core, type, count)

    def listen_scheduled(self, types: str | Iterable[str] | None = None) -> Listening[Scheduled]:
        """Hear of pending jobs of these types; None: of all."""
        return Listening(self._core, channels.scheduled(types))

    async def take_hint(self, hint_id: str, n: int = 1) -> int:
        """Ask leave to come for up to `n` jobs; answers for how many: 0 when others have taken them all. Answers `n`
        when nobody can tell: the hint is over, its counter is gone, or the engine is away.
        """
        return await channels.take_hint(self._core, hint_id, n)

    async def publish_chain_completed(self, id: str) -> None:  # noqa: A002 - the same
        """Tell those who wait for a chain's result."""
        await channels.publish_id(self._core, CHAIN_COMPLETED, id, "id")

    def listen_chain_completed(self, id: str) -> Listening[ChainCompleted]:  # noqa: A002 - the same
        """Hear of one chain's end."""
        return Listening(self._core, channels.chain_completed(id))

    async def publish_ownership_lost(self, job_id: str) -> None:
        """Tell whoever still works on a job that it is not theirs any more."""
        await channels.publish_id(self._core, OWNERSHIP_LOST, job_id, "job_id")

    def listen_ownership_lost(self, job_id: str) -> Listening[OwnershipLost]:
        """Hear when one job is taken away."""
        return Listening(self._core, channels.ownership_lost(job_id))

    def states(self) -> dict[str, str]:
        """Each channel's listener: idle, starting, running or stopping."""
        return self._core.hub.states()


class BlockingListening(Ear[M]):
    """What comes on a channel: `with stay.hub.listen("news") as messages: for message in messages: …`."""

    def __enter__(self) -> Self:
        run(self._open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> M:
        """Ends when the Backstay is closed."""
        try:
            while (message := run(self._next(None))) is None:
                pass
        except Closed:
            raise StopIteration from None
        return message

    def next(self, timeout: float | None = None) -> M | None:
        """The next message, or None when none came in time."""
        return run(self._next(timeout))


class BlockingChannels:
    """Hints between processes: publish and listen. Any of them may be lost, doubled or late."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def publish(self, channel: str, payload: str = "") -> None:
        """Tell whoever listens now. Not stored, not repeated."""
        run(channels.publish(self._core, channel, payload))

    def listen(self, channel: str, *more: str) -> BlockingListening[Message]:
        """Hear what is published on one channel or several, from entering on."""
        return BlockingListening(self._core, *channels.plain((channel, *more)))

    def publish_scheduled(self, type: str, count: int = 1) -> str:  # noqa: A002 - the word of its users
        """Announce that `count` jobs of a type became pending: about so many of those who listen will come. Answers
        the hint's id.
        """
        return run(channels.publish_scheduled(self._core, type, count))

    def listen_scheduled(self, types: str | Iterable[str] | None = None) -> BlockingListening[Scheduled]:
        """Hear of pending jobs of these types; None: of all."""
        return BlockingListening(self._core, channels.scheduled(types))

    def take_hint(self, hint_id: str, n: int = 1) -> int:
        """Ask leave to come for up to `n` jobs; answers for how many: 0 when others have taken them all. Answers `n`
        when nobody can tell: the hint is over, its counter is gone, or the engine is away.
        """
        return run(channels.take_hint(self._core, hint_id, n))

    def publish_chain_completed(self, id: str) -> None:  # noqa: A002 - the same
        """Tell those who wait for a chain's result."""
        run(channels.publish_id(self._core, CHAIN_COMPLETED, id, "id"))

    def listen_chain_completed(self, id: str) -> BlockingListening[ChainCompleted]:  # noqa: A002 - the same
        """Hear of one chain's end."""
        return BlockingListening(self._core, channels.chain_completed(id))

    def publish_ownership_lost(self, job_id: str) -> None:
        """Tell whoever still works on a job that it is not theirs any more."""
        run(channels.publish_id(self._core, OWNERSHIP_LOST, job_id, "job_id"))

    def listen_ownership_lost(self, job_id: str) -> BlockingListening[OwnershipLost]:
        """Hear when one job is taken away."""
        return BlockingListening(self._core, channels.ownership_lost(job_id))

    def states(self) -> dict[str, str]:
        """Each channel's listener: idle, starting, running or stopping."""
        return self._core.hub.states()
