"""Workers register with heartbeats, and are removed a day after their last one."""

from __future__ import annotations

import msgspec

from backstay.job.model import Worker
from backstay.testing.conformance.job.bench import DAY, MINUTE, SECOND, Bench, claim


class Registry:
    """Tests of `heartbeat`, `unregister_worker` and `workers`."""

    @claim
    async def test_a_worker_is_listed_as_it_told_of_itself(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        worker = Worker(
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
        await one.ask("heartbeat", worker)
        (seen,) = await other.ask("workers")
        assert seen == msgspec.structs.replace(worker, registered=bench.now, beat=bench.now)

    @claim
    async def test_a_beat_refreshes_and_registered_stays(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        start = bench.now
        await one.ask("heartbeat", Worker(id="w1"))
        bench.wait(MINUTE)
        await one.ask("heartbeat", Worker(id="w1", running=3, registered=5, beat=5))
        (seen,) = await other.ask("workers")
        assert (seen.registered, seen.beat, seen.running) == (start, bench.now, 3)

    @claim
    async def test_a_worker_that_leaves_is_gone(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        for name in ("w1", "w2", "w3"):
            await one.ask("heartbeat", Worker(id=name))
        await other.ask("unregister_worker", "w2")
        await other.ask("unregister_worker", "w2")
        await other.ask("unregister_worker", "nobody")
        assert sorted(worker.id for worker in await one.ask("workers")) == ["w1", "w3"]

    @claim
    async def test_after_a_day_of_silence_a_worker_is_forgotten(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        await one.ask("heartbeat", Worker(id="silent"))
        bench.wait(DAY - SECOND)
        await one.ask("heartbeat", Worker(id="alive"))
        assert sorted(worker.id for worker in await one.ask("workers")) == ["alive", "silent"]
        bench.wait(2 * SECOND)
        assert [worker.id for worker in await one.ask("workers")] == ["alive"]
