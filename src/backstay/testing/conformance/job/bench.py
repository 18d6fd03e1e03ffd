"""Where a claim about jobs plays: a store of its own, a clock that the claim sets, and desks to ask it from."""

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
from backstay.job.ids import Ids, home
from backstay.job.model import (
    Claim,
    Claimed,
    Enqueued,
    Finish,
    FinishKind,
    Job,
    NewJob,
    Renewal,
    RenewalVerdict,
    State,
    StepCommand,
    StepReply,
    Verdict,
)
from backstay.testing.waiting import soon

SECOND: Micros = 1_000_000
MINUTE, HOUR, DAY = 60 * SECOND, 3600 * SECOND, 86_400 * SECOND
LEASE = 30 * SECOND
#: No claim takes longer on a working engine; and no claim about thousands.
PATIENCE = 180.0
LONG_PATIENCE = 300.0


Scenario = Callable[[Any, "Bench"], Awaitable[None]]


class Desk:
    """One caller of the store: any verb by its name, and the usual ones in a few words. Raises `actor.Failure`."""

    def __init__(self, bench: Bench, name: str) -> None:
        self.bench = bench
        self.name = name
        self._seqs = itertools.count(1)

    async def ask(self, verb: str, *args: Any, **named: Any) -> Any:
        """Carry out one verb."""
        return await self.bench.carry_out(self, verb, args, named)

    async def enqueue(self, *jobs: NewJob, tell: bool = False) -> list[Enqueued]:
        answer: list[Enqueued] = await self.ask("enqueue", self.bench.shard, jobs, tell=tell)
        return answer

    async def add(self, type_: str = "work", **fields: Any) -> str:
        """Enqueue one new job; its id."""
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
        lane: int = 0,
        seq: int | None = None,
        incarnation: str = "one",
        not_after: Micros | None = None,
    ) -> StepCommand:
        """A step as a worker of this desk's name would send it now."""
        return StepCommand(
            shard=self.bench.shard,
            worker=self.name,
            incarnation=incarnation,
            lane=lane,
            seq=next(self._seqs) if seq is None else seq,
            finishes=tuple(finishes),
            claim=Claim(
                want=want, queues=tuple(tuple(group) for group in queues), labels=tuple(sorted(labels)), lease=lease
            ),
            not_after=self.bench.now + MINUTE if not_after is None else not_after,
        )

    async def send(self, command: StepCommand) -> StepReply:
        reply: StepReply = await self.ask("step", command)
        return reply

    async def step(self, finishes: Sequence[Finish] = (), **options: Any) -> StepReply:
        return await self.send(self.command(finishes, **options))

    async def claim(self, want: int = 1, **options: Any) -> list[Claimed]:
        return list((await self.step(want=want, **options)).jobs)

    async def take(self, **options: Any) -> Claimed:
        """The one job there is to be had."""
        (job,) = await self.claim(1, **options)
        return job

    async def finish(self, job: Claimed, kind: str = "complete", **fields: Any) -> Verdict:
        (verdict,) = (await self.step([end(job, kind, **fields)])).verdicts
        return verdict

    async def renew(self, *jobs: Claimed, lease: Micros = LEASE, progress: float = -1.0) -> list[RenewalVerdict]:
        leases = [Renewal(job.id, job.fence, progress) for job in jobs]
        answer: list[RenewalVerdict] = await self.ask("renew", self.bench.shard, self.name, lease, leases)
        return answer

    async def reap(self, limit: int = 1000) -> dict[str, int]:
        ready: dict[str, int] = await self.ask("reap", self.bench.shard, limit)
        return ready

    async def get(self, job: str) -> Job:
        seen: Job | None = await self.ask("get", job)
        assert seen is not None, f"{job} is gone"
        return seen

    async def state(self, job: str) -> State:
        return (await self.get(job)).state


def end(job: Claimed, kind: str = "complete", **fields: Any) -> Finish:
    """The end of an attempt."""
    return Finish(job=job.id, fence=job.fence, kind=cast("FinishKind", kind), **fields)


class Heard:
    """What was said on a channel since somebody began to listen."""

    def __init__(self) -> None:
        self.payloads: list[str] = []

    def hear(self, payload: str | None) -> None:
        if payload is not None:
            self.payloads.append(payload)

    async def soon(self, payload: str) -> bool:
        async def heard() -> bool:
            return payload in self.payloads

        return await soon(heard)


class Bench(ABC):
    """The engine's time is `now`, for every desk; it passes when the claim says so."""

    def __init__(self, namespace: str, now: Micros, shards: int = 1) -> None:
        self.namespace = namespace
        self.now = now
        self.shards = shards
        #: Another one in each claim, so that all of them are used.
        self.shard = home(namespace, shards)
        self._ids = Ids()
        self._desks = 0

    def wait(self, micros: Micros) -> None:
        """Let time pass."""
        self.now += micros

    def job(self, type_: str = "work", **fields: Any) -> NewJob:
        """A job to be, with an id of its own in this claim's shard."""
        whole: dict[str, Any] = {"id": self.new_id(), "type": type_, **fields}
        return NewJob(**whole)

    def new_id(self) -> str:
        """An id in this claim's shard."""
        return self._ids.new(self.shard)

    def key(self, word: str = "key") -> str:
        """A unique or concurrency key that belongs into this claim's shard."""
        return next(key for nth in itertools.count() if home(key := f"{word}-{nth}", self.shards) == self.shard)

    async def desk(self) -> Desk:
        """One more caller."""
        self._desks += 1
        return Desk(self, f"worker-{self._desks}")

    async def desks(self, count: int) -> list[Desk]:
        return [await self.desk() for _ in range(count)]

    @abstractmethod
    async def carry_out(self, desk: Desk, verb: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """One verb of the store. Raises Failure."""

    @property
    @abstractmethod
    def announces(self) -> bool:
        """Whether `enqueue` with `tell` can be heard with `hear`."""

    @abstractmethod
    async def hear(self, name: str) -> Heard:
        """Listen to `<prefix>:<name>` from now on."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of everything. Safe after a failed claim."""


class StoreDriver(ABC):
    """Which store, and where its callers live. A context manager; made once, it plays any number of claims."""

    def __init__(self) -> None:
        # A file remembers the latest time it has seen: the next claim begins after it.
        self._latest = time.time_ns() // 1000

    @abstractmethod
    def bench(self, namespace: str, now: Micros) -> Bench:
        """An empty store."""

    def play(self, scenario: Callable[[Bench], Awaitable[None]], patience: float = PATIENCE) -> None:
        """Run a scenario to its end on a bench of its own."""
        asyncio.run(self._play(scenario, patience))

    async def _play(self, scenario: Callable[[Bench], Awaitable[None]], patience: float) -> None:
        bench = self.bench(f"jobs-{secrets.token_hex(6)}", self._latest)
        try:
            async with asyncio.timeout(patience):
                await scenario(bench)
        finally:
            self._latest = bench.now + SECOND
            await bench.close()

    def close(self) -> None:  # noqa: B027 - most drivers keep nothing between claims
        """Let go of what outlives a claim. Safe twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def claim(scenario: Scenario, *, patience: float = PATIENCE) -> Callable[[Any, StoreDriver], None]:
    """Make a test of a scenario: pytest sees a plain method that takes the `store` fixture, a `StoreDriver`."""

    def test(self: Any, store: StoreDriver) -> None:
        store.play(functools.partial(scenario, self), patience)

    test.__name__ = scenario.__name__
    test.__qualname__ = scenario.__qualname__
    test.__doc__ = scenario.__doc__
    test.__module__ = scenario.__module__
    return test


#: The same for a claim about thousands of jobs.
long_claim = functools.partial(claim, patience=LONG_PATIENCE)
