"""On one Redis, the claim of an idle worker waits in the shard, and the next enqueue answers it: the job
is leased and sent in the same script. A lost message only costs time.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from types import SimpleNamespace

import pytest
import redis
from redis_store_client import LEASE, MINUTE, RedisStoreClient

from backstay import Backstay
from backstay.errors import OutcomeUnknown
from backstay.job.model import Claim, Concurrency, Finish, Rate, Unique, WaitingClaimSpec
from backstay.job.worker.channel import Identity, WorkerChannel
from backstay.telemetry import Telemetry
from backstay.testing.servers.redis import say
from backstay.testing.waiting import soon
from support.app import working

pytestmark = pytest.mark.redis

#: A test clock's first moment, in µs.
START = 1_700_000_000_000_000


class Inbox:
    """Subscribes to a channel, as a worker's hub does."""

    def __init__(self, client, ear, channel):
        self._client = client
        self._ear = ear
        self.channel = channel

    def take(self):
        """What was handed over; None: nothing."""
        said = self._ear.get_message(timeout=0.05)
        return None if said is None else self._client.store.read_handoff(said["data"])

    def stand(self, types="\0work\0", queues=("default",), life=3_000_000):
        return WaitingClaimSpec(self.channel, life, types, queues)


@pytest.fixture
def client(backstay_redis, namespace):
    made = RedisStoreClient(backstay_redis.url, namespace, announces=True, now=START)
    made.seqs = itertools.count(100)  # behind those that tests say
    yield made
    made.close()


@pytest.fixture
def inboxes(client, backstay_redis):
    with redis.Redis.from_url(backstay_redis.url) as raw:
        ears = []

        def make():
            ear = raw.pubsub()
            ears.append(ear)
            channel = f"{client.engine.namespace}:hand:{len(ears)}"
            ear.subscribe(channel)
            assert ear.get_message(timeout=5)["type"] == "subscribe"
            return Inbox(client, ear, channel)

        yield make
        for ear in ears:
            ear.close()


@pytest.fixture
def inbox(inboxes):
    return inboxes()


def state(client, job):
    return client.ask("get", job).state


# ── a job for a claim that stands ──


def test_a_job_is_handed_off_to_the_waiting_claim(client, inbox):
    assert not client.exchange(want=1, seq=1, waiting=inbox.stand()).jobs
    (made,) = client.ask("enqueue", 0, [client.job(args=b"args", priority=3)])
    assert made.state == "running"
    handed = inbox.take()
    assert handed.channel == "worker\0one\x000"
    assert handed.seq == 1
    (job,) = handed.reply.jobs
    stored = client.ask("get", made.id)
    assert (job.id, job.fence, job.args, job.attempt, job.priority) == (made.id, stored.fence, b"args", 1, 3)
    assert (stored.state, stored.worker, stored.attempt) == ("running", "worker", 1)
    assert stored.lease_until == job.until == START + LEASE
    assert stored.started == stored.enqueued == stored.due == START
    assert client.end(job, result=b"done").verdicts == ("ok",)
    assert state(client, job.id) == "completed"


def test_a_handed_off_job_counts_as_running_and_is_not_announced(client, inbox, backstay_redis, namespace):
    client.exchange(want=1, waiting=inbox.stand())
    with redis.Redis.from_url(backstay_redis.url) as raw, raw.pubsub() as ear:
        ear.subscribe(f"{namespace}:sched")
        assert ear.get_message(timeout=5)["type"] == "subscribe"
        client.add()
        assert ear.get_message(timeout=0.05) is None
    (queue,) = client.ask("queues")
    assert (queue.pending, queue.running) == (0, 1)


def test_a_claim_is_answered_once(client, inbox):
    client.exchange(want=5, waiting=inbox.stand())
    first, second = client.add(), client.add()
    assert (state(client, first), state(client, second)) == ("running", "pending")
    assert [job.id for job in client.take(5)] == [second]


def test_a_claim_that_found_a_job_does_not_wait(client, inbox):
    client.add()
    assert len(client.take(5, waiting=inbox.stand())) == 1
    assert state(client, client.add()) == "pending"


def test_fences_grow_whichever_way_a_job_is_handed_out(client, inbox):
    fences = []
    for number in range(1, 6):
        client.exchange(want=1, waiting=inbox.stand())
        client.add()
        fences.append(inbox.take().reply.jobs[0].fence)
        client.add()
        fences += [job.fence for job in client.take(1)]
        client.now += number
    assert fences == sorted(set(fences))


def test_waiting_claims_are_served_last_in_first_out_and_once_each(client, inboxes, backstay_redis, namespace):
    hands = [(RedisStoreClient(backstay_redis.url, namespace, name=name, now=START), inboxes()) for name in "abc"]
    for other, inbox in hands:
        other.now = client.now = client.now + 1
        other.exchange(want=1, waiting=inbox.stand())
        other.close()
    jobs = [client.add() for _ in range(4)]
    assert [client.ask("get", job).worker for job in jobs] == ["c", "b", "a", ""]


def test_a_worker_of_several_queues_is_given_one_job(client, inbox):
    client.exchange(want=1, waiting=inbox.stand(queues=("default", "other")))
    assert state(client, client.add(queue="other")) == "running"
    assert state(client, client.add()) == "pending"


# ── what is lost ──


def test_an_undelivered_handoff_comes_with_the_next_exchange_reply(client, inbox):
    client.exchange(want=1, seq=1, waiting=inbox.stand())
    job = client.add()
    client.now += 1_000_000
    late = client.exchange(want=1, seq=2, waiting_seq=1)
    assert late.handed_off
    assert [each.id for each in late.jobs] == [job]
    assert client.ask("get", job).lease_until == client.now + LEASE, "renewed: its worker learns of it only now"
    again = client.exchange(want=1, seq=2, waiting_seq=1)
    assert again.handed_off, "until the lane says that it knows"
    assert [each.fence for each in again.jobs] == [each.fence for each in late.jobs]
    after = client.exchange(want=1, seq=2)
    assert not after.handed_off
    assert not after.jobs


def test_an_exchange_does_nothing_before_its_undelivered_handoff_is_known(client, inbox):
    other = client.add()
    (busy,) = client.take(1)
    assert busy.id == other
    client.exchange(want=1, seq=205, waiting=inbox.stand())
    client.add()
    finish = Finish(job=busy.id, fence=busy.fence, kind="complete")
    late = client.exchange([finish], seq=206, waiting_seq=205)
    assert (late.handed_off, late.verdicts) == (True, ())
    assert state(client, other) == "running"
    assert client.exchange([finish], seq=206).verdicts == ("ok",)


def test_a_resent_exchange_returns_the_handoff_made_since(client, inbox):
    assert not client.take(1, seq=1, waiting=inbox.stand())
    job = client.add()
    assert [each.id for each in client.take(1, seq=1, waiting=inbox.stand())] == [job]


def test_an_undelivered_handoff_that_was_reaped_is_not_returned(client, inbox):
    client.exchange(want=1, seq=1, waiting=inbox.stand())
    job = client.add(retries=3)
    client.now += LEASE + 1
    client.ask("reap", 0)
    late = client.exchange(want=1, seq=2, waiting_seq=1)
    assert late.handed_off
    assert not late.jobs
    assert [each.id for each in client.take(1, seq=2)] == [job]


def test_an_inbox_without_a_subscriber_is_skipped(client, inbox):
    client.exchange(want=1, seq=1, waiting=WaitingClaimSpec("nobody", 3_000_000, "\0work\0", ("default",)))
    job = client.add()
    assert state(client, job) == "pending"
    assert [each.id for each in client.take(1, seq=2, waiting_seq=1)] == [job]


def test_a_live_waiting_claim_is_found_behind_dead_ones(client, inbox, backstay_redis, namespace):
    client.exchange(want=1, waiting=inbox.stand())
    for name in "abc":
        gone = RedisStoreClient(backstay_redis.url, namespace, name=name, now=START + 1)
        gone.exchange(want=1, waiting=WaitingClaimSpec("nobody", 3_000_000, "\0work\0", ("default",)))
        gone.close()
    client.now += 1
    assert client.ask("get", client.add()).worker == "worker"


def test_an_unreadable_handoff_message_is_ignored(client):
    for message in (b"", b"\0", b"\xff" * 30, b"\xff" * 300, b"{}" * 40):
        assert client.store.read_handoff(message) is None


# ── when it does not stand any more ──


def test_any_exchange_of_its_channel_withdraws_the_waiting_claim(client, inbox):
    client.exchange(want=1, seq=1, waiting=inbox.stand())
    client.exchange(seq=2, waiting_seq=1)
    assert state(client, client.add()) == "pending"
    assert inbox.take() is None


def test_a_waiting_claim_expires(client, inbox):
    client.exchange(want=1, waiting=inbox.stand(life=3_000_000))
    client.now += 3_000_000
    assert state(client, client.add()) == "pending"


def test_a_denied_claim_keeps_the_waiting_claim(client, inbox, backstay_redis, namespace):
    client.exchange(want=1, seq=1, waiting=inbox.stand())
    say(backstay_redis, "SET", f"{namespace}:hint:used-up", "0", "EX", "60")
    assert client.exchange(want=1, seq=2, waiting_seq=1, hints=("used-up",), waiting=inbox.stand()).denied
    assert state(client, client.add()) == "running"
    assert inbox.take().seq == 1


# ── what must not be handed over ──


@pytest.mark.parametrize(
    "fields",
    [
        {"queue": "other"},
        {"type": "unknown"},
        {"labels": ("gpu",)},
        {"rate": Rate("api", 1_000_000, 1)},
        {"concurrency": Concurrency("one", 1)},
        {"unique": Unique("one", "until_done")},
        {"delay": 1},
        {"due": START + 1},
        {"run": "0-run"},
        {"args": b"x" * 7000},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_only_a_plain_due_job_is_handed_off(client, inbox, fields):
    client.exchange(want=1, waiting=inbox.stand())
    assert state(client, client.add(**fields)) != "running"
    assert inbox.take() is None
    assert state(client, client.add()) == "running" or "queue" not in fields


def test_jobs_of_a_bulk_enqueue_are_not_handed_off(client, inbox):
    client.exchange(want=5, waiting=inbox.stand())
    assert {made.state for made in client.ask("enqueue", 0, [client.job(), client.job()])} == {"pending"}


def test_an_existing_job_is_not_handed_off_again(client, inbox):
    job = client.job()
    client.ask("enqueue", 0, [job])
    (taken,) = client.take(1)
    client.end(taken)
    client.exchange(want=1, waiting=inbox.stand())
    (again,) = client.ask("enqueue", 0, [job])
    assert again.state == "completed"
    assert inbox.take() is None


def test_a_paused_or_limited_queue_hands_nothing_off(client, inbox):
    client.exchange(want=1, waiting=inbox.stand())
    client.ask("pause", "default", paused=True)
    job = client.add()
    assert state(client, job) == "pending"
    client.ask("pause", "default", paused=False)
    client.ask("limit_queue", "default", Rate("default", MINUTE, 1))
    client.exchange(want=0)
    client.exchange(want=0, waiting=inbox.stand())
    assert state(client, client.add()) == "pending"


def test_no_handoff_overtakes_a_pending_or_due_job(client, inbox):
    client.exchange(want=1, waiting=inbox.stand())
    waiting = client.ask("enqueue", 0, [client.job(), client.job()])
    client.exchange(want=0, waiting=inbox.stand())
    assert state(client, client.add()) == "pending"
    assert len(client.take(5)) == len(waiting) + 1
    client.exchange(want=1, waiting=inbox.stand())
    due = client.add(delay=10)
    client.now += 10
    assert state(client, client.add()) == "pending"
    assert [job.id for job in client.take(1)] == [due]


def test_a_read_only_server_sends_no_handoff(client, inbox, backstay_redis):
    client.exchange(want=1, waiting=inbox.stand())
    say(backstay_redis, "CONFIG", "SET", "min-replicas-to-write", "1")
    try:
        with pytest.raises(Exception, match="NOREPLICAS"):
            client.add()
    finally:
        say(backstay_redis, "CONFIG", "SET", "min-replicas-to-write", "0")
    assert inbox.take() is None


def test_a_handoff_to_a_forbidden_inbox_leaves_the_job_claimable(client, inbox, backstay_redis, namespace):
    """The enqueuing user may lack the right to publish there."""
    user = ["ACL", "SETUSER", "clerk", "on", ">secret", "~*", "+@all", "resetchannels", f"&{namespace}:sched"]
    say(backstay_redis, *user)
    clerk = RedisStoreClient(
        backstay_redis.url.replace("://", "://clerk:secret@"), namespace, announces=True, now=START
    )
    try:
        client.exchange(want=1, waiting=inbox.stand())
        assert state(clerk, clerk.add()) == "pending"
    finally:
        clerk.close()
        say(backstay_redis, "ACL", "DELUSER", "clerk")


# ── histories ──


class Hand:
    """A lane as `job/worker/channel.py` has it, whose messages and answers may be lost."""

    def __init__(self, client, name, inbox, chance):
        self.name, self._inbox, self._client, self._chance = name, inbox, client, chance
        self.seq = self.standing = 0
        self.held = {}

    def hear(self):
        while (handed := self._inbox.take()) is not None:
            if self._chance.random() < 0.5 and handed.seq == self.standing:
                self.standing = 0
                self._start(handed.reply.jobs)

    def _start(self, jobs):
        for job in jobs:
            assert job.id not in self.held
            self.held[job.id] = job

    def exchange(self, finishes, want):
        self.seq += 1
        stand = self._inbox.stand() if not self.held and self._chance.random() < 0.8 else None
        command = self._client.command(finishes, seq=self.seq, want=want, waiting_seq=self.standing, waiting=stand)
        while True:
            self._client.name = self.name
            command = self._client.command(
                finishes, seq=self.seq, want=want, waiting_seq=self.standing, waiting=command.claim.waiting
            )
            reply = self._client.ask("exchange", command)
            if self._chance.random() < 0.3:
                continue  # the answer was lost
            if reply.handed_off:
                self.standing = 0
                self._start(reply.jobs)
                want, command = max(0, want - len(reply.jobs)), self._client.command(waiting=None)
                continue
            self.standing = 0 if command.claim.waiting is None or reply.jobs else self.seq
            self._start(reply.jobs)
            return reply.verdicts


@pytest.mark.parametrize("seed", range(20))
def test_every_job_completes_once_under_message_loss(client, inboxes, seed):
    chance = random.Random(seed)
    hands = [Hand(client, name, inboxes(), chance) for name in "ab"]
    jobs = []
    done = []
    for _ in range(40):
        client.now += chance.choice((1, 100_000))
        hand = chance.choice(hands)
        match chance.choice("eehss"):
            case "e":
                jobs += [
                    made.id
                    for made in client.ask("enqueue", 0, [client.job() for _ in range(chance.choice((1, 1, 2)))])
                ]
            case "h":
                hand.hear()
            case _:
                _turn(hand, done, chance.randrange(3), ends=chance.random() < 0.7)
    for hand in itertools.chain(hands * 4):
        _turn(hand, done, 10, ends=True)
    assert sorted(done) == sorted(jobs)
    assert {client.ask("get", job).attempt for job in jobs} <= {1}


def _turn(hand, done, want, *, ends):
    ending = list(hand.held.values()) if ends else []
    for job in ending:
        del hand.held[job.id]
    verdicts = hand.exchange([Finish(job=job.id, fence=job.fence, kind="complete") for job in ending], want)
    assert set(verdicts) <= {"ok"}
    done += [job.id for job in ending]


# ── workers ──


@pytest.fixture
def shop(backstay_redis, namespace):
    return lambda: Backstay(backstay_redis.url, namespace=namespace)


def stands(server, namespace):
    """How many claims stand for the default queue."""
    return int(say(server, "ZCARD", f"{{{namespace}:s0}}:idle:default"))


async def idle(server, namespace):
    async def there():
        return stands(server, namespace) == 1

    assert await soon(there)


def test_an_idle_worker_begins_a_handed_off_job_without_an_exchange(shop, backstay_redis, namespace):
    async def main():
        async with shop() as stay:

            @stay.job()
            async def work(number: int) -> int:
                return number

            async with working(stay) as worker:
                await idle(backstay_redis, namespace)
                for number in range(5):
                    steps = worker.exchanges
                    handle = await work.enqueue(number)
                    assert await handle.result(timeout=5) == number
                    await idle(backstay_redis, namespace)
                    assert worker.exchanges == steps + 1, "the one that told its end, and left the next claim"
                assert not await stay._core.port.apply(stay.internals.job_store.next_due(0))
            assert worker.counts["completed"] == 5

    asyncio.run(main())


def test_a_busy_worker_receives_no_handoff(shop, backstay_redis, namespace):
    """It may hold up the loop; another worker may be free."""

    async def main():
        async with shop() as stay:
            enough = asyncio.Event()

            @stay.job()
            async def wait() -> None:
                await enough.wait()

            async with working(stay):
                await idle(backstay_redis, namespace)
                first = await wait.enqueue()
                assert stands(backstay_redis, namespace) == 0
                second = await wait.enqueue()

                async def both():
                    return [await first.status(), await second.status()] == ["running", "running"]

                assert await soon(both)
                assert stands(backstay_redis, namespace) == 0
                enough.set()
                await first.result(timeout=5)
                await second.result(timeout=5)
                await idle(backstay_redis, namespace)

    asyncio.run(main())


def test_a_stopping_worker_withdraws_its_waiting_claim(shop, backstay_redis, namespace):
    async def main():
        async with shop() as stay:

            @stay.job()
            async def work() -> None: ...

            async with working(stay):
                await idle(backstay_redis, namespace)
            handle = await work.enqueue()
            assert await handle.status() == "pending"

    asyncio.run(main())


def test_a_job_whose_handoff_message_was_lost_begins_with_the_next_poll(shop, backstay_redis, namespace, monkeypatch):
    async def main():
        async with shop() as stay:

            @stay.job()
            async def work(number: int) -> int:
                return number

            async with working(stay) as worker:
                await idle(backstay_redis, namespace)
                monkeypatch.setattr(worker._producer, "on_handoff", lambda _: None)
                handle = await work.enqueue(1)
                assert await handle.status() == "running"
                worker._producer.poll_all()
                assert await handle.result(timeout=5) == 1
                await idle(backstay_redis, namespace)

    asyncio.run(main())


def test_a_handoff_message_that_overtakes_the_exchange_reply_counts(shop, backstay_redis, namespace, monkeypatch):
    """The claim is there before its worker knows that it stands: they come over different connections."""

    async def main():
        async with shop() as stay, shop() as clerk:

            @stay.job()
            async def work(number: int) -> int:
                return number

            @clerk.job(name=work.name)
            async def same(number: int) -> int: ...

            async with working(stay) as worker:
                await idle(backstay_redis, namespace)
                port = stay._core.port
                apply, handles = port.apply, []

                async def slow(op):
                    answer = await apply(op)
                    if type(answer).__name__ == "ExchangeReply" and not handles:
                        handles.append(await same.enqueue(7))
                        assert await handles[0].status() == "running"
                    return answer

                monkeypatch.setattr(type(port), "apply", lambda self, op: slow(op) if self is port else apply(op))
                worker._producer.poll_all()

                async def sent():
                    return bool(handles)

                assert await soon(sent)
                monkeypatch.undo()
                steps = worker.exchanges
                assert await handles[0].result(timeout=1) == 7
                assert worker.exchanges <= steps + 1

    asyncio.run(main())


def test_a_handoff_message_for_a_reaped_job_starts_nothing(client, inbox):
    """The message came at once, the answer to the step that it was for only when the job's lease was over."""

    async def main():
        identity, begun, heard = Identity("worker", "one"), [], []

        class Port:
            """Answers late, and then as the shard does."""

            async def apply(self, op):
                if heard:
                    return client.engine.apply(op)
                client.engine.apply(op)
                client.add()
                handed = inbox.take()
                heard.append(handed.reply.jobs[0].id)
                assert lane.accept_handoff(handed) is False
                client.now += LEASE + 1
                client.ask("reap", 0)
                raise OutcomeUnknown("no answer")

        core = SimpleNamespace(engine=client.engine, port=Port(), telemetry=Telemetry())
        lane = WorkerChannel(core, client.store, identity, 0, 0, lambda reply, _: begun.append(reply))
        lane.busy = True
        claim = Claim(want=1, queues=(("default",),), labels=(), lease=LEASE, waiting=inbox.stand())
        reply, _ = await lane.exchange([], claim)
        assert reply.jobs == ()
        assert begun == []
        assert state(client, heard[0]) == "failed"

    asyncio.run(main())


def test_a_broken_subscription_only_delays_jobs(shop, backstay_redis, namespace):
    async def main():
        async with shop() as stay:

            @stay.job()
            async def work(number: int) -> int:
                return number

            async with working(stay):
                await idle(backstay_redis, namespace)
                say(backstay_redis, "CLIENT", "KILL", "TYPE", "pubsub")
                handles = [await work.enqueue(number) for number in range(3)]
                assert [await handle.result(timeout=10) for handle in handles] == [0, 1, 2]

    asyncio.run(main())


def test_one_slot_is_filled_once(shop, backstay_redis, namespace):
    """What stands and what a step asks for never are more than there is room for."""

    async def main():
        async with shop() as stay:
            running = most = 0

            @stay.job()
            async def work() -> None:
                nonlocal running, most
                running += 1
                most = max(most, running)
                await asyncio.sleep(0)
                running -= 1

            async with working(stay, concurrency=1):
                for _ in range(30):
                    handles = [await work.enqueue() for _ in range(random.randrange(1, 4))]
                    handles += await work.enqueue_many([()] * random.randrange(1, 3))
                    for handle in handles:
                        await handle.result(timeout=5)
            assert most == 1

    asyncio.run(main())
