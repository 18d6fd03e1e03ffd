"""Read jobs and queues, and the time until the next job is due or the next lease expires."""

from __future__ import annotations

from dataclasses import dataclass, field

from backstay.engine.base import Micros, Op
from backstay.engine.redis.encoder import Procedure
from backstay.job.model import Job, JobResult, Queue, StartRate, State
from backstay.job.stores.redis import record
from backstay.job.stores.redis.calls import group_pairs
from backstay.job.stores.redis.cross_shard import CrossShard

#: The largest number of records that one script call reads. It is limited because Redis serves no other client while a
#: script runs.
MAX_RESULTS_PER_CALL = 5000


@dataclass
class _QueueTotals:
    """The settings of a queue, and how many jobs it has in each state, summed over all shards."""

    counts: dict[State, int] = field(default_factory=dict[State, int])
    paused: bool = False
    rate: StartRate | None = None
    oldest: list[Micros] = field(default_factory=list[Micros])


class Queries(CrossShard):
    """The store operations that read jobs and queues: get, watch, list_jobs, results, queues, next_due."""

    def get(self, job: str) -> Op[Job | None]:
        shard = self._shard_of(job)

        def requests(clock: bytes) -> Procedure:
            if shard < 0:
                return None
            raw, doc, until, waits = yield from self._call("get", shard, clock, job.encode())
            return None if raw is None else record.decode_job(job, raw, doc, until, waits)

        return self._operation(max(shard, 0), requests, reads=True)

    def watch(self, job: str, *, chain: bool = False) -> Op[Job | None]:
        shard = self._shard_of(job)

        def requests(clock: bytes) -> Procedure:
            if shard < 0:
                return None
            what = b"chain" if chain else b"job"
            id_, raw, doc, until, waits = yield from self._call("watch", shard, clock, job.encode(), what)
            return None if raw is None else record.decode_job(id_.decode(), raw, doc, until, waits)

        return self._operation(max(shard, 0), requests)

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
        filters = [record.state_letter(state) if state else b"", queue.encode(), type.encode(), run.encode()]
        newer = before.partition("-")[2]

        def requests(clock: bytes) -> Procedure:
            found: list[Job] = []
            run_shard = self._shard_of(run) if run else -1
            for shard in range(self.shards) if run_shard < 0 else (run_shard,):
                cursor, got = f"{shard:x}-{newer}".encode() if before else b"", 0
                while got < limit:
                    arguments = (*filters, cursor, str(limit - got).encode())
                    cursor, *items = yield from self._call("list_jobs", shard, clock, *arguments)
                    for i in range(0, len(items), 5):
                        id_, raw, doc, until, waits = items[i : i + 5]
                        found.append(record.decode_job(id_.decode(), raw, doc, until, waits))
                    got += len(items) // 5
                    if not cursor:
                        break
            if run_shard < 0 and self.shards > 1:  # merge the shards newest first; an id is shard-time
                found.sort(key=lambda job: job.id.partition("-")[2], reverse=True)
            return found[:limit]

        return self._operation(0, requests, reads=True)

    def results(self, run: str, *, before: str = "", limit: int = 1000) -> Op[list[JobResult]]:
        shard = self._shard_of(run)

        def requests(clock: bytes) -> Procedure:
            found: list[JobResult] = []
            cursor, has_more = before.encode(), shard >= 0
            while has_more and len(found) < limit:
                page = min(limit - len(found), MAX_RESULTS_PER_CALL)
                ids, raws = yield from self._call("results", shard, clock, run.encode(), cursor, b"%d" % page)
                found += [record.decode_result(id_, raw) for id_, raw in zip(ids, raws, strict=True) if raw is not None]
                cursor, has_more = ids[-1] if ids else b"", len(ids) == page
            return found

        return self._operation(max(shard, 0), requests, reads=True)

    def queues(self) -> Op[list[Queue]]:
        def requests(clock: bytes) -> Procedure:
            tallies: dict[str, _QueueTotals] = {}
            for shard in range(self.shards):
                numbers, settings, oldest = yield from self._call("queues", shard, clock)
                for name, number in group_pairs(numbers):
                    counts = tallies.setdefault(name[1:].decode(), _QueueTotals()).counts
                    state = record.STATES[name[:1]]
                    counts[state] = counts.get(state, 0) + int(number)
                for name, value in group_pairs(settings):
                    tally = tallies.setdefault(name[1:].decode(), _QueueTotals())
                    if name[:1] == b"p":
                        tally.paused = True
                    else:
                        interval, burst, bucket = value.decode().split(" ", 2)
                        tally.rate = StartRate(bucket, int(interval), int(burst))
                for name, since in group_pairs(oldest):
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

        return self._operation(0, requests, reads=True)

    def next_due(self, shard: int) -> Op[Micros | None]:
        def requests(clock: bytes) -> Procedure:
            found = yield from self._call("next_due", shard, clock)
            return None if found is None else int(found)

        return self._operation(shard, requests, reads=True)
