"""One of several processes that send the same operation to a job store at the same moment, in every round.

`python job_racer.py ROLE URL NAMESPACE FOLDER PLACE RACERS ROUNDS`: ROLE is a method of `Racer`, PLACE this racer's
number. Before each round the racers wait for each other; at the end each prints a JSON object with its counts.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import struct
import sys
import time
from pathlib import Path

from backstay import Backstay
from backstay.job.exchange import Claim, ExchangeCommand
from backstay.job.ids import Ids
from backstay.job.model import Finish, NewJob, Tick, Unique
from backstay.job.store import JOB_STORE

#: Seconds that a racer waits for the others before it fails.
PATIENCE = 60.0
#: In µs: longer than any test, so that no lease expires.
LEASE = 600_000_000


class Barrier:
    """A barrier between processes: a shared file with the current round of each racer."""

    def __init__(self, folder: str, place: int, racers: int) -> None:
        path = Path(folder) / "barrier"
        with path.open("r+b") as file:
            self._rounds = mmap.mmap(file.fileno(), 8 * racers)
        self._place, self._racers = place, racers

    def wait(self, turn: int) -> None:
        """Wait until all racers have reached round `turn`."""
        struct.pack_into("<q", self._rounds, 8 * self._place, turn)
        deadline = time.monotonic() + PATIENCE
        spins = 0
        while min(struct.unpack_from(f"<{self._racers}q", self._rounds)) < turn:
            spins += 1
            os.sched_yield()
            if spins > 200:
                time.sleep(0.0002)
            if time.monotonic() > deadline:
                raise TimeoutError(f"a racer did not reach round {turn}")


class Racer:
    """Sends operations to the store. Each role is one method."""

    def __init__(self, stay: Backstay, place: int, barrier: Barrier, rounds: int) -> None:
        core = stay._core
        self.port, self.engine = core.port, core.engine
        self.store = core.services.get(JOB_STORE)
        self.name, self.place, self.barrier, self.rounds = f"racer-{place}", place, barrier, rounds
        self.ids = Ids()
        self.seq = 0

    async def exchange(self, finishes=(), *, want=0, queue="default", labels=()):
        self.seq += 1
        command = ExchangeCommand(
            shard=0,
            worker=self.name,
            incarnation=str(os.getpid()),
            channel=0,
            seq=self.seq,
            finishes=tuple(finishes),
            claim=Claim(want=want, queues=((queue,),), labels=tuple(labels), lease=LEASE),
            not_after=self.engine.now() + 60_000_000,
        )
        reply = await self.port.apply(self.store.exchange(command))
        assert not reply.expired
        return reply

    async def finish_blockers(self):
        """Claim the blockers of this racer's own queue, and complete the n-th in round n. Returns how many jobs were
        completed, and how many dependents became ready.
        """
        jobs = (await self.exchange(want=self.rounds, queue=f"queue-{self.place}")).jobs
        ready = 0
        for turn, job in enumerate(jobs, 1):
            self.barrier.wait(turn)
            reply = await self.exchange(
                [Finish(job=job.id, fence=job.fence, kind="complete", result=b"%d" % self.place)]
            )
            assert reply.verdicts == ("ok",)
            ready += reply.ready.get("after", 0)
        return {"finished": len(jobs), "ready": ready}

    async def enqueue_unique(self):
        """Enqueue ten jobs with one unique key concurrently in each round. Returns how many were created, and the ids
        that each round returned.
        """
        made, ids = 0, []
        for turn in range(1, self.rounds + 1):
            self.barrier.wait(turn)
            unique = Unique(f"key-{turn}", "until_done")
            jobs = [NewJob(id=self.ids.new(0), type="only", unique=unique) for _ in range(10)]
            replies = await asyncio.gather(*[self.port.apply(self.store.enqueue(0, [job])) for job in jobs])
            made += sum(not enqueued.deduplicated for (enqueued,) in replies)
            ids.append(sorted({enqueued.id for (enqueued,) in replies}))
        return {"made": made, "ids": ids}

    async def tick(self):
        """Act as a scheduler: send one tick per round, with a job id of this racer. Returns how many made a job."""
        await self.port.apply(self.store.ticks(["nightly"]))
        made = 0
        for turn in range(1, self.rounds + 1):
            self.barrier.wait(turn)
            at = 4_000_000_000_000_000 + turn * 60_000_000
            job = NewJob(id=self.ids.new(0), type="nightly")
            made += await self.port.apply(self.store.tick(Tick(name="nightly", at=at, job=job)))
        return {"made": made}

    async def claim_behind_labels(self):
        """In each round, racer 0 enqueues a job without labels at the lowest priority, and all racers try to claim it.
        Returns the ids of the jobs that this racer claimed.
        """
        claimed = []
        for turn in range(1, self.rounds + 1):
            self.barrier.wait(2 * turn - 1)
            if self.place == 0:
                await self.port.apply(self.store.enqueue(0, [NewJob(id=self.ids.new(0), type="mine", priority=-9)]))
            self.barrier.wait(2 * turn)
            claimed += [job.id for job in (await self.exchange(want=5)).jobs]
        return {"claimed": claimed}


async def main() -> None:
    role, url, namespace, folder, place, racers, rounds = sys.argv[1:]
    barrier = Barrier(folder, int(place), int(racers))
    async with Backstay(url, namespace=namespace) as stay:
        counts = await getattr(Racer(stay, int(place), barrier, int(rounds)), role)()
    print(json.dumps(counts), flush=True)


asyncio.run(main())
