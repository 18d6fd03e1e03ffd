"""Benches whose clients are in this process and call a real store, as the async or the blocking API does."""

from __future__ import annotations

import asyncio
from typing import Any, Literal, Protocol

from backstay import Backstay, sync
from backstay.assembly.backends import open_job_store
from backstay.engine.base import Engine, Micros
from backstay.hub.base import Subscription
from backstay.hub.protocol import channel
from backstay.job.store import Store
from backstay.runtime.core import Core
from backstay.runtime.flows import run
from backstay.testing.clocked import open_clocked
from backstay.testing.conformance.actor import ActorFailure
from backstay.testing.conformance.job.bench import Bench, Received, StoreClient, StoreDriver
from backstay.testing.waiting import soon

Api = Literal["async", "blocking"]


class ClaimContext(Protocol):
    """What a connection needs to know of its test: the namespace, the number of shards, and the current time."""

    namespace: str
    shards: int
    now: Micros


class StoreConnection:
    """A Backstay, its engine with the test's clock, and its job store."""

    def __init__(self, url: str, api: Api, bench: ClaimContext, hub: str | None = None) -> None:
        self.engine: Engine = open_clocked(url, bench.namespace, lambda: bench.now)
        self._backstay: Any = (Backstay if api == "async" else sync.Backstay)(
            engine=self.engine, namespace=bench.namespace, hub=hub
        )
        self.core: Core = self._backstay.internals.core  # the store is called directly, not through the public API
        self.store: Store = open_job_store(self.engine, self.core.hub_prefix, bench.shards)
        self._blocking = api == "blocking"

    async def execute(self, verb: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        try:
            if self._blocking:
                return await asyncio.to_thread(lambda: run(self._apply(verb, args, named)))
            return await self._apply(verb, args, named)
        except Exception as error:
            raise ActorFailure.of(error) from error

    async def _apply(self, verb: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return await self.core.port.apply(getattr(self.store, verb)(*args, **named))

    async def close(self) -> None:
        if self._blocking:
            await asyncio.to_thread(self._backstay.close)
            await asyncio.to_thread(self.engine.close_blocking)
        else:
            await self._backstay.close()
            await self.engine.close()


class LocalBench(Bench):
    """A bench with two Backstays. Clients are assigned to them in turn, so some clients share one and some do not."""

    def __init__(self, url: str, api: Api, namespace: str, now: Micros, shards: int, hub: str | None = None) -> None:
        super().__init__(namespace, now, shards)
        self._url = url
        self._hub = hub
        self._api: Api = api
        # Each Backstay on memory:// has its own database.
        self._most = 1 if url.startswith("memory:") else 2
        self._connections: list[StoreConnection] = []
        self._connection_of: dict[str, StoreConnection] = {}
        self._subscriptions: list[Subscription] = []

    def _connection(self, turn: int) -> StoreConnection:
        while len(self._connections) <= turn:
            self._connections.append(StoreConnection(self._url, self._api, self, self._hub))
        return self._connections[turn]

    async def execute(self, client: StoreClient, verb: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if client.name not in self._connection_of:
            self._connection_of[client.name] = self._connection(len(self._connection_of) % self._most)
        return await self._connection_of[client.name].execute(verb, args, named)

    @property
    def announces(self) -> bool:
        return self._connection(0).store.announces and self._hub is None

    async def listen(self, name: str) -> Received:
        heard = Received()
        core = self._connection(0).core
        place = core.hub.subscribe(channel(core.hub_prefix, name), heard.receive)
        self._subscriptions.append(place)

        async def ready() -> bool:
            return place.is_ready

        assert await soon(ready)
        return heard

    async def close(self) -> None:
        for place in self._subscriptions:
            place.close()
        for connection in self._connections:
            await connection.close()


class LocalStoreDriver(StoreDriver):
    """Runs all clients in this process. `api`: whether they call the store as the async or the blocking API does."""

    def __init__(self, url: str, *, api: Api = "async", shards: int = 1, hub: str | None = None) -> None:
        super().__init__()
        self._url = url
        self._hub = hub
        self._api: Api = api
        self._shards = shards

    def bench(self, namespace: str, now: Micros) -> Bench:
        return LocalBench(self._url, self._api, namespace, now, self._shards, self._hub)
