"""A process that runs actors for a `ProcessDriver`, controlled over stdin and stdout with one JSON object per line.

The first line is `{"url": …, "hub": …}`: the engine and the hub of all actors. Each further line is a request:

    id      the number that the reply repeats
    stage   the name of the stage: the namespace of one test
    api     the API that the actor uses: async or blocking
    actor   the name of the actor, which is created at its first request
    verb    the method that the actor executes; `close` closes the stage
    args    the keyword arguments of the method

The reply is `{"id", "result"}` or, for an exception, `{"id", "failure": {"kinds", "message", "facts"}}`. `kinds`: the
names of the exception's class and its base classes. `facts`: some of its attributes. The process exits at the end of
its input.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from typing import Any

import msgspec

from backstay.testing.conformance.actor import Actor, ActorFailure
from backstay.testing.conformance.inprocess import STAGES, InProcessStage


class ActorProcess:
    """Executes the requests of the parent process. It keeps stages and actors by the names in these requests."""

    def __init__(self, url: str, hub: str | None) -> None:
        self._url = url
        self._hub = hub
        self._stages: dict[tuple[str, str], InProcessStage] = {}
        self._actors: dict[tuple[str, str], Actor] = {}

    async def handle(self, request: dict[str, Any]) -> None:
        answer: dict[str, Any] = {"id": request["id"]}
        try:
            if request["verb"] == "close":
                await self.close(request["stage"])
                result = None
            else:
                actor = await self._actor(request["stage"], request["api"], request["actor"])
                result = await actor.do(request["verb"], **request["args"])
            answer["result"] = msgspec.to_builtins(result)
        except Exception as error:  # noqa: BLE001 - every error is passed to the parent process
            failure = error if isinstance(error, ActorFailure) else ActorFailure.of(error)
            answer["failure"] = {"kinds": failure.kinds, "message": failure.message, "facts": failure.facts}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()

    async def _actor(self, stage: str, api: str, name: str) -> Actor:
        if (stage, name) not in self._actors:
            if (stage, api) not in self._stages:
                self._stages[stage, api] = STAGES[api](self._url, stage, self._hub)
            self._actors[stage, name] = await self._stages[stage, api].actor()
        return self._actors[stage, name]

    async def close(self, stage: str) -> None:
        self._actors = {key: actor for key, actor in self._actors.items() if key[0] != stage}
        for key in [key for key in self._stages if key[0] == stage]:
            await self._stages.pop(key).close()


async def serve() -> None:
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[bytes] = asyncio.Queue()

    def read() -> None:
        for line in sys.stdin.buffer:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, b"")

    threading.Thread(target=read, name="leader", daemon=True).start()
    where = json.loads(await lines.get())
    worker = ActorProcess(where["url"], where["hub"])
    under_way: set[asyncio.Task[None]] = set()
    while line := await lines.get():
        task = loop.create_task(worker.handle(json.loads(line)))
        under_way.add(task)
        task.add_done_callback(under_way.discard)


if __name__ == "__main__":
    asyncio.run(serve())
