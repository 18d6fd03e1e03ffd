"""Plays the conformance suites on the model of the job store."""

from __future__ import annotations

from typing import Any

from backstay.engine.base import Micros
from backstay.hub.protocol import channel
from backstay.testing.conformance.actor import Failure
from backstay.testing.conformance.job.bench import Bench, Client, Received, StoreDriver
from support.job_model.store import ModelEngine, ModelStore


class ModelBench(Bench):
    """The model itself: a claim that fails here is wrong, or the model is."""

    def __init__(self, namespace: str, now: Micros) -> None:
        super().__init__(namespace, now)
        self._store = ModelStore(namespace)
        self._engine = ModelEngine(self._store, lambda: self.now)
        self._listeners: dict[str, list[Received]] = {}

    async def carry_out(self, client: Client, verb: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        try:
            answer = self._engine.apply(getattr(self._store, verb)(*args, **named))
        except Exception as error:
            raise Failure.of(error) from error
        wakes, self._store.wakes = self._store.wakes, []
        for wake in wakes:
            for listener in self._listeners.get(wake.inbox, ()):
                listener.receive(wake.payload)
        return answer

    @property
    def announces(self) -> bool:
        return self._store.announces

    async def listen(self, name: str) -> Received:
        heard = Received()
        self._listeners.setdefault(channel(self.namespace, name), []).append(heard)
        return heard

    async def close(self) -> None:
        pass


class ModelDriver(StoreDriver):
    """Plays claims on the model."""

    def bench(self, namespace: str, now: Micros) -> Bench:
        return ModelBench(namespace, now)
