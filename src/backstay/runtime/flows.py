"""The base of all `flows.py` modules: operations (wait, retry, give up) written once for the async and blocking APIs.

An operation is a coroutine over a `Port`. On an event loop the port awaits; on a thread it never suspends, so the
blocking API runs the same coroutine to its end with one `send(None)`. Operations never import asyncio.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from backstay.engine.base import Op
from backstay.engine.capabilities import ThreadSubscribers

T = TypeVar("T")


class Latch(Protocol):
    """An event to wait for. Any thread may set it."""

    def set(self) -> None: ...

    def clear(self) -> None: ...


class Port(Protocol):
    """The side effects of an operation: engine calls, waiting, callbacks. One implementation for each API."""

    def latch(self) -> Latch: ...

    def thread_subscribers(self) -> ThreadSubscribers | None:
        """The subscriptions of threads, if each waiting thread receives its hints on a connection of its own. None: the
        hub receives the hints of all callers on one subscription.
        """
        ...

    def owner(self) -> object:
        """The calling task or thread. It is compared with the owner of a lease, to detect a caller that would wait for
        its own lease.
        """
        ...

    def apply(self, op: Op[T]) -> Awaitable[T]: ...

    async def apply_all(self, ops: Sequence[Op[T]]) -> list[T]:
        """Apply several engine operations, in one round trip if the engine supports that. Raises the first failure."""
        ...

    async def for_each(
        self, do: Callable[[T], Coroutine[Any, Any, None]], things: Sequence[T], concurrency: int
    ) -> None:
        """Call `do` with each of `things`, in order; on an event loop, up to `concurrency` calls run at once."""
        ...

    async def park(self, latch: Latch, timeout: float | None) -> bool:
        """Wait until the latch is set (True) or the timeout is over (False)."""
        ...

    async def pause(self, seconds: float) -> None: ...

    async def invoke(self, call: Callable[[], T]) -> T:
        """Run a blocking call where it does not block the event loop."""
        ...

    async def shield(self, coro: Coroutine[Any, Any, None], grace: float | None = None) -> None:
        """Run `coro` to its end even if the caller is cancelled; the cancellation is raised afterwards. With `grace`, a
        caller on an event loop waits at most that many seconds; `coro`, which then must not raise, continues in the
        background.
        """
        ...


def run(coro: Coroutine[Any, Any, T]) -> T:
    """Run an operation of the blocking API to its end. Raises RuntimeError if it suspends, which a blocking port never
    does.
    """
    try:
        coro.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    coro.close()
    raise RuntimeError("an operation suspended on a blocking port")


async def maybe_await(value: Any) -> Any:
    """Await an awaitable; return any other value as it is. Used where an object of the user may be blocking or async.
    With a blocking object it never suspends, as `run` requires.
    """
    return await value if inspect.isawaitable(value) else value
