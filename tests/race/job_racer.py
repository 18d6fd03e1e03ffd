"""One of several processes that do the same thing to a job store at the same moment, again and again.

`python job_racer.py ROLE URL NAMESPACE FOLDER PLACE RACERS ROUNDS`: before each round it waits until all are there; at
the end it prints one JSON object.
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
from backstay.job.ids import Ids
from backstay.job.model import Claim, ExchangeCommand, Finish, NewJob, Tick, Unique
from backstay.job.store import JOB_STORE

#: The longest wait for a racer.
PATIENCE = 60.0
#: A lease that does not run out while others are busy.
LEASE = 600_000_000


class Line:
    """Where racers wait for each other: a file with a number for each."""

    def __init__(self, folder: str, place: int, racers: int) -> None:
        path = Path(folder) / "line"
        with path.open("r+b") as file:
            self._seen = mmap.mmap(file.fileno(), 8 * racers)
        self._place, self._racers = place, racers

    def arrive(self, turn: int) -> None:
        struct.pack_into("<q", self._seen, 8 * self._place, turn)
        deadline = time.monotonic() + PATIENCE
        looks = 0
        while min(struct.unpack_from(f"<{self._racers}q", self._seen)) < turn:
            looks += 1
            os.sched_yield()
            if looks > 200:
                time.sleep(0.0002)
            if time.monotonic() > deadline:
                raise TimeoutError(f"the others did not come to round {turn}")


class Racer:
    """A caller of the store, on the real clock."""

    def __init__(self, stay: Backstay, place: int, line: Line, rounds: int) -> None:
        core = stay._core
        self.port, self.engine = core.port, core.engine
        self.store = core.services.get(JOB_STORE)
        self.name, self.place, self.line, self.rounds = f"racer-{place}", place, line, rounds
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
        """Each racer has the blockers of its own queue, and ends the n-th when the others end theirs."""
        jobs = (await self.exchange(want=self.rounds, queue=f"queue-{self.place}")).jobs
        ready = 0
        for turn, job in enumerate(jobs, 1):
            self.line.arrive(turn)
            reply = await self.exchange(
                [Finish(job=job.id, fence=job.fence, kind="complete", result=b"%d" % self.place)]
            )
            assert reply.verdicts == ("ok",)
            ready += reply.ready.get("after", 0)
        return {"finished": len(jobs), "ready": ready}

    async def ask_for_one(self):
        """Ten callers in each racer ask for one job with the same key."""
        made, answers = 0, []
        for turn in range(1, self.rounds + 1):
            self.line.arrive(turn)
            unique = Unique(f"key-{turn}", "until_done")
            jobs = [NewJob(id=self.ids.new(0), type="only", unique=unique) for _ in range(10)]
            told = await asyncio.gather(*[self.port.apply(self.store.enqueue(0, [job])) for job in jobs])
            made += sum(not answer.deduplicated for (answer,) in told)
            answers.append(sorted({answer.id for (answer,) in told}))
        return {"made": made, "answers": answers}

    async def tick(self):
        """Each racer is a scheduler, with an id of its own for each moment's job."""
        await self.port.apply(self.store.ticks(["nightly"]))
        made = 0
        for turn in range(1, self.rounds + 1):
            self.line.arrive(turn)
            at = 4_000_000_000_000_000 + turn * 60_000_000
            job = NewJob(id=self.ids.new(0), type="nightly")
            made += await self.port.apply(self.store.tick(Tick(name="nightly", at=at, job=job)))
        return {"made": made}

    async def take_one(self):
        """One job at a time that a worker without labels can take, behind all those that it cannot."""
        taken = []
        for turn in range(1, self.rounds + 1):
            self.line.arrive(2 * turn - 1)
            if self.place == 0:
                await self.port.apply(self.store.enqueue(0, [NewJob(id=self.ids.new(0), type="mine", priority=-9)]))
            self.line.arrive(2 * turn)
            taken += [job.id for job in (await self.exchange(want=5)).jobs]
        return {"taken": taken}


async def main() -> None:
    role, url, namespace, folder, place, racers, rounds = sys.argv[1:]
    line = Line(folder, int(place), int(racers))
    async with Backstay(url, namespace=namespace) as stay:
        told = await getattr(Racer(stay, int(place), line, int(rounds)), role)()
    print(json.dumps(told), flush=True)


asyncio.run(main())
