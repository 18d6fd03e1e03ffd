"""A process that runs clients for a `RemoteBench`. Protocol as in `backstay.testing.conformance.worker`.

`args` of a request holds the engine's time (`now`), the number of shards and the method's arguments.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from typing import Any

import msgspec

from backstay.engine.base import Micros
from backstay.testing.conformance.actor import Failure
from backstay.testing.conformance.job import verbs
from backstay.testing.conformance.job.drivers import Api, Connection


class RemoteContext:
    """The settings of one test's connection, with the time that the parent process sends."""

    def __init__(self, url: str, api: Api, namespace: str, shards: int) -> None:
        self.namespace = namespace
        self.shards = shards
        self.now: Micros = 0
        self.connection = Connection(url, api, self)


class Clients:
    """Keeps one connection per namespace."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._contexts: dict[str, RemoteContext] = {}

    async def handle(self, request: dict[str, Any]) -> None:
        answer: dict[str, Any] = {"id": request["id"]}
        try:
            answer["result"] = msgspec.to_builtins(await self._answer(request))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            failure = error if isinstance(error, Failure) else Failure.of(error)
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
        return await context.connection.carry_out(verb, (), verbs.unpack(verb, args["arguments"]))


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
