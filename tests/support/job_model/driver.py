"""A driver that runs the conformance suites of job stores on the model."""

from __future__ import annotations

from typing import Any

from backstay.engine.base import Micros
from backstay.hub.protocol import channel
from backstay.testing.conformance.actor import ActorFailure
from backstay.testing.conformance.job.bench import Bench, Received, StoreClient, StoreDriver
from support.job_model.store import ModelEngine, ModelStore


class ModelBench(Bench):
    """The model in one namespace. A test that fails here shows an error in the test or in the model."""

    def __init__(self, namespace: str, now: Micros) -> None:
        super().__init__(namespace, now)
        self._store = ModelStore(namespace)
        self._engine = ModelEngine(self._store, lambda: self.now)
        self._listeners: dict[str, list[Received]] = {}

    async def execute(self, client: StoreClient, verb: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        try:
            reply = self._engine.apply(getattr(self._store, verb)(*args, **named))
        except Exception as error:
            raise ActorFailure.of(error) from error
        wakes, self._store.wakes = self._store.wakes, []
        for wake in wakes:
            for listener in self._listeners.get(wake.inbox, ()):
                listener.receive(wake.payload)
        return reply

    @property
    def announces(self) -> bool:
        return self._store.announces

    async def listen(self, name: str) -> Received:
        received = Received()
        self._listeners.setdefault(channel(self.namespace, name), []).append(received)
        return received

    async def close(self) -> None:
        pass


class ModelDriver(StoreDriver):
    """Opens benches on the model."""

    def bench(self, namespace: str, now: Micros) -> Bench:
        return ModelBench(namespace, now)
