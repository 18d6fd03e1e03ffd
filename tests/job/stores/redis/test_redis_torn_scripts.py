"""A server that is killed while it writes keeps the first part of a script, and after the next restart it acts on it.

Redis and Valkey write what a script did between MULTI and EXEC. Of a block that is cut off within a command they drop
the command, and leave the rest without its EXEC: the next start finds it followed by another script's, and carries it
out.
"""

from __future__ import annotations

import pytest
from redis_store_client import LEASE, RedisStoreClient

from backstay.job.model import Concurrency, Finish, Rate
from backstay.job.run_model import NewRun
from backstay.testing.plugin import started_or_skip
from backstay.testing.servers import RedisServer
from backstay.testing.servers.redis import say, until

pytestmark = [pytest.mark.redis, pytest.mark.chaos, pytest.mark.slow]

NOW = 1_800_000_000_000_000
FINAL = {"completed", "cancelled"}


@pytest.fixture
def server():
    server = RedisServer(aof=True, options=("--auto-aof-rewrite-percentage", "0"))
    try:
        yield started_or_skip(server)
    finally:
        server.stop()


def ends(finishes, job, kind="complete"):
    finishes.append(Finish(job=job.id, fence=job.fence, kind=kind))


class Deed:
    """What is there, and the one script of which a part is kept. `ids`: the jobs of which none may be lost."""

    def __init__(self, client):
        self.client = client
        self.ids = []
        self.sent = []

    def add(self, count, **fields):
        jobs = [self.client.job(retries=9, **fields) for _ in range(count)]
        self.client.ask("enqueue", 0, jobs)
        self.ids += [job.id for job in jobs]

    def prepare(self):
        self.add(6)

    def do(self):
        raise NotImplementedError

    def in_the_end(self, client):
        pass

    def afterwards(self, client):
        """Resend the enqueue whose reply was lost."""
        if self.sent:
            client.ask("enqueue", 0, self.sent)


class EnqueueAlike(Deed):
    kinds = ({},)

    def do(self):
        self.sent = [self.client.job(retries=9, **fields) for fields in self.kinds for _ in range(4)]
        self.ids += [job.id for job in self.sent]
        self.client.ask("enqueue", 0, self.sent)


class EnqueueOthers(EnqueueAlike):
    kinds = ({}, {"labels": ("gpu",)}, {"delay": 1000})


class EnqueueKeyed(EnqueueAlike):
    kinds = ({"concurrency": Concurrency("few", 1)},)


class Claim(Deed):
    def do(self):
        assert len(self.client.take(4)) == 4


class ClaimOfTwoLanes(Claim):
    def prepare(self):
        self.add(3)
        self.add(3, labels=("gpu",))

    def do(self):
        assert len(self.client.take(4, labels=("gpu",))) == 4


class ClaimKeyed(Claim):
    def prepare(self):
        self.add(6, concurrency=Concurrency("few", 2), rate=Rate("many", 1, 1000))

    def do(self):
        assert len(self.client.take(4)) == 2


class EndsAndClaim(Deed):
    key = None

    def prepare(self):
        self.add(9, concurrency=self.key)
        self.taken = self.client.take(4)

    def do(self):
        finishes = []
        for job, kind in zip(self.taken, ("complete", "complete", "release", "retry"), strict=False):
            ends(finishes, job, kind)
        assert len(self.client.exchange(finishes, want=3).jobs) >= 1


class EndsAndClaimKeyed(EndsAndClaim):
    key = Concurrency("few", 2)


class Reap(Deed):
    key = None

    def prepare(self):
        self.add(6, concurrency=self.key)
        self.client.take(4)
        self.client.now += 2 * LEASE

    def do(self):
        self.client.exchange()


class Due(Deed):
    def prepare(self):
        self.add(4, delay=1000)
        self.client.now += 2000

    def do(self):
        self.client.exchange()


class CancelKeyed(Deed):
    def prepare(self):
        self.add(4, concurrency=Concurrency("few", 1))
        self.client.take(2)

    def do(self):
        self.client.ask("cancel", self.ids[2], "no more")


class EndsKeyed(Deed):
    """The exchange finishes keyed jobs and claims none."""

    def prepare(self):
        self.add(3, concurrency=Concurrency("few", 1))
        self.taken = self.client.take(2)

    def do(self):
        self.client.end(self.taken[0])


class ReapKeyed(Reap):
    key = Concurrency("few", 2)


class EndOfABlocker(Deed):
    def prepare(self):
        self.add(1)
        self.add(2, after=(self.ids[0],))
        (self.taken,) = self.client.take()

    def do(self):
        self.client.end(self.taken)


class EnqueueBehind(EnqueueAlike):
    def prepare(self):
        self.add(1)
        self.kinds = ({"after": (self.ids[0],)},)


class ChainGoesOn(Deed):
    def prepare(self):
        self.add(1)
        self.add(1, after=(self.ids[0],))
        (self.taken,) = self.client.take()

    def do(self):
        finish = Finish(job=self.taken.id, fence=self.taken.fence, kind="complete", next=self.client.job(retries=9))
        self.client.exchange([finish])

    def in_the_end(self, client):
        assert client.ask("watch", self.ids[0], chain=True).state == "completed"


class TryAgain(Deed):
    def prepare(self):
        self.add(1)
        (taken,) = self.client.take()
        self.client.end(taken, "fail")

    def do(self):
        self.client.ask("trigger", self.ids[0])

    def afterwards(self, client):
        if client.ask("get", self.ids[0]).state == "failed":
            self.client = client
            self.do()
        client.ask("purge", "failed")


class StartRun(Deed):
    def do(self):
        run = self.client.ids.new(0)
        first = self.client.job(run=run, retries=9)
        others = [self.client.job(run=run, retries=9, after=(first.id,)) for _ in range(2)]
        jobs = (first, *others)
        self.run = NewRun(id=run, workflow="w", jobs=jobs)
        self.ids += [job.id for job in jobs]
        self.client.ask("start_run", self.run)

    def afterwards(self, client):
        client.ask("start_run", self.run)


class EndsOfARun(StartRun):
    def prepare(self):
        StartRun.do(self)
        (self.taken,) = self.client.take()

    def do(self):
        self.client.end(self.taken)


def start(server):
    """It is up, and has read its log."""
    server.start()
    until(lambda: say(server, "PING"), "the log was read")


def commands(block):
    """Where each command of a piece of the log begins."""
    at, found = 0, []
    while at < len(block):
        found.append(at)
        line = block.index(b"\r\n", at)
        words, at = int(block[at + 1 : line]), line + 2
        for _ in range(words):
            line = block.index(b"\r\n", at)
            at = line + 2 + int(block[at + 1 : line]) + 2
    return found


def drain(client):
    """After all leases have expired, run every claimable job, check the runs and prune."""
    client.now += 100 * LEASE
    for _ in range(2):
        while jobs := client.take(5, labels=("gpu",)):
            for job in jobs:
                client.end(job)
        client.ask("check_runs", 0)
        client.ask("prune", 0, 1000)


@pytest.mark.parametrize(
    "kind",
    [
        EnqueueAlike,
        EnqueueOthers,
        EnqueueKeyed,
        Claim,
        ClaimOfTwoLanes,
        ClaimKeyed,
        EndsAndClaim,
        EndsAndClaimKeyed,
        Reap,
        Due,
        CancelKeyed,
        EndsKeyed,
        ReapKeyed,
        EndOfABlocker,
        EnqueueBehind,
        ChainGoesOn,
        TryAgain,
        StartRun,
        EndsOfARun,
    ],
)
def test_no_job_is_lost_when_any_part_of_a_script_is_kept(server, namespace, kind):
    log = server.folder / "appendonlydir" / "appendonly.aof.1.incr.aof"

    def client(name="worker", now=NOW):
        return RedisStoreClient(server.url, namespace, name=name, now=now)

    deed = kind(client())
    deed.prepare()
    size = log.stat().st_size
    deed.do()
    server.kill()
    whole, now = log.read_bytes(), deed.client.now
    deed.client.close()
    starts = commands(whole[size:])
    assert b"MULTI" in whole[size : size + starts[1]]
    assert len(starts) > 4
    for cut in starts[2:]:
        log.write_bytes(whole[: size + cut + 2])  # in the midst of what marks the next command
        start(server)
        other = client("another", now)
        other.add()  # goes on, and closes what was left open
        for job in other.take(2):
            other.end(job)
        other.close()
        server.kill()
        start(server)
        last = client("last", now)
        deed.afterwards(last)
        drain(last)
        states = [last.ask("get", id_).state for id_ in deed.ids]
        assert set(states) <= FINAL, (whole[size + cut :][:60], states)
        (queue,) = last.ask("queues")
        assert (queue.pending, queue.running) == (0, 0), queue
        deed.in_the_end(last)
        last.close()
        server.kill()
