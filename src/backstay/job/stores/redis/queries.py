"""What a Redis store answers to whoever looks, and what it keeps besides jobs: settings, logs, workers, cron."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct

import msgspec

from backstay.engine.base import Micros, Op
from backstay.engine.redis.encoder import Talk
from backstay.errors import ConfigError
from backstay.job.model import FINAL, Job, JobResult, LogLine, Queue, Rate, State, Tick, Worker
from backstay.job.stores.redis import record
from backstay.job.stores.redis.calls import flat
from backstay.job.stores.redis.cross_shard import Elsewhere, unknown

_TIMES = Struct(">QQ")
#: Records that are read in one step.
MOST_RESULTS = 5000
_encode = msgspec.msgpack.Encoder().encode
_workers = msgspec.msgpack.Decoder(Worker)
_lines = msgspec.msgpack.Decoder(tuple[Micros, str, str])
_parts = msgspec.msgpack.Decoder(list[bytes])


@dataclass
class _Tally:
    """A queue as its shards tell of it."""

    counts: dict[State, int] = field(default_factory=dict[State, int])
    paused: bool = False
    rate: Rate | None = None
    oldest: list[Micros] = field(default_factory=list[Micros])


class Looking(Elsewhere):
    """The verbs that change no job's state, and those of a store's other books."""

    def get(self, job: str) -> Op[Job | None]:
        shard = self._shard_of(job)

        def talk(clock: bytes) -> Talk:
            if shard < 0:
                return None
            raw, doc, until, waits = yield from self._call("get", shard, clock, job.encode())
            return None if raw is None else record.job(job, raw, doc, until, waits)

        return self._within(max(shard, 0), talk, reads=True)

    def watch(self, job: str, *, chain: bool = False) -> Op[Job | None]:
        shard = self._shard_of(job)

        def talk(clock: bytes) -> Talk:
            if shard < 0:
                return None
            what = b"chain" if chain else b"job"
            id_, raw, doc, until, waits = yield from self._call("watch", shard, clock, job.encode(), what)
            return None if raw is None else record.job(id_.decode(), raw, doc, until, waits)

        return self._within(max(shard, 0), talk)

    def list_jobs(
        self,
        *,
        state: State | None = None,
        queue: str = "",
        type: str = "",  # noqa: A002 - what it is called everywhere
        run: str = "",
        before: str = "",
        limit: int = 50,
    ) -> Op[list[Job]]:
        filters = [record.letter(state) if state else b"", queue.encode(), type.encode(), run.encode()]
        newer = before.partition("-")[2]

        def talk(clock: bytes) -> Talk:
            found: list[Job] = []
            place = self._shard_of(run) if run else -1
            for shard in range(self.shards) if place < 0 else (place,):
                cursor, got = f"{shard:x}-{newer}".encode() if before else b"", 0
                while got < limit:
                    words = (*filters, cursor, str(limit - got).encode())
                    cursor, *items = yield from self._call("list_jobs", shard, clock, *words)
                    for i in range(0, len(items), 5):
                        id_, raw, doc, until, waits = items[i : i + 5]
                        found.append(record.job(id_.decode(), raw, doc, until, waits))
                    got += len(items) // 5
                    if not cursor:
                        break
            if place < 0 and self.shards > 1:  # by the moment in the id, whatever the shard before it
                found.sort(key=lambda job: job.id.partition("-")[2], reverse=True)
            return found[:limit]

        return self._within(0, talk, reads=True)

    def results(self, run: str, *, before: str = "", limit: int = 1000) -> Op[list[JobResult]]:
        shard = self._shard_of(run)

        def talk(clock: bytes) -> Talk:
            found: list[JobResult] = []
            cursor, there = before.encode(), shard >= 0
            while there and len(found) < limit:
                asked = min(limit - len(found), MOST_RESULTS)
                ids, raws = yield from self._call("results", shard, clock, run.encode(), cursor, b"%d" % asked)
                found += [record.result(id_, raw) for id_, raw in zip(ids, raws, strict=True) if raw is not None]
                cursor, there = ids[-1] if ids else b"", len(ids) == asked
            return found

        return self._within(max(shard, 0), talk, reads=True)

    def queues(self) -> Op[list[Queue]]:
        def talk(clock: bytes) -> Talk:
            tallies: dict[str, _Tally] = {}
            for shard in range(self.shards):
                numbers, settings, oldest = yield from self._call("queues", shard, clock)
                for name, number in flat(numbers):
                    counts = tallies.setdefault(name[1:].decode(), _Tally()).counts
                    state = record.STATES[name[:1]]
                    counts[state] = counts.get(state, 0) + int(number)
                for name, value in flat(settings):
                    tally = tallies.setdefault(name[1:].decode(), _Tally())
                    if name[:1] == b"p":
                        tally.paused = True
                    else:
                        interval, burst, bucket = value.decode().split(" ", 2)
                        tally.rate = Rate(bucket, int(interval), int(burst))
                for name, since in flat(oldest):
                    if int(since):
                        tallies[name.decode()].oldest.append(int(since))
            return [
                Queue(
                    name=name,
                    paused=tally.paused,
                    rate=tally.rate,
                    oldest_due=min(tally.oldest, default=0),
                    **tally.counts,
                )
                for name, tally in sorted(tallies.items())
            ]

        return self._within(0, talk, reads=True)

    def next_due(self, shard: int) -> Op[Micros | None]:
        def talk(clock: bytes) -> Talk:
            found = yield from self._call("next_due", shard, clock)
            return None if found is None else int(found)

        return self._within(shard, talk, reads=True)

    # ── settings ──

    def pause(self, queue: str, *, paused: bool) -> Op[None]:
        return self._everywhere("pause", queue.encode(), b"1" if paused else b"0")

    def limit_queue(self, queue: str, rate: Rate | None) -> Op[None]:
        value = f"{rate.interval} {rate.burst} {rate.bucket}".encode() if rate else b""
        return self._everywhere("limit_queue", queue.encode(), value)

    def _everywhere(self, verb: str, *parts: bytes) -> Op[None]:
        def talk(clock: bytes) -> Talk:
            for shard in range(self.shards):
                yield from self._call(verb, shard, clock, *parts)

        return self._within(0, talk)

    # ── tidiness ──

    def purge(self, state: State, *, queue: str = "", limit: int = 1000) -> Op[int]:
        def talk(clock: bytes) -> Talk:
            if state not in FINAL:
                raise ConfigError(f"only final jobs can be purged ({', '.join(FINAL)}); got {state!r}")
            total = 0
            for shard in range(self.shards):
                passed, more = 0, 1
                while more and total < limit:
                    words = (record.letter(state), queue.encode(), str(limit - total).encode(), str(passed).encode())
                    removed, skipped, more = yield from self._call("purge", shard, clock, *words)
                    total += removed
                    passed += skipped
            return total

        return self._within(0, talk)

    def prune(self, shard: int, keep: int, limit: int = 1000) -> Op[int]:
        def talk(clock: bytes) -> Talk:
            removed: int = yield from self._call("prune", shard, clock, str(keep).encode(), str(limit).encode())
            return removed

        return self._within(shard, talk)

    # ── what jobs leave behind ──

    def append_log(self, job: str, fence: int, lines: Sequence[tuple[Micros, str, str]], first: int) -> Op[bool]:
        head = [job.encode(), str(fence).encode(), str(first).encode()]
        return self._of_job(job, "append_log", [*head, *map(_encode, lines)])

    def put_outputs(self, job: str, fence: int, outputs: dict[str, str]) -> Op[bool]:
        values = [part.encode() for pair in outputs.items() for part in pair]
        return self._of_job(job, "put_outputs", [job.encode(), str(fence).encode(), *values])

    def _of_job(self, job: str, verb: str, parts: list[bytes]) -> Op[bool]:
        shard = self._shard_of(job)

        def talk(clock: bytes) -> Talk:
            return shard >= 0 and (yield from self._call(verb, shard, clock, *parts)) == 1

        return self._within(max(shard, 0), talk)

    def read_log(self, job: str, after: int = 0, limit: int = 1000) -> Op[list[LogLine]]:
        shard = self._shard_of(job)

        def talk(clock: bytes) -> Talk:
            if shard < 0:
                return []
            words = (job.encode(), str(after).encode(), str(limit).encode())
            found: list[LogLine] = []
            for chunk in (yield from self._call("read_log", shard, clock, *words)):
                seq, _, line = chunk.partition(b" ")
                found.append(LogLine(int(seq), *_lines.decode(line)))
            return found

        return self._within(max(shard, 0), talk, reads=True)

    def get_outputs(self, job: str) -> Op[dict[str, str]]:
        shard = self._shard_of(job)

        def talk(clock: bytes) -> Talk:
            if shard < 0:
                return {}
            found = yield from self._call("get_outputs", shard, clock, job.encode())
            return {name.decode(): value.decode() for name, value in flat(found)}

        return self._within(max(shard, 0), talk, reads=True)

    # ── workers ──

    def beat(self, worker: Worker) -> Op[None]:
        def talk(clock: bytes) -> Talk:
            yield from self._call("beat", 0, clock, worker.id.encode(), _encode(worker))

        return self._within(0, talk)

    def leave(self, worker: str) -> Op[None]:
        def talk(clock: bytes) -> Talk:
            yield from self._call("leave", 0, clock, worker.encode())

        return self._within(0, talk)

    def workers(self) -> Op[list[Worker]]:
        def talk(clock: bytes) -> Talk:
            found: list[Worker] = []
            for raw in (yield from self._call("workers", 0, clock)):
                registered, beat = _TIMES.unpack_from(raw)
                told = _workers.decode(raw[_TIMES.size :])
                found.append(msgspec.structs.replace(told, registered=registered, beat=beat))
            return sorted(found, key=lambda worker: worker.id)

        return self._within(0, talk, reads=True)

    # ── cron: its book is in the first shard ──

    def ticks(self, names: Sequence[str]) -> Op[dict[str, Micros]]:
        def talk(clock: bytes) -> Talk:
            times, ticking = yield from self._call("ticks", 0, clock, *(name.encode() for name in names))
            for job, parts in flat(ticking):
                yield from self._tick_elsewhere(clock, job, parts)
            return {name: int(at) for name, at in zip(names, times, strict=True) if at is not None}

        return self._within(0, talk)

    def tick(self, tick: Tick) -> Op[bool]:
        def talk(clock: bytes) -> Talk:
            job = tick.job
            shard = self._checked(self._shard_of(job.id))
            outcomes = yield from self._outcomes(clock, shard, [job], strict=True)
            parts, _ = self._new(shard, [job], outcomes)
            noted = b"" if shard == 0 else _encode(parts)
            name, at = tick.name.encode(), str(tick.at).encode()
            options = (self._count, self._prefix, name, at, noted)
            made, _ = yield from self._call("tick", 0, clock, *options, *parts)
            if made and noted:
                yield from self._tick_elsewhere(clock, job.id.encode(), noted)
            return bool(made)

        return self._within(0, talk)

    def _tick_elsewhere(self, clock: bytes, job: bytes, noted: bytes) -> Talk:
        """Make a tick's job in its own shard. By its id: twice is once."""
        parts = _parts.decode(noted)
        shard = self._shard_of(parts[0].decode())
        states, *others = yield from self._call("enqueue", shard, clock, self._count, self._prefix, b"0", *parts)
        if not states:
            raise unknown(others[0].decode())
        yield from self._call("ticked", 0, clock, job, noted)
