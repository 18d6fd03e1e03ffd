"""A store on a Redis of the test's own, and the usual verbs in a few words."""

from __future__ import annotations

import itertools
import time
from typing import Any

from backstay.engine.base import StoreOperation
from backstay.engine.redis.topology.open import open_redis
from backstay.job.ids import Ids
from backstay.job.model import Claim, ExchangeCommand, Finish, NewJob
from backstay.job.stores.redis.calls import script
from backstay.job.stores.redis.store import RedisStore

MINUTE = 60_000_000
LEASE = 30_000_000


class RedisStoreClient:
    """A blocking caller. `now` set: a clock of the test's; else the server's."""

    def __init__(
        self,
        url: str,
        namespace: str,
        *,
        shards: int = 1,
        name: str = "worker",
        now: int = 0,
        announces: bool = False,
    ) -> None:
        self.now = now
        self.engine = open_redis(url, namespace, (lambda: self.now) if now else None)
        self.store = RedisStore(namespace, namespace, shards, announces=announces)
        self.shards = shards
        self.name = name
        self.ids = Ids()
        self.seqs = itertools.count(1)

    def close(self) -> None:
        self.engine.close_blocking()

    def ask(self, verb: str, *args: Any, **named: Any) -> Any:
        return self.engine.apply(getattr(self.store, verb)(*args, **named))

    def job(self, shard: int = 0, **fields: Any) -> NewJob:
        return NewJob(**{"id": self.ids.new(shard), "type": "work", **fields})

    def add(self, shard: int = 0, **fields: Any) -> str:
        (made,) = self.ask("enqueue", shard, [self.job(shard, **fields)], announce=True)
        return str(made.id)

    def command(
        self, finishes: Any = (), *, shard: int = 0, seq: int = 0, want: int = 0, waiting_seq: int = 0, **claim: Any
    ) -> ExchangeCommand:
        return ExchangeCommand(
            shard=shard,
            worker=self.name,
            incarnation="one",
            channel=0,
            seq=seq or next(self.seqs),
            finishes=tuple(finishes),
            claim=Claim(want=want, **claim),
            not_after=(self.now or time.time_ns() // 1000) + MINUTE,
            waiting_seq=waiting_seq,
        )

    def exchange(self, finishes: Any = (), **options: Any) -> Any:
        return self.ask("exchange", self.command(finishes, **options))

    def take(self, want: int = 1, **options: Any) -> Any:
        return self.exchange(want=want, **options).jobs

    def end(self, job: Any, kind: Any = "complete", **fields: Any) -> Any:
        finish = Finish(job=job.id, fence=job.fence, kind=kind, **fields)
        return self.exchange([finish], shard=int(job.id.partition("-")[0], 16))


def dying(op: Any, before: str, nth: int = 1) -> StoreOperation[None]:
    """The same operation by a process that dies before it sends this verb's script (for the `nth` time)."""

    def work(clock: bytes) -> Any:
        talk = op.work(clock)
        request = next(talk)
        left = nth
        while True:
            left -= script(before).sha.encode() in request.request
            if not left:
                return
            request = talk.send((yield request))

    return StoreOperation(work, key=op.key)
