"""Actors in this process: tasks on the async API, threads on the blocking one."""

from __future__ import annotations

import asyncio
import threading
from abc import abstractmethod
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from backstay import Backstay, sync
from backstay.engine.client_types import ClientObject
from backstay.runtime.flows import run
from backstay.testing.conformance.actor import Actor, ActorFailure
from backstay.testing.conformance.actors import Actions
from backstay.testing.conformance.driver import Driver, Stage

#: Seconds to wait for an actor's thread at the end of a test. A thread that still waits for a lock is left running; it
#: is a daemon thread.
EXIT_SECONDS = 0.5

Request = tuple[str, dict[str, Any], "asyncio.Future[Any]"]


class TaskActor(Actor):
    """An actor with its own task, because a lock identifies its holder by the task that acquired it."""

    def __init__(self, backstay: Backstay) -> None:
        self._actions = Actions(backstay)
        self._requests: asyncio.Queue[Request] = asyncio.Queue()
        self._task = asyncio.get_running_loop().create_task(self._work())

    async def do(self, verb: str, **args: Any) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._requests.put_nowait((verb, args, answer))
        return await answer

    async def _work(self) -> None:
        while True:
            verb, args, answer = await self._requests.get()
            try:
                result = await self._actions.do(verb, args)
            except Exception as error:  # noqa: BLE001 - every error is passed to the test
                _set_outcome(answer, None, error)
            else:
                _set_outcome(answer, result, None)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


class ThreadActor(Actor):
    """An actor with its own thread."""

    def __init__(self, backstay: sync.Backstay) -> None:
        self._actions = Actions(backstay)
        self._requests: SimpleQueue[Request | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work, name="actor", daemon=True)
        self._thread.start()

    async def do(self, verb: str, **args: Any) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._requests.put((verb, args, answer))
        return await answer

    def _work(self) -> None:
        while (request := self._requests.get()) is not None:
            verb, args, answer = request
            try:
                result, error = run(self._actions.do(verb, args)), None
            except Exception as trouble:  # noqa: BLE001 - every error is passed to the test
                result, error = None, trouble
            try:
                self._loop.call_soon_threadsafe(_set_outcome, answer, result, error)
            except RuntimeError:  # the test has ended and its loop is closed
                return

    async def close(self) -> None:
        self._requests.put(None)
        await asyncio.to_thread(self._thread.join, EXIT_SECONDS)


def _set_outcome(answer: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
    else:
        failure = ActorFailure.of(error)
        failure.__cause__ = error
        answer.set_exception(failure)


class InProcessStage(Stage):
    """A stage with two Backstays. Actors are assigned to them in turn, so some actors share a Backstay and some
    do not.
    """

    def __init__(self, url: str | ClientObject, namespace: str, hub: str | ClientObject | None = None) -> None:
        self._url = url
        self._hub = hub
        self._namespace = namespace
        # Each Backstay on memory:// has its own database.
        self._most = 1 if isinstance(url, str) and url.startswith("memory:") else 2
        self._actors: list[Any] = []

    async def actor(self) -> Actor:
        actor = self._create_actor(len(self._actors) % self._most)
        self._actors.append(actor)
        return actor

    @abstractmethod
    def _create_actor(self, turn: int) -> Actor: ...

    async def close(self) -> None:
        actors, self._actors = self._actors, []
        await asyncio.gather(*[actor.close() for actor in actors])
        await self._close_backstays()

    @abstractmethod
    async def _close_backstays(self) -> None: ...


class AsyncStage(InProcessStage):
    """A stage on the async API."""

    def __init__(self, url: str | ClientObject, namespace: str, hub: str | ClientObject | None = None) -> None:
        super().__init__(url, namespace, hub)
        self._backstays: list[Backstay] = []

    def _create_actor(self, turn: int) -> Actor:
        if turn == len(self._backstays):
            self._backstays.append(Backstay(self._url, namespace=self._namespace, hub=self._hub))
        return TaskActor(self._backstays[turn])

    async def _close_backstays(self) -> None:
        for backstay in self._backstays:
            await backstay.close()


class BlockingStage(InProcessStage):
    """A stage on the blocking API."""

    def __init__(self, url: str | ClientObject, namespace: str, hub: str | ClientObject | None = None) -> None:
        super().__init__(url, namespace, hub)
        self._backstays: list[sync.Backstay] = []

    def _create_actor(self, turn: int) -> Actor:
        if turn == len(self._backstays):
            self._backstays.append(sync.Backstay(self._url, namespace=self._namespace, hub=self._hub))
        return ThreadActor(self._backstays[turn])

    async def _close_backstays(self) -> None:
        for backstay in self._backstays:
            await asyncio.to_thread(backstay.close)


STAGES: dict[str, Callable[[str, str, str | None], InProcessStage]] = {"async": AsyncStage, "blocking": BlockingStage}


class AsyncDriver(Driver):
    """Each actor is a task on the async API."""

    def stage(self, namespace: str) -> Stage:
        return AsyncStage(self.url, namespace, self.hub)


class BlockingDriver(Driver):
    """Each actor is a thread on the blocking API."""

    def stage(self, namespace: str) -> Stage:
        return BlockingStage(self.url, namespace, self.hub)
