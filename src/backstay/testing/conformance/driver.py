"""A driver sets the stage for a claim: actors that share one engine, in a namespace nobody else uses."""

from __future__ import annotations

import asyncio
import functools
import secrets
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, Self

from backstay.engine.client_types import Owned
from backstay.testing.conformance.actor import Actor
from backstay.testing.waiting import WITHIN

#: No claim takes longer on a working engine, on however busy a machine.
PATIENCE = 3 * WITHIN


class Stage(ABC):
    """Where one claim plays."""

    @abstractmethod
    async def actor(self) -> Actor:
        """One more caller."""

    async def actors(self, count: int) -> list[Actor]:
        return [await self.actor() for _ in range(count)]

    @abstractmethod
    async def close(self) -> None:
        """Everybody leaves. Safe after a failed claim, with actors that still wait."""


class Driver(ABC):
    """Where actors live, and on which engine. A context manager; made once, it plays any number of claims."""

    def __init__(self, url: str | Owned, *, namespace: str = "conformance", hub: str | Owned | None = None) -> None:
        self.url = url
        self.hub = hub
        self._namespace = namespace

    @abstractmethod
    def stage(self, namespace: str) -> Stage:
        """An empty stage."""

    def play(self, scenario: Callable[[Stage], Awaitable[None]]) -> None:
        """Run a scenario to its end on a stage of its own."""
        asyncio.run(self._play(scenario))

    async def _play(self, scenario: Callable[[Stage], Awaitable[None]]) -> None:
        stage = self.stage(f"{self._namespace}-{secrets.token_hex(6)}")
        try:
            async with asyncio.timeout(PATIENCE):
                await scenario(stage)
        finally:
            await stage.close()

    def close(self) -> None:  # noqa: B027 - most drivers keep nothing between claims
        """Let go of what outlives a claim. Safe twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def claim(scenario: Callable[[Any, Stage], Awaitable[None]]) -> Callable[[Any, Driver], None]:
    """Make a test of a scenario: pytest sees a plain method that takes the `driver` fixture."""

    def test(self: Any, driver: Driver) -> None:
        driver.play(functools.partial(scenario, self))

    test.__name__ = scenario.__name__
    test.__qualname__ = scenario.__qualname__
    test.__doc__ = scenario.__doc__
    test.__module__ = scenario.__module__
    return test
