"""Drivers run a conformance test: they create actors that share one engine, in a fresh namespace for each test."""

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

#: Seconds after which a test fails. On a working engine every test ends earlier, also on a busy machine.
PATIENCE = 3 * WITHIN


class Stage(ABC):
    """The environment of one test: a namespace and its actors."""

    @abstractmethod
    async def actor(self) -> Actor:
        """Create an actor."""

    async def actors(self, count: int) -> list[Actor]:
        return [await self.actor() for _ in range(count)]

    @abstractmethod
    async def close(self) -> None:
        """Stop all actors. Safe after a failed test, while actors still wait."""


class Driver(ABC):
    """Creates stages on one engine, with actors as tasks, threads or processes. A context manager; one driver runs
    any number of tests.
    """

    def __init__(
        self, url: str | ClientObject, *, namespace: str = "conformance", hub: str | ClientObject | None = None
    ) -> None:
        self.url = url
        self.hub = hub
        self._namespace = namespace

    @abstractmethod
    def stage(self, namespace: str) -> Stage:
        """Create a stage without actors."""

    def play(self, scenario: Callable[[Stage], Awaitable[None]]) -> None:
        """Run a scenario to its end on a new stage."""
        asyncio.run(self._play(scenario))

    async def _play(self, scenario: Callable[[Stage], Awaitable[None]]) -> None:
        stage = self.stage(f"{self._namespace}-{secrets.token_hex(6)}")
        try:
            async with asyncio.timeout(PATIENCE):
                await scenario(stage)
        finally:
            await stage.close()

    def close(self) -> None:  # noqa: B027 - most drivers keep nothing between tests
        """Release what the driver keeps between tests. Safe to call twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def claim(scenario: Callable[[Any, Stage], Awaitable[None]]) -> Callable[[Any, Driver], None]:
    """Turn a scenario into a test: pytest sees a plain method that takes the `driver` fixture."""

    def test(self: Any, driver: Driver) -> None:
        driver.play(functools.partial(scenario, self))

    test.__name__ = scenario.__name__
    test.__qualname__ = scenario.__qualname__
    test.__doc__ = scenario.__doc__
    test.__module__ = scenario.__module__
    return test
