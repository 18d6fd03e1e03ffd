"""Queue settings (stored in every shard), the worker registry and cron entries (both stored in the first shard)."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

import msgspec

from backstay.engine.base import Micros, Op
from backstay.engine.redis.encoder import Procedure
from backstay.job.model import StartRate, Tick, WorkerRecord
from backstay.job.stores.redis.calls import group_pairs
from backstay.job.stores.redis.cross_shard import CrossShard, unknown_chain

_TIMES = Struct(">QQ")
_encode = msgspec.msgpack.Encoder().encode
_workers = msgspec.msgpack.Decoder(WorkerRecord)
_parts = msgspec.msgpack.Decoder(list[bytes])


class Fleet(CrossShard):
    """The store operations on queue settings, workers and cron entries."""

    # ── queue settings, in every shard ──

    def pause(self, queue: str, *, paused: bool) -> Op[None]:
        return self._call_all_shards("pause", queue.encode(), b"1" if paused else b"0")

    def limit_queue(self, queue: str, rate: StartRate | None) -> Op[None]:
        value = f"{rate.interval} {rate.burst} {rate.bucket}".encode() if rate else b""
        return self._call_all_shards("limit_queue", queue.encode(), value)

    def _call_all_shards(self, verb: str, *parts: bytes) -> Op[None]:
        def requests(clock: bytes) -> Procedure:
            for shard in range(self.shards):
                yield from self._call(verb, shard, clock, *parts)

        return self._operation(0, requests)

    # ── workers, in the first shard ──

    def heartbeat(self, worker: WorkerRecord) -> Op[None]:
        def requests(clock: bytes) -> Procedure:
            yield from self._call("heartbeat", 0, clock, worker.id.encode(), _encode(worker))

        return self._operation(0, requests)

    def unregister_worker(self, worker: str) -> Op[None]:
        def requests(clock: bytes) -> Procedure:
            yield from self._call("unregister_worker", 0, clock, worker.encode())

        return self._operation(0, requests)

    def workers(self) -> Op[list[WorkerRecord]]:
        def requests(clock: bytes) -> Procedure:
            found: list[WorkerRecord] = []
            for raw in (yield from self._call("workers", 0, clock)):
                registered, beat = _TIMES.unpack_from(raw)
                worker = _workers.decode(raw[_TIMES.size :])
                found.append(msgspec.structs.replace(worker, registered=registered, beat=beat))
            return sorted(found, key=lambda worker: worker.id)

        return self._operation(0, requests, reads=True)

    # ── cron entries, in the first shard ──

    def ticks(self, names: Sequence[str]) -> Op[dict[str, Micros]]:
        def requests(clock: bytes) -> Procedure:
            times, unsent = yield from self._call("ticks", 0, clock, *(name.encode() for name in names))
            for job, parts in group_pairs(unsent):
                yield from self._enqueue_tick(clock, job, parts)
            return {name: int(at) for name, at in zip(names, times, strict=True) if at is not None}

        return self._operation(0, requests)

    def tick(self, tick: Tick) -> Op[bool]:
        def requests(clock: bytes) -> Procedure:
            job = tick.job
            shard = self._check_shard(self._shard_of(job.id))
            outcomes = yield from self._peek_outcomes(clock, shard, [job], strict=True)
            parts, _ = self._encode_jobs(shard, [job], outcomes)
            noted = b"" if shard == 0 else _encode(parts)
            name, at = tick.name.encode(), str(tick.at).encode()
            options = (self._shard_count, self._prefix, name, at, noted)
            made, _ = yield from self._call("tick", 0, clock, *options, *parts)
            if made and noted:
                yield from self._enqueue_tick(clock, job.id.encode(), noted)
            return bool(made)

        return self._operation(0, requests)

    def _enqueue_tick(self, clock: bytes, job: bytes, noted: bytes) -> Procedure:
        """Enqueue the job of a cron tick in the job's own shard, then delete it from `cron-outbox` in the first shard.
        Safe to repeat: enqueuing is idempotent by the job's id.
        """
        parts = _parts.decode(noted)
        shard = self._shard_of(parts[0].decode())
        states, *others = yield from self._call("enqueue", shard, clock, self._shard_count, self._prefix, b"0", *parts)
        if not states:
            raise unknown_chain(others[0].decode())
        yield from self._call("ack_tick", 0, clock, job, noted)
