"""A bench with clients in three processes: two use the async API, one the blocking API. Each request to a process
contains the test's time.
"""

from __future__ import annotations

import contextlib
from typing import Any

from backstay.engine.base import Micros
from backstay.testing.conformance.actor import ActorFailure
from backstay.testing.conformance.job import verbs
from backstay.testing.conformance.job.bench import Bench, Received, StoreClient, StoreDriver
from backstay.testing.conformance.job.drivers import LocalBench
from backstay.testing.conformance.processes import APIS, Process

PROGRAM = "backstay.testing.conformance.job.worker"


class RemoteBench(LocalBench):
    """A bench that assigns clients to the processes in turn. Its subscriptions are in this process."""

    def __init__(self, processes: list[Process], url: str, namespace: str, now: Micros, shards: int) -> None:
        super().__init__(url, "async", namespace, now, shards)
        self._processes = processes
        self._homes: dict[str, Process] = {}

    async def execute(self, client: StoreClient, verb: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if client.name not in self._homes:
            self._homes[client.name] = self._processes[len(self._homes) % len(self._processes)]
        request = {"now": self.now, "shards": self.shards, "arguments": verbs.pack(verb, args, named)}
        return verbs.unpack_result(
            verb, await self._homes[client.name].call(self.namespace, client.name, verb, request)
        )

    async def listen(self, name: str) -> Received:
        # On SQLite, messages are rows of a table, and a new connection skips the rows that exist. So open the database
        # before the test publishes.
        await self._connection(0).execute("queues", (), {})
        return await super().listen(name)

    async def close(self) -> None:
        for process in self._processes:
            with contextlib.suppress(ActorFailure, ProcessLookupError):
                if process.alive:
                    await process.call(self.namespace, "", "close", {})
        await super().close()


class RemoteStoreDriver(StoreDriver):
    """Runs clients in three processes. It cannot use `memory://`, which other processes cannot see."""

    def __init__(self, url: str, *, shards: int = 1) -> None:
        super().__init__()
        self._url = url
        self._shards = shards
        self._processes: list[Process] = []

    def bench(self, namespace: str, now: Micros) -> Bench:
        if not self._processes:
            self._processes = [Process(self._url, api, program=PROGRAM) for api in APIS]
        return RemoteBench(self._processes, self._url, namespace, now, self._shards)

    def close(self) -> None:
        processes, self._processes = self._processes, []
        for process in processes:
            process.close()
