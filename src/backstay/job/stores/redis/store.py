"""The job store on Redis. Jobs are divided among shards; all keys of a shard share a hash slot of a Cluster.

An operation within one shard is one Lua script, which is atomic. An operation that spans shards (`cross_shard.py`) runs
several scripts, each of which is safe to repeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

import msgspec

from backstay.engine.base import Micros, Op
from backstay.engine.redis.encoder import Procedure
from backstay.errors import ConfigError
from backstay.job.exchange import Delivery, Renewal, RenewalVerdict
from backstay.job.model import FINAL, Failure, State
from backstay.job.stores.redis import record
from backstay.job.stores.redis.artifacts import Artifacts
from backstay.job.stores.redis.calls import parse_ready
from backstay.job.stores.redis.cross_shard import encode_delivery, parse_delivery
from backstay.job.stores.redis.definitions import Definitions
from backstay.job.stores.redis.enqueue import EnqueueOperations
from backstay.job.stores.redis.exchange import ExchangeOperations
from backstay.job.stores.redis.fleet import Fleet
from backstay.job.stores.redis.queries import Queries
from backstay.job.stores.redis.runs import Runs

_RENEWAL = Struct(">Qd")
_RENEWALS: Final[dict[int, RenewalVerdict]] = {ord("o"): "ok", ord("c"): "cancelled", ord("l"): "lost"}

_encode = msgspec.msgpack.Encoder().encode
_pack_renewal = _RENEWAL.pack


class RedisStore(EnqueueOperations, ExchangeOperations, Queries, Artifacts, Definitions, Fleet, Runs):
    """`backstay.job.store.Store` on Redis. The object holds settings only; all state is in Redis."""

    channels_per_shard = 2
    splits_claim_and_ack = False

    # ── work ──

    def renew(self, shard: int, worker: str, lease: Micros, leases: Sequence[Renewal]) -> Op[list[RenewalVerdict]]:
        def requests(clock: bytes) -> Procedure:
            if not leases:
                return []
            parts: list[bytes] = []
            for each in leases:
                parts += (each.job.encode(), _pack_renewal(each.fence, each.progress))
            verdicts = yield from self._call(
                "renew", shard, clock, record.truncate_worker(worker).encode(), b"%d" % lease, *parts
            )
            return [_RENEWALS[verdict] for verdict in verdicts]

        return self._operation(shard, requests)

    def reap(self, shard: int, limit: int = 1000) -> Op[dict[str, int]]:
        def requests(clock: bytes) -> Procedure:
            made, unregistered, outbox = yield from self._call("reap", shard, clock, self._prefix, str(limit).encode())
            yield from self._deliver_outbox(clock, shard, outbox)
            yield from self._register_waits(clock, shard, unregistered)
            return parse_ready(made)

        return self._operation(shard, requests)

    def read_outbox(self, shard: int, limit: int = 1000) -> Op[list[Delivery]]:
        def requests(clock: bytes) -> Procedure:
            found = yield from self._call("read_outbox", shard, clock, str(limit).encode())
            return [parse_delivery(found[i], found[i + 1]) for i in range(0, len(found), 2)]

        return self._operation(shard, requests, reads=True)

    def deliver(self, shard: int, deliveries: Sequence[Delivery]) -> Op[dict[str, int]]:
        def requests(clock: bytes) -> Procedure:
            if not deliveries:
                return {}
            arguments = [part for each in deliveries for part in encode_delivery(each)]
            made, outbox = yield from self._call("deliver", shard, clock, self._prefix, *arguments)
            yield from self._deliver_outbox(clock, shard, outbox)
            return parse_ready(made)

        return self._operation(shard, requests)

    def ack_deliveries(self, shard: int, deliveries: Sequence[Delivery]) -> Op[None]:
        def requests(clock: bytes) -> Procedure:
            if deliveries:
                entries = [f"{each.job} {each.chain}".encode() for each in deliveries]
                yield from self._call("ack_deliveries", shard, clock, *entries)

        return self._operation(shard, requests)

    # ── administration ──

    def cancel(self, job: str, reason: str) -> Op[State | None]:
        shard = self._shard_of(job)

        def requests(clock: bytes) -> Procedure:
            if shard < 0:
                return None
            failure = _encode(Failure("Cancelled", reason))
            state, _, outbox = yield from self._call("cancel", shard, clock, self._prefix, job.encode(), failure)
            yield from self._deliver_outbox(clock, shard, outbox)
            return record.STATES.get(state)

        return self._operation(max(shard, 0), requests)

    def trigger(self, job: str) -> Op[State | None]:
        shard = self._shard_of(job)

        def requests(clock: bytes) -> Procedure:
            if shard < 0:
                return None
            state, _, remote = yield from self._call("trigger", shard, clock, self._prefix, job.encode())
            yield from self._reopen_waits(clock, remote)
            return record.STATES.get(state)

        return self._operation(max(shard, 0), requests)

    def purge(self, state: State, *, queue: str = "", limit: int = 1000) -> Op[int]:
        def requests(clock: bytes) -> Procedure:
            if state not in FINAL:
                raise ConfigError(f"cannot purge {state} jobs: only final states can be purged ({', '.join(FINAL)})")
            total = 0
            for shard in range(self.shards):
                skipped, more = 0, 1
                while more and total < limit:
                    arguments = (
                        record.state_letter(state),
                        queue.encode(),
                        str(limit - total).encode(),
                        str(skipped).encode(),
                    )
                    removed, others, more = yield from self._call("purge", shard, clock, *arguments)
                    total += removed
                    skipped += others
            return total

        return self._operation(0, requests)

    def prune(self, shard: int, keep: int, limit: int = 1000) -> Op[int]:
        def requests(clock: bytes) -> Procedure:
            removed: int = yield from self._call("prune", shard, clock, str(keep).encode(), str(limit).encode())
            return removed

        return self._operation(shard, requests)
