"""Workers register with heartbeats, and are removed a day after their last heartbeat."""

from __future__ import annotations

import msgspec

from backstay.job.model import WorkerRecord
from backstay.testing.conformance.job.bench import DAY, MINUTE, SECOND, Bench, store_test


class JobRegistryTests:
    """Tests of `heartbeat`, `unregister_worker` and `workers`."""

    @store_test
    async def test_a_worker_is_listed_with_its_heartbeat_data(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        worker = WorkerRecord(
            id="w1",
            queues=("a", "b"),
            labels=("gpu",),
            concurrency=8,
            host="box",
            pid=7,
            running=2,
            current="0-1",
            draining=True,
        )
        await one.call("heartbeat", worker)
        (seen,) = await other.call("workers")
        assert seen == msgspec.structs.replace(worker, registered=bench.now, beat=bench.now)

    @store_test
    async def test_a_heartbeat_keeps_the_registration_time(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        start = bench.now
        await one.call("heartbeat", WorkerRecord(id="w1"))
        bench.advance(MINUTE)
        await one.call("heartbeat", WorkerRecord(id="w1", running=3, registered=5, beat=5))
        (seen,) = await other.call("workers")
        assert (seen.registered, seen.beat, seen.running) == (start, bench.now, 3)

    @store_test
    async def test_an_unregistered_worker_is_not_listed(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        for name in ("w1", "w2", "w3"):
            await one.call("heartbeat", WorkerRecord(id=name))
        await other.call("unregister_worker", "w2")
        await other.call("unregister_worker", "w2")
        await other.call("unregister_worker", "nobody")
        assert sorted(worker.id for worker in await one.call("workers")) == ["w1", "w3"]

    @store_test
    async def test_after_a_day_of_silence_a_worker_is_forgotten(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        await one.call("heartbeat", WorkerRecord(id="silent"))
        bench.advance(DAY - SECOND)
        await one.call("heartbeat", WorkerRecord(id="alive"))
        assert sorted(worker.id for worker in await one.call("workers")) == ["alive", "silent"]
        bench.advance(2 * SECOND)
        assert [worker.id for worker in await one.call("workers")] == ["alive"]
