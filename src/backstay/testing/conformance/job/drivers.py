"""Benches in this process: on the model, and on a real store through the async or the blocking port."""

from __future__ import annotations

import asyncio
from typing import Any, Literal, Protocol

from backstay import Backstay, sync
from backstay.app import open_store
from backstay.engine.base import Engine, Micros
from backstay.hub.base import Subscription
from backstay.hub.protocol import channel
from backstay.job.store import Store
from backstay.runtime.core import Core
from backstay.runtime.flows import run
from backstay.testing.clocked import open_clocked
from backstay.testing.conformance.actor import Failure
from backstay.testing.conformance.job.bench import Bench, Desk, Heard, StoreDriver
from backstay.testing.job_model import ModelEngine, ModelStore
from backstay.testing.waiting import soon

Api = Literal["async", "blocking"]


class ModelBench(Bench):
    """The model itself: a claim that fails here is wrong, or the model is."""

    def __init__(self, namespace: str, now: Micros) -> None:
        super().__init__(namespace, now)
        self._store = ModelStore(namespace)
        self._engine = ModelEngine(self._store, lambda: self.now)
        self._ears: dict[str, list[Heard]] = {}

    async def carry_out(self, desk: Desk, verb: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        try:
            answer = self._engine.apply(getattr(self._store, verb)(*args, **named))
        except Exception as error:
            raise Failure.of(error) from error
        wakes, self._store.wakes = self._store.wakes, []
        for wake in wakes:
            for ear in self._ears.get(wake.inbox, ()):
                ear.hear(wake.payload)
        return answer

    @property
    def announces(self) -> bool:
        return self._store.announces

    async def hear(self, name: str) -> Heard:
        heard = Heard()
        self._ears.setdefault(channel(self.namespace, name), []).append(heard)
        return heard

    async def close(self) -> None:
        pass


class ModelDriver(StoreDriver):
    """Plays claims on the model."""

    def bench(self, namespace: str, now: Micros) -> Bench:
        return ModelBench(namespace, now)


class Where(Protocol):
    """What an office must know: whose it is, and what time it is there."""

    namespace: str
    shards: int
    now: Micros


class Office:
    """A Backstay on a clocked engine, with its store."""

    def __init__(self, url: str, api: Api, bench: Where, hub: str | None = None) -> None:
        self.engine: Engine = open_clocked(url, bench.namespace, lambda: bench.now)
        self._backstay: Any = (Backstay if api == "async" else sync.Backstay)(
            engine=self.engine, namespace=bench.namespace, hub=hub
        )
        self.core: Core = self._backstay._core  # a store is asked below the API
        self.store: Store = open_store(self.engine, self.core.hub_prefix, bench.shards)
        self._blocking = api == "blocking"

    async def carry_out(self, verb: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        try:
            if self._blocking:
                return await asyncio.to_thread(lambda: run(self._ask(verb, args, named)))
            return await self._ask(verb, args, named)
        except Exception as error:
            raise Failure.of(error) from error

    async def _ask(self, verb: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return await self.core.port.apply(getattr(self.store, verb)(*args, **named))

    async def close(self) -> None:
        if self._blocking:
            await asyncio.to_thread(self._backstay.close)
            await asyncio.to_thread(self.engine.close_blocking)
        else:
            await self._backstay.close()
            await self.engine.close()


class LocalBench(Bench):
    """Desks take turns on two Backstays, so that some share one and some do not."""

    def __init__(self, url: str, api: Api, namespace: str, now: Micros, shards: int, hub: str | None = None) -> None:
        super().__init__(namespace, now, shards)
        self._url = url
        self._hub = hub
        self._api: Api = api
        # What lives in memory is seen by its own Backstay alone.
        self._most = 1 if url.startswith("memory:") else 2
        self._offices: list[Office] = []
        self._places: dict[str, Office] = {}
        self._subscriptions: list[Subscription] = []

    def _office(self, turn: int) -> Office:
        while len(self._offices) <= turn:
            self._offices.append(Office(self._url, self._api, self, self._hub))
        return self._offices[turn]

    async def carry_out(self, desk: Desk, verb: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if desk.name not in self._places:
            self._places[desk.name] = self._office(len(self._places) % self._most)
        return await self._places[desk.name].carry_out(verb, args, named)

    @property
    def announces(self) -> bool:
        return self._office(0).store.announces and self._hub is None

    async def hear(self, name: str) -> Heard:
        heard = Heard()
        core = self._office(0).core
        place = core.hub.subscribe(channel(core.hub_prefix, name), heard.hear)
        self._subscriptions.append(place)

        async def ready() -> bool:
            return place.is_ready

        assert await soon(ready)
        return heard

    async def close(self) -> None:
        for place in self._subscriptions:
            place.close()
        for office in self._offices:
            await office.close()


class LocalStoreDriver(StoreDriver):
    """All callers in this process, on the async API's port or the blocking one's."""

    def __init__(self, url: str, *, api: Api = "async", shards: int = 1, hub: str | None = None) -> None:
        super().__init__()
        self._url = url
        self._hub = hub
        self._api: Api = api
        self._shards = shards

    def bench(self, namespace: str, now: Micros) -> Bench:
        return LocalBench(self._url, self._api, namespace, now, self._shards, self._hub)
