"""A server that is killed while it writes its log (AOF) may later apply only the first commands of a script.

Redis and Valkey log the writes of a script between MULTI and EXEC. If the log ends inside a command, the server drops
that command at its next start, and the block before it keeps no EXEC. The writes of the next script follow it with an
EXEC of their own, so that the start after that applies the incomplete block.
"""

from __future__ import annotations

import pytest
from redis_store_client import LEASE, RedisStoreClient

from backstay.job.model import Concurrency, StartRate
from backstay.job.run_model import NewRun
from backstay.testing.servers import RedisServer
from backstay.testing.servers.redis import say, until
from support.servers import running
from support.store_client import finish

pytestmark = [pytest.mark.redis, pytest.mark.chaos, pytest.mark.slow]

NOW = 1_800_000_000_000_000
FINAL = {"completed", "cancelled"}


@pytest.fixture
def server():
    with running(RedisServer(aof=True, options=("--auto-aof-rewrite-percentage", "0"))) as server:
        yield server


class Operation:
    """A prepared state, and one operation whose script is cut. None of the jobs in `ids` may be lost."""

    def __init__(self, client):
        self.client = client
        self.ids = []
        self.sent = []

    def add(self, count, **fields):
        jobs = [self.client.job(retries=9, **fields) for _ in range(count)]
        self.client.apply("enqueue", 0, jobs)
        self.ids += [job.id for job in jobs]

    def prepare(self):
        self.add(6)

    def run(self):
        """Send the script that is cut."""
        raise NotImplementedError

    def check(self, client):
        """Check the final state."""

    def repeat(self, client):
        """Send the operation again, as a caller does that got no reply."""
        if self.sent:
            client.apply("enqueue", 0, self.sent)


class EnqueueUniform(Operation):
    kinds = ({},)

    def run(self):
        self.sent = [self.client.job(retries=9, **fields) for fields in self.kinds for _ in range(4)]
        self.ids += [job.id for job in self.sent]
        self.client.apply("enqueue", 0, self.sent)


class EnqueueMixed(EnqueueUniform):
    kinds = ({}, {"labels": ("gpu",)}, {"delay": 1000})


class EnqueueKeyed(EnqueueUniform):
    kinds = ({"concurrency": Concurrency("few", 1)},)


class Claim(Operation):
    def run(self):
        assert len(self.client.claim(4)) == 4


class ClaimFromTwoLanes(Claim):
    def prepare(self):
        self.add(3)
        self.add(3, labels=("gpu",))

    def run(self):
        assert len(self.client.claim(4, labels=("gpu",))) == 4


class ClaimKeyed(Claim):
    def prepare(self):
        self.add(6, concurrency=Concurrency("few", 2), rate=StartRate("many", 1, 1000))

    def run(self):
        assert len(self.client.claim(4)) == 2


class FinishAndClaim(Operation):
    key = None

    def prepare(self):
        self.add(9, concurrency=self.key)
        self.claimed = self.client.claim(4)

    def run(self):
        kinds = ("complete", "complete", "release", "retry")
        finishes = [finish(job, kind) for job, kind in zip(self.claimed, kinds, strict=False)]
        assert len(self.client.exchange(finishes, want=3).jobs) >= 1


class FinishAndClaimKeyed(FinishAndClaim):
    key = Concurrency("few", 2)


class Reap(Operation):
    key = None

    def prepare(self):
        self.add(6, concurrency=self.key)
        self.client.claim(4)
        self.client.now += 2 * LEASE

    def run(self):
        self.client.exchange()


class Due(Operation):
    def prepare(self):
        self.add(4, delay=1000)
        self.client.now += 2000

    def run(self):
        self.client.exchange()


class CancelKeyed(Operation):
    def prepare(self):
        self.add(4, concurrency=Concurrency("few", 1))
        self.client.claim(2)

    def run(self):
        self.client.apply("cancel", self.ids[2], "no more")


class FinishKeyed(Operation):
    """The exchange finishes keyed jobs and claims none."""

    def prepare(self):
        self.add(3, concurrency=Concurrency("few", 1))
        self.claimed = self.client.claim(2)

    def run(self):
        self.client.finish(self.claimed[0])


class ReapKeyed(Reap):
    key = Concurrency("few", 2)


class FinishOfABlocker(Operation):
    def prepare(self):
        self.add(1)
        self.add(2, after=(self.ids[0],))
        (self.claimed,) = self.client.claim()

    def run(self):
        self.client.finish(self.claimed)


class EnqueueBlocked(EnqueueUniform):
    def prepare(self):
        self.add(1)
        self.kinds = ({"after": (self.ids[0],)},)


class ContinueChain(Operation):
    def prepare(self):
        self.add(1)
        self.add(1, after=(self.ids[0],))
        (self.claimed,) = self.client.claim()

    def run(self):
        self.client.finish(self.claimed, next=self.client.job(retries=9))

    def check(self, client):
        assert client.apply("watch", self.ids[0], chain=True).state == "completed"


class Retry(Operation):
    def prepare(self):
        self.add(1)
        (job,) = self.client.claim()
        self.client.finish(job, "fail")

    def run(self):
        self.client.apply("trigger", self.ids[0])

    def repeat(self, client):
        if client.apply("get", self.ids[0]).state == "failed":
            self.client = client
            self.run()
        client.apply("purge", "failed")


class StartRun(Operation):
    def run(self):
        run = self.client.ids.new(0)
        first = self.client.job(run=run, retries=9)
        others = [self.client.job(run=run, retries=9, after=(first.id,)) for _ in range(2)]
        jobs = (first, *others)
        self.new_run = NewRun(id=run, workflow="w", jobs=jobs)
        self.ids += [job.id for job in jobs]
        self.client.apply("start_run", self.new_run)

    def repeat(self, client):
        client.apply("start_run", self.new_run)


class FinishInRun(StartRun):
    def prepare(self):
        StartRun.run(self)
        (self.claimed,) = self.client.claim()

    def run(self):
        self.client.finish(self.claimed)


def start(server):
    """Start the server and wait until it has read its log."""
    server.start()
    until(lambda: say(server, "PING"), "the log was read")


def commands(block):
    """Return the positions at which the commands of a part of the log begin."""
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
        while jobs := client.claim(5, labels=("gpu",)):
            for job in jobs:
                client.finish(job)
        client.apply("check_runs", 0)
        client.apply("prune", 0, 1000)


@pytest.mark.parametrize(
    "kind",
    [
        EnqueueUniform,
        EnqueueMixed,
        EnqueueKeyed,
        Claim,
        ClaimFromTwoLanes,
        ClaimKeyed,
        FinishAndClaim,
        FinishAndClaimKeyed,
        Reap,
        Due,
        CancelKeyed,
        FinishKeyed,
        ReapKeyed,
        FinishOfABlocker,
        EnqueueBlocked,
        ContinueChain,
        Retry,
        StartRun,
        FinishInRun,
    ],
)
def test_no_job_is_lost_when_any_part_of_a_script_is_kept(server, namespace, kind):
    log = server.folder / "appendonlydir" / "appendonly.aof.1.incr.aof"

    def client(name="worker", now=NOW):
        return RedisStoreClient(server.url, namespace, name=name, now=now)

    operation = kind(client())
    operation.prepare()
    size = log.stat().st_size
    operation.run()
    server.kill()
    whole, now = log.read_bytes(), operation.client.now
    operation.client.close()
    starts = commands(whole[size:])
    assert b"MULTI" in whole[size : size + starts[1]]
    assert len(starts) > 4
    for cut in starts[2:]:
        log.write_bytes(whole[: size + cut + 2])  # the log ends inside the header of the next command
        start(server)
        other = client("another", now)
        other.add()  # the next script, whose EXEC completes the block that was cut
        for job in other.claim(2):
            other.finish(job)
        other.close()
        server.kill()
        start(server)
        last = client("last", now)
        operation.repeat(last)
        drain(last)
        states = [last.apply("get", id_).state for id_ in operation.ids]
        assert set(states) <= FINAL, (whole[size + cut :][:60], states)
        (queue,) = last.apply("queues")
        assert (queue.pending, queue.running) == (0, 0), queue
        operation.check(last)
        last.close()
        server.kill()
