"""A process that runs clients for a `RemoteBench`. The protocol is that of `backstay.testing.conformance.worker`.

The `args` of a request are the engine's time (`now`), the number of shards, and the arguments of the store method.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from typing import Any

import msgspec

from backstay.engine.base import Micros
from backstay.testing.conformance.actor import ActorFailure
from backstay.testing.conformance.job import verbs
from backstay.testing.conformance.job.drivers import Api, StoreConnection


class RemoteContext:
    """The connection to the store for one test. `now`, the engine's time, is taken from the latest request of the
    parent process.
    """

    def __init__(self, url: str, api: Api, namespace: str, shards: int) -> None:
        self.namespace = namespace
        self.shards = shards
        self.now: Micros = 0
        self.connection = StoreConnection(url, api, self)


class Clients:
    """Executes the requests of the parent process, with one connection per namespace."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._contexts: dict[str, RemoteContext] = {}

    async def handle(self, request: dict[str, Any]) -> None:
        answer: dict[str, Any] = {"id": request["id"]}
        try:
            answer["result"] = msgspec.to_builtins(await self._answer(request))
        except Exception as error:  # noqa: BLE001 - every error is passed to the parent process
            failure = error if isinstance(error, ActorFailure) else ActorFailure.of(error)
            answer["failure"] = {"kinds": failure.kinds, "message": failure.message, "facts": failure.facts}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()

    async def _answer(self, request: dict[str, Any]) -> Any:
        namespace, verb, args = request["stage"], request["verb"], request["args"]
        if verb == "close":
            if context := self._contexts.pop(namespace, None):
                await context.connection.close()
            return None
        if namespace not in self._contexts:
            self._contexts[namespace] = RemoteContext(self._url, request["api"], namespace, args["shards"])
        context = self._contexts[namespace]
        context.now = max(context.now, args["now"])
        return await context.connection.execute(verb, (), verbs.unpack(verb, args["arguments"]))


async def serve() -> None:
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[bytes] = asyncio.Queue()

    def read() -> None:
        for line in sys.stdin.buffer:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, b"")

    threading.Thread(target=read, name="leader", daemon=True).start()
    clients = Clients(json.loads(await lines.get())["url"])
    under_way: set[asyncio.Task[None]] = set()
    while line := await lines.get():
        task = loop.create_task(clients.handle(json.loads(line)))
        under_way.add(task)
        task.add_done_callback(under_way.discard)


if __name__ == "__main__":
    asyncio.run(serve())
