"""The environment of a job store's tests: an empty store, a clock that the test sets, and clients of the store."""

from __future__ import annotations

import asyncio
import functools
import itertools
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Self, cast

from backstay.engine.base import Micros
from backstay.job.exchange import Claim, Claimed, ExchangeCommand, ExchangeReply, Renewal, RenewalVerdict, Verdict
from backstay.job.ids import Ids, hash_shard
from backstay.job.model import Enqueued, Finish, FinishKind, Job, NewJob, State
from backstay.testing.waiting import soon

SECOND: Micros = 1_000_000
MINUTE, HOUR, DAY = 60 * SECOND, 3600 * SECOND, 86_400 * SECOND
LEASE = 30 * SECOND
#: Seconds after which a test fails.
TEST_TIMEOUT = 180.0
#: The same, for tests with thousands of jobs.
LONG_TEST_TIMEOUT = 300.0


Scenario = Callable[[Any, "Bench"], Awaitable[None]]


class StoreClient:
    """A client of the store, which acts as one worker. `call` calls any store method by its name; the other methods are
    shorthands for it. They raise `ActorFailure`.
    """

    def __init__(self, bench: Bench, name: str) -> None:
        self.bench = bench
        self.name = name
        self._seqs = itertools.count(1)

    async def call(self, verb: str, *args: Any, **named: Any) -> Any:
        """Call the store method with this name."""
        return await self.bench.execute(self, verb, args, named)

    async def enqueue(self, *jobs: NewJob, announce: bool = False) -> list[Enqueued]:
        answer: list[Enqueued] = await self.call("enqueue", self.bench.shard, jobs, announce=announce)
        return answer

    async def add(self, type_: str = "work", **fields: Any) -> str:
        """Enqueue one new job and return its id."""
        ((id_, _, _),) = [(e.id, e.state, e.deduplicated) for e in await self.enqueue(self.bench.job(type_, **fields))]
        return id_

    async def add_many(self, count: int, type_: str = "work", **fields: Any) -> list[str]:
        return [e.id for e in await self.enqueue(*[self.bench.job(type_, **fields) for _ in range(count)])]

    def command(
        self,
        finishes: Sequence[Finish] = (),
        *,
        want: int = 0,
        queues: Sequence[Sequence[str]] = (("default",),),
        labels: Sequence[str] = (),
        lease: Micros = LEASE,
        channel: int = 0,
        seq: int | None = None,
        incarnation: str = "one",
        not_after: Micros | None = None,
    ) -> ExchangeCommand:
        """Build the next exchange of this client, whose name is its worker id: the finishes, and a claim of `want`
        jobs.
        """
        return ExchangeCommand(
            shard=self.bench.shard,
            worker=self.name,
            incarnation=incarnation,
            channel=channel,
            seq=next(self._seqs) if seq is None else seq,
            finishes=tuple(finishes),
            claim=Claim(
                want=want, queues=tuple(tuple(group) for group in queues), labels=tuple(sorted(labels)), lease=lease
            ),
            not_after=self.bench.now + MINUTE if not_after is None else not_after,
        )

    async def send(self, command: ExchangeCommand) -> ExchangeReply:
        reply: ExchangeReply = await self.call("exchange", command)
        return reply

    async def exchange(self, finishes: Sequence[Finish] = (), **options: Any) -> ExchangeReply:
        return await self.send(self.command(finishes, **options))

    async def claim(self, want: int = 1, **options: Any) -> list[Claimed]:
        return list((await self.exchange(want=want, **options)).jobs)

    async def take(self, **options: Any) -> Claimed:
        """Claim one job. Fail if no job can be claimed."""
        (job,) = await self.claim(1, **options)
        return job

    async def finish(self, job: Claimed, kind: str = "complete", **fields: Any) -> Verdict:
        (verdict,) = (await self.exchange([build_finish(job, kind, **fields)])).verdicts
        return verdict

    async def renew(self, *jobs: Claimed, lease: Micros = LEASE, progress: float = -1.0) -> list[RenewalVerdict]:
        leases = [Renewal(job.id, job.fence, progress) for job in jobs]
        answer: list[RenewalVerdict] = await self.call("renew", self.bench.shard, self.name, lease, leases)
        return answer

    async def reap(self, limit: int = 1000) -> dict[str, int]:
        ready: dict[str, int] = await self.call("reap", self.bench.shard, limit)
        return ready

    async def get(self, job: str) -> Job:
        seen: Job | None = await self.call("get", job)
        assert seen is not None, f"{job} is gone"
        return seen

    async def state(self, job: str) -> State:
        return (await self.get(job)).state


def build_finish(job: Claimed, kind: str = "complete", **fields: Any) -> Finish:
    """Build the `Finish` of a claimed job's current attempt."""
    return Finish(job=job.id, fence=job.fence, kind=cast("FinishKind", kind), **fields)


class Received:
    """Collects the messages that arrive on a channel after the subscription."""

    def __init__(self) -> None:
        self.payloads: list[str] = []

    def receive(self, payload: str | None) -> None:
        if payload is not None:
            self.payloads.append(payload)

    async def soon(self, payload: str) -> bool:
        async def heard() -> bool:
            return payload in self.payloads

        return await soon(heard)


class Bench(ABC):
    """The environment of one test: an empty store and its clients. `now` is the engine's time for all clients; only
    the test changes it.
    """

    def __init__(self, namespace: str, now: Micros, shards: int = 1) -> None:
        self.namespace = namespace
        self.now = now
        self.shards = shards
        #: The shard that this test uses. It depends on the namespace, so the tests spread over all shards.
        self.shard = hash_shard(namespace, shards)
        self._ids = Ids()
        self._clients = 0

    def advance(self, micros: Micros) -> None:
        """Advance the clock."""
        self.now += micros

    def job(self, type_: str = "work", **fields: Any) -> NewJob:
        """Build a job to enqueue, with a new id in this test's shard."""
        whole: dict[str, Any] = {"id": self.new_id(), "type": type_, **fields}
        return NewJob(**whole)

    def new_id(self) -> str:
        """Return a new job id in this test's shard."""
        return self._ids.new(self.shard)

    def key(self, word: str = "key") -> str:
        """Return a unique or concurrency key that hashes to this test's shard."""
        return next(key for nth in itertools.count() if hash_shard(key := f"{word}-{nth}", self.shards) == self.shard)

    async def client(self) -> StoreClient:
        """Create a client."""
        self._clients += 1
        return StoreClient(self, f"worker-{self._clients}")

    async def clients(self, count: int) -> list[StoreClient]:
        return [await self.client() for _ in range(count)]

    @abstractmethod
    async def execute(self, client: StoreClient, verb: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Call the store method `verb` for a client. Raises ActorFailure."""

    @property
    @abstractmethod
    def announces(self) -> bool:
        """Whether the store itself announces jobs on the hub (`enqueue(announce=True)`), so that `listen` works."""

    @abstractmethod
    async def listen(self, name: str) -> Received:
        """Subscribe to the hub's channel `<prefix>:<name>`. All later messages are received."""

    @abstractmethod
    async def close(self) -> None:
        """Close all connections. Safe after a failed test."""


class StoreDriver(ABC):
    """Runs tests on one kind of store, with clients in this process or in others. One driver can run any number of
    tests. Use it as a context manager.
    """

    def __init__(self) -> None:
        # The time (µs) at which the next test's clock starts. Tests may share a SQLite file. The file remembers the
        # latest time that it has seen, and its clock never runs back. So each test starts after the previous one's end.
        self._latest = time.time_ns() // 1000

    @abstractmethod
    def bench(self, namespace: str, now: Micros) -> Bench:
        """Create a bench with an empty store."""

    def play(self, scenario: Callable[[Bench], Awaitable[None]], timeout: float = TEST_TIMEOUT) -> None:
        """Run a test function on a new bench, and close the bench."""
        asyncio.run(self._play(scenario, timeout))

    async def _play(self, scenario: Callable[[Bench], Awaitable[None]], timeout: float) -> None:
        bench = self.bench(f"jobs-{secrets.token_hex(6)}", self._latest)
        try:
            async with asyncio.timeout(timeout):
                await scenario(bench)
        finally:
            self._latest = bench.now + SECOND
            await bench.close()

    def close(self) -> None:  # noqa: B027 - most drivers keep nothing between tests
        """Release what the driver keeps between tests, such as processes. Safe to call twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def store_test(scenario: Scenario, *, timeout: float = TEST_TIMEOUT) -> Callable[[Any, StoreDriver], None]:
    """Decorate an async test method that takes a `Bench`. The result is a plain method for pytest, which takes the
    fixture `store` (a `StoreDriver`) and runs the test on a new bench.
    """

    def test(self: Any, store: StoreDriver) -> None:
        store.play(functools.partial(scenario, self), timeout)

    test.__name__ = scenario.__name__
    test.__qualname__ = scenario.__qualname__
    test.__doc__ = scenario.__doc__
    test.__module__ = scenario.__module__
    return test


#: `store_test` for tests with thousands of jobs.
long_store_test = functools.partial(store_test, timeout=LONG_TEST_TIMEOUT)
