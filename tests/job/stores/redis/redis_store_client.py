"""A client of a job store on Redis, with runs and handoffs, for tests of that store alone."""

from __future__ import annotations

import time
from typing import Any

from backstay.engine.base import StoreOperation
from backstay.engine.redis.topology.open import open_redis
from backstay.job.exchange import WaitingClaimSpec
from backstay.job.run_model import NewRun
from backstay.job.stores.redis.calls import script
from backstay.job.stores.redis.store import RedisStore
from backstay.testing.servers.redis import say
from support.store_client import SECOND, StoreClient, finish

LEASE = StoreClient.lease
MINUTE = 60 * SECOND
#: The first time of a client whose clock the test sets, in µs.
START = 1_700_000_000_000_000


class RedisStoreClient(StoreClient):
    """A client on the server's clock, or with `now` on a clock that the test sets."""

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
        engine = open_redis(url, namespace, (lambda: self.now) if now else None)
        store = RedisStore(namespace, namespace, shards, announces=announces)
        super().__init__(engine, store, name=name, want=0)

    def close(self) -> None:
        self.engine.close_blocking()

    def not_after(self) -> int:
        return (self.now or time.time_ns() // 1000) + MINUTE

    def add(self, shard: int = 0, **fields: Any) -> str:
        (enqueued,) = self.apply("enqueue", shard, [self.job(shard, **fields)], announce=True)
        return str(enqueued.id)

    def start_run(self, graph: dict[str, Any], shard: int = 0, **fields: Any) -> tuple[str, dict[str, str]]:
        """Start a run. `graph` has for each name of a job the names of its blockers and, if needed, its options.
        Returns the ids of the run and of its jobs by name.
        """
        id_, ids, jobs = self.ids.new(shard), {}, []
        for name, (after, *options) in graph.items():
            blockers = tuple(ids[other] for other in after)
            job = self.job(shard, run=id_, type=name, after=blockers, **(options[0] if options else {}))
            ids[name] = job.id
            jobs.append(job)
        self.apply("start_run", NewRun(id=id_, workflow="flow", jobs=tuple(jobs), **fields))
        return id_, ids

    def start_fan(self, width: int, shard: int = 0) -> tuple[str, dict[str, str]]:
        """Start a run with one job, `width` jobs that wait for it, and one that waits for all of those."""
        middle = {f"m{nth}": (["first"],) for nth in range(width)}
        return self.start_run({"first": ([],), **middle, "last": (list(middle),)}, shard)

    def drain(self, shard: int = 0, at_once: int = 100, result: bytes = b"r") -> list[Any]:
        """Claim and complete jobs until none is left, and return them in the order of the claims."""
        done: list[Any] = []
        finishes: list[Any] = []
        while True:
            reply = self.exchange(finishes, shard=shard, want=at_once)
            finishes = [finish(job, result=result) for job in reply.jobs]
            done += reply.jobs
            if not finishes:
                return done


class Inbox:
    """Subscribes to the channel on which a worker receives handoffs."""

    def __init__(self, client: RedisStoreClient, subscription: Any, channel: str) -> None:
        self._client = client
        self._subscription = subscription
        self.channel = channel

    def receive(self) -> Any:
        """Return the next handoff, or None if there is none."""
        message = self._subscription.get_message(timeout=0.05)
        return None if message is None else self._client.store.read_handoff(message["data"])

    def waiting(
        self, types: str = "\0work\0", queues: tuple[str, ...] = ("default",), life: int = 3_000_000
    ) -> WaitingClaimSpec:
        """Return the option that lets a claim wait in the shard for a handoff to this inbox."""
        return WaitingClaimSpec(self.channel, life, types, queues)


def keys_of(server: Any, namespace: str) -> set[str]:
    """Return all keys of a namespace."""
    return {key.decode() for key in say(server, "KEYS", f"*{namespace}*")}


def dying(op: Any, before: str, nth: int = 1) -> StoreOperation[None]:
    """Return the operation as a process runs it that dies before it sends the script `before` for the `nth` time. An
    operation that does not send it so often ends as usual.
    """

    def work(clock: bytes) -> Any:
        procedure = op.work(clock)
        request = next(procedure)
        left = nth
        while True:
            left -= script(before).sha.encode() in request.request
            if not left:
                return
            try:
                request = procedure.send((yield request))
            except StopIteration:
                return

    return StoreOperation(work, key=op.key)
