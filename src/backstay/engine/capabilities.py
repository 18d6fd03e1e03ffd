"""What an engine may offer beyond its contract. Only Redis has these: threads that receive their hints on their own
connections, so that they wake without the hub's thread in between, and commands that replicas acknowledge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from backstay.engine.base import Apply


class ThreadSubscriber(Protocol):
    """A subscription of one thread to its own channel for hints, and the latch on which the thread waits for a hint."""

    def listen(self, channel: str, on_hint: Callable[[str | None], None]) -> bool:
        """Subscribe to a channel. Returns True if the thread was not subscribed yet: it missed any earlier message."""
        ...

    def set(self) -> None: ...

    def clear(self) -> None: ...

    def wait(self, timeout: float | None) -> bool: ...


class ThreadSubscribers(Protocol):
    """The subscribers of an engine, one per thread."""

    def for_this_thread(self) -> ThreadSubscriber: ...

    def channel(self, inbox: str) -> str:
        """Return the channel on which only this thread receives hints. `inbox` is the channel of the whole process."""
        ...


class ReplicaAcks(Protocol):
    """Counts the replicas that have acknowledged a command. Blocks the calling thread."""

    def confirm(self, op: Apply, replicas: int, within: float) -> tuple[Any, int]:
        """Run an idempotent command on a separate connection; return its reply and how many replicas acknowledged it
        within `within` seconds.
        """
        ...
