"""Actors in three processes on one URL: two on the async API, one on the blocking API."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any

import msgspec

from backstay.gate.view import Cleanup, ForceReleased, Inspection, Released
from backstay.idempotency.view import KeyInspection
from backstay.testing.conformance.actor import Actor, ActorFailure, Grant
from backstay.testing.conformance.driver import Driver, Stage
from backstay.testing.conformance.idempotency.actors import CallResult

#: One process for each entry; its actors use this API.
APIS = ("async", "blocking", "async")
#: Seconds that a process has to exit before it is killed.
EXIT_SECONDS = 5.0

RESULTS: dict[str, Any] = {
    "acquire": Grant,
    "try_acquire": Grant | None,
    "release": Released,
    "renew": Grant,
    "inspect": Inspection,
    "list": list[Inspection],
    "release_by_id": Released,
    "force_release": ForceReleased,
    "cleanup": Cleanup,
    "run_once": CallResult,
    "inspect_key": KeyInspection,
}


class Process:
    """A process that runs actors, with the requests that it has not answered yet."""

    def __init__(
        self, url: str, api: str, hub: str | None = None, program: str = "backstay.testing.conformance.worker"
    ) -> None:
        self.api = api
        command = [sys.executable, "-m", program]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._lock = threading.Lock()
        self._write({"url": url, "hub": hub})  # not on the command line: the URL may contain a password
        self._reader = threading.Thread(target=self._read, name="worker", daemon=True)
        self._reader.start()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    async def call(self, stage: str, actor: str, verb: str, args: dict[str, Any]) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        with self._lock:
            number = next(self._ids)
            self._pending[number] = future
        request = {"id": number, "stage": stage, "api": self.api, "actor": actor, "verb": verb, "args": args}
        try:
            self._write(request)
        except OSError:
            raise _process_gone() from None
        return await future

    def _write(self, message: dict[str, Any]) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        pipe.write(json.dumps(message).encode() + b"\n")
        pipe.flush()

    def _read(self) -> None:
        pipe = self._process.stdout
        assert pipe is not None
        for line in pipe:
            answer = json.loads(line)
            with self._lock:
                future = self._pending.pop(answer["id"])
            if "failure" in answer:
                _resolve(future, None, ActorFailure(**answer["failure"]))
            else:
                _resolve(future, answer["result"], None)
        with self._lock:
            pending, self._pending = self._pending, {}
        for future in pending.values():
            _resolve(future, None, _process_gone())

    def signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self.close()

    def close(self) -> None:
        """Close the process's standard input, so that it exits, and wait for that. Safe to call twice."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._reader.join()
        process.stdout.close()


def _process_gone() -> ActorFailure:
    return ActorFailure(["ProcessGone"], "the actor's process has ended", {})


def _resolve(future: asyncio.Future[Any], result: Any, failure: ActorFailure | None) -> None:
    def settle() -> None:
        if not future.done():
            if failure is None:
                future.set_result(result)
            else:
                future.set_exception(failure)

    with contextlib.suppress(RuntimeError):  # the test has ended and its loop is closed
        future.get_loop().call_soon_threadsafe(settle)


class RemoteActor(Actor):
    """An actor in another process: each call is sent to that process."""

    def __init__(self, process: Process, stage: str, name: str) -> None:
        self._process = process
        self._stage = stage
        self._name = name

    async def do(self, verb: str, **args: Any) -> Any:
        result = await self._process.call(self._stage, self._name, verb, args)
        return msgspec.convert(result, RESULTS[verb]) if verb in RESULTS else result

    def kill(self) -> None:
        self._process.kill()

    def pause(self) -> None:
        self._process.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.signal(signal.SIGCONT)


class ProcessStage(Stage):
    """A stage that assigns actors to the processes in turn, so that consecutive actors are in different processes."""

    def __init__(self, processes: list[Process], namespace: str) -> None:
        self._processes = processes
        self._namespace = namespace
        self._count = 0

    async def actor(self) -> Actor:
        process = self._processes[self._count % len(self._processes)]
        self._count += 1
        return RemoteActor(process, self._namespace, f"actor-{self._count}")

    async def close(self) -> None:
        for process in self._processes:
            with contextlib.suppress(ActorFailure, ProcessLookupError):
                if process.alive:
                    process.signal(signal.SIGCONT)
                    await process.call(self._namespace, "", "close", {})


class ProcessDriver(Driver):
    """Runs actors in three processes. It cannot use `memory://`, which other processes cannot see."""

    def __init__(self, url: str, *, namespace: str = "conformance", hub: str | None = None) -> None:
        super().__init__(url, namespace=namespace, hub=hub)
        self._where = (url, hub)
        self._processes: list[Process] = []

    def stage(self, namespace: str) -> Stage:
        url, hub = self._where
        if not self._processes:
            self._processes = [Process(url, api, hub) for api in APIS]
        self._processes = [p if p.alive else Process(url, p.api, hub) for p in self._processes]
        return ProcessStage(self._processes, namespace)

    def close(self) -> None:
        processes, self._processes = self._processes, []
        for process in processes:
            process.close()
