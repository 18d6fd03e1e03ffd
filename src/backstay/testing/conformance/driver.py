"""A driver runs conformance tests. For each test it creates a stage: a new namespace, and actors that share an
engine.
"""

from __future__ import annotations

import asyncio
import functools
import secrets
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, Self

from backstay.engine.client_types import ClientObject
from backstay.testing.conformance.actor import Actor
from backstay.testing.waiting import WITHIN

#: Seconds after which a test fails. On a working engine every test ends earlier, even on a busy machine.
TEST_TIMEOUT = 3 * WITHIN


class Stage(ABC):
    """The environment of one test: a namespace and its actors."""

    @abstractmethod
    async def actor(self) -> Actor:
        """Create an actor."""

    async def actors(self, count: int) -> list[Actor]:
        return [await self.actor() for _ in range(count)]

    @abstractmethod
    async def close(self) -> None:
        """Stop all actors. After a failed test, some may still be waiting for a lock; they are stopped, too."""


class Driver(ABC):
    """Runs tests on one engine, with actors in tasks, threads or processes. One driver can run any number of tests. Use
    it as a context manager.
    """

    def __init__(
        self, url: str | ClientObject, *, namespace: str = "conformance", hub: str | ClientObject | None = None
    ) -> None:
        self.url = url
        self.hub = hub
        self._namespace = namespace

    @abstractmethod
    def stage(self, namespace: str) -> Stage:
        """Create the environment of one test: a namespace, and no actors yet."""

    def play(self, scenario: Callable[[Stage], Awaitable[None]]) -> None:
        """Run a test function on a new stage, and close the stage."""
        asyncio.run(self._play(scenario))

    async def _play(self, scenario: Callable[[Stage], Awaitable[None]]) -> None:
        stage = self.stage(f"{self._namespace}-{secrets.token_hex(6)}")
        try:
            async with asyncio.timeout(TEST_TIMEOUT):
                await scenario(stage)
        finally:
            await stage.close()

    def close(self) -> None:  # noqa: B027 - most drivers keep nothing between tests
        """Release what the driver keeps between tests, such as processes. Safe to call twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def driver_test(scenario: Callable[[Any, Stage], Awaitable[None]]) -> Callable[[Any, Driver], None]:
    """Decorate an async test method that takes a `Stage`. The result is a plain method for pytest, which takes the
    fixture `driver` and runs the test on a new stage.
    """

    def test(self: Any, driver: Driver) -> None:
        driver.play(functools.partial(scenario, self))

    test.__name__ = scenario.__name__
    test.__qualname__ = scenario.__qualname__
    test.__doc__ = scenario.__doc__
    test.__module__ = scenario.__module__
    return test
