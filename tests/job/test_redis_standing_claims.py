"""On one Redis, the claim of a worker without work stays in the shard, and whoever enqueues a job answers it: the job
is leased and sent in the same step. A message that is lost costs time and nothing else.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from types import SimpleNamespace

import pytest
import redis
from redis_desk import LEASE, MINUTE, RedisDesk
from workshop import working

from backstay import Backstay
from backstay.errors import OutcomeUnknown
from backstay.job.model import Claim, Concurrency, Finish, Rate, Stand, Unique
from backstay.job.worker.channel import Identity, Lane
from backstay.telemetry import Telemetry
from backstay.testing.redis_server import say
from backstay.testing.waiting import soon

pytestmark = pytest.mark.redis

#: A test clock's first moment, in µs.
START = 1_700_000_000_000_000


class Inbox:
    """Hears a channel, as a worker's hub does."""

    def __init__(self, desk, ear, channel):
        self._desk = desk
        self._ear = ear
        self.channel = channel

    def take(self):
        """What was handed over; None: nothing."""
        said = self._ear.get_message(timeout=0.05)
        return None if said is None else self._desk.store.read_handed(said["data"])

    def stand(self, types="\0work\0", queues=("default",), life=3_000_000):
        return Stand(self.channel, life, types, queues)


@pytest.fixture
def desk(backstay_redis, namespace):
    made = RedisDesk(backstay_redis.url, namespace, announces=True, now=START)
    made.seqs = itertools.count(100)  # behind those that tests say
    yield made
    made.close()


@pytest.fixture
def inboxes(desk, backstay_redis):
    with redis.Redis.from_url(backstay_redis.url) as client:
        ears = []

        def make():
            ear = client.pubsub()
            ears.append(ear)
            channel = f"{desk.engine.namespace}:hand:{len(ears)}"
            ear.subscribe(channel)
            assert ear.get_message(timeout=5)["type"] == "subscribe"
            return Inbox(desk, ear, channel)

        yield make
        for ear in ears:
            ear.close()


@pytest.fixture
def inbox(inboxes):
    return inboxes()


def state(desk, job):
    return desk.ask("get", job).state


# ── a job for a claim that stands ──


def test_a_job_is_handed_to_the_claim_that_stands(desk, inbox):
    assert not desk.step(want=1, seq=1, stand=inbox.stand()).jobs
    (made,) = desk.ask("enqueue", 0, [desk.job(args=b"args", priority=3)])
    assert made.state == "running"
    handed = inbox.take()
    assert handed.lane == "worker\0one\x000"
    assert handed.seq == 1
    (job,) = handed.reply.jobs
    stored = desk.ask("get", made.id)
    assert (job.id, job.fence, job.args, job.attempt, job.priority) == (made.id, stored.fence, b"args", 1, 3)
    assert (stored.state, stored.worker, stored.attempt) == ("running", "worker", 1)
    assert stored.lease_until == job.until == START + LEASE
    assert stored.started == stored.enqueued == stored.due == START
    assert desk.end(job, result=b"done").verdicts == ("ok",)
    assert state(desk, job.id) == "completed"


def test_it_counts_as_running_and_nobody_is_called(desk, inbox, backstay_redis, namespace):
    desk.step(want=1, stand=inbox.stand())
    with redis.Redis.from_url(backstay_redis.url) as client, client.pubsub() as ear:
        ear.subscribe(f"{namespace}:sched")
        assert ear.get_message(timeout=5)["type"] == "subscribe"
        desk.add()
        assert ear.get_message(timeout=0.05) is None
    (queue,) = desk.ask("queues")
    assert (queue.pending, queue.running) == (0, 1)


def test_a_claim_is_answered_once(desk, inbox):
    desk.step(want=5, stand=inbox.stand())
    first, second = desk.add(), desk.add()
    assert (state(desk, first), state(desk, second)) == ("running", "pending")
    assert [job.id for job in desk.take(5)] == [second]


def test_a_claim_that_found_something_does_not_stand(desk, inbox):
    desk.add()
    assert len(desk.take(5, stand=inbox.stand())) == 1
    assert state(desk, desk.add()) == "pending"


def test_fences_grow_whichever_way_a_job_is_handed_out(desk, inbox):
    fences = []
    for number in range(1, 6):
        desk.step(want=1, stand=inbox.stand())
        desk.add()
        fences.append(inbox.take().reply.jobs[0].fence)
        desk.add()
        fences += [job.fence for job in desk.take(1)]
        desk.now += number
    assert fences == sorted(set(fences))


def test_who_came_last_is_asked_first_and_each_is_asked(desk, inboxes, backstay_redis, namespace):
    hands = [(RedisDesk(backstay_redis.url, namespace, name=name, now=START), inboxes()) for name in "abc"]
    for other, inbox in hands:
        other.now = desk.now = desk.now + 1
        other.step(want=1, stand=inbox.stand())
        other.close()
    jobs = [desk.add() for _ in range(4)]
    assert [desk.ask("get", job).worker for job in jobs] == ["c", "b", "a", ""]


def test_a_worker_of_several_queues_is_given_one_job(desk, inbox):
    desk.step(want=1, stand=inbox.stand(queues=("default", "other")))
    assert state(desk, desk.add(queue="other")) == "running"
    assert state(desk, desk.add()) == "pending"


# ── what is lost ──


def test_an_unheard_job_comes_with_the_answer_to_the_next_step(desk, inbox):
    desk.step(want=1, seq=1, stand=inbox.stand())
    job = desk.add()
    desk.now += 1_000_000
    late = desk.step(want=1, seq=2, unheard=1)
    assert late.handed
    assert [each.id for each in late.jobs] == [job]
    assert desk.ask("get", job).lease_until == desk.now + LEASE, "renewed: its worker learns of it only now"
    again = desk.step(want=1, seq=2, unheard=1)
    assert again.handed, "until the lane says that it knows"
    assert [each.fence for each in again.jobs] == [each.fence for each in late.jobs]
    after = desk.step(want=1, seq=2)
    assert not after.handed
    assert not after.jobs


def test_nothing_of_a_step_is_done_before_the_unheard_job_is_known(desk, inbox):
    other = desk.add()
    (busy,) = desk.take(1)
    assert busy.id == other
    desk.step(want=1, seq=205, stand=inbox.stand())
    desk.add()
    finish = Finish(job=busy.id, fence=busy.fence, kind="complete")
    late = desk.step([finish], seq=206, unheard=205)
    assert (late.handed, late.verdicts) == (True, ())
    assert state(desk, other) == "running"
    assert desk.step([finish], seq=206).verdicts == ("ok",)


def test_the_same_seq_again_brings_the_job_that_came_meanwhile(desk, inbox):
    assert not desk.take(1, seq=1, stand=inbox.stand())
    job = desk.add()
    assert [each.id for each in desk.take(1, seq=1, stand=inbox.stand())] == [job]


def test_an_unheard_job_that_was_reaped_is_not_handed_out_twice(desk, inbox):
    desk.step(want=1, seq=1, stand=inbox.stand())
    job = desk.add(retries=3)
    desk.now += LEASE + 1
    desk.ask("reap", 0)
    late = desk.step(want=1, seq=2, unheard=1)
    assert late.handed
    assert not late.jobs
    assert [each.id for each in desk.take(1, seq=2)] == [job]


def test_an_inbox_that_nobody_hears_is_passed_over(desk, inbox):
    desk.step(want=1, seq=1, stand=Stand("nobody", 3_000_000, "\0work\0", ("default",)))
    job = desk.add()
    assert state(desk, job) == "pending"
    assert [each.id for each in desk.take(1, seq=2, unheard=1)] == [job]


def test_whoever_hears_is_found_behind_those_who_are_gone(desk, inbox, backstay_redis, namespace):
    desk.step(want=1, stand=inbox.stand())
    for name in "abc":
        gone = RedisDesk(backstay_redis.url, namespace, name=name, now=START + 1)
        gone.step(want=1, stand=Stand("nobody", 3_000_000, "\0work\0", ("default",)))
        gone.close()
    desk.now += 1
    assert desk.ask("get", desk.add()).worker == "worker"


def test_what_cannot_be_read_is_nothing(desk):
    for message in (b"", b"\0", b"\xff" * 30, b"\xff" * 300, b"{}" * 40):
        assert desk.store.read_handed(message) is None


# ── when it does not stand any more ──


def test_any_step_of_its_lane_takes_it_back(desk, inbox):
    desk.step(want=1, seq=1, stand=inbox.stand())
    desk.step(seq=2, unheard=1)
    assert state(desk, desk.add()) == "pending"
    assert inbox.take() is None


def test_it_ends_by_itself(desk, inbox):
    desk.step(want=1, stand=inbox.stand(life=3_000_000))
    desk.now += 3_000_000
    assert state(desk, desk.add()) == "pending"


def test_a_claim_that_is_denied_leaves_it_as_it_was(desk, inbox, backstay_redis, namespace):
    desk.step(want=1, seq=1, stand=inbox.stand())
    say(backstay_redis, "SET", f"{namespace}:hint:used-up", "0", "EX", "60")
    assert desk.step(want=1, seq=2, unheard=1, hints=("used-up",), stand=inbox.stand()).denied
    assert state(desk, desk.add()) == "running"
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
def test_only_a_plain_job_that_is_due_is_handed_over(desk, inbox, fields):
    desk.step(want=1, stand=inbox.stand())
    assert state(desk, desk.add(**fields)) != "running"
    assert inbox.take() is None
    assert state(desk, desk.add()) == "running" or "queue" not in fields


def test_one_of_many_is_not_handed_over(desk, inbox):
    desk.step(want=5, stand=inbox.stand())
    assert {made.state for made in desk.ask("enqueue", 0, [desk.job(), desk.job()])} == {"pending"}


def test_a_job_that_is_there_already_is_left_as_it_is(desk, inbox):
    job = desk.job()
    desk.ask("enqueue", 0, [job])
    (taken,) = desk.take(1)
    desk.end(taken)
    desk.step(want=1, stand=inbox.stand())
    (again,) = desk.ask("enqueue", 0, [job])
    assert again.state == "completed"
    assert inbox.take() is None


def test_a_paused_or_limited_queue_hands_nothing_over(desk, inbox):
    desk.step(want=1, stand=inbox.stand())
    desk.ask("pause", "default", paused=True)
    job = desk.add()
    assert state(desk, job) == "pending"
    desk.ask("pause", "default", paused=False)
    desk.ask("limit_queue", "default", Rate("default", MINUTE, 1))
    desk.step(want=0)
    desk.step(want=0, stand=inbox.stand())
    assert state(desk, desk.add()) == "pending"


def test_nothing_overtakes_a_job_that_waits_or_is_due(desk, inbox):
    desk.step(want=1, stand=inbox.stand())
    waiting = desk.ask("enqueue", 0, [desk.job(), desk.job()])
    desk.step(want=0, stand=inbox.stand())
    assert state(desk, desk.add()) == "pending"
    assert len(desk.take(5)) == len(waiting) + 1
    desk.step(want=1, stand=inbox.stand())
    due = desk.add(delay=10)
    desk.now += 10
    assert state(desk, desk.add()) == "pending"
    assert [job.id for job in desk.take(1)] == [due]


def test_a_server_that_takes_no_writes_tells_nobody(desk, inbox, backstay_redis):
    desk.step(want=1, stand=inbox.stand())
    say(backstay_redis, "CONFIG", "SET", "min-replicas-to-write", "1")
    try:
        with pytest.raises(Exception, match="NOREPLICAS"):
            desk.add()
    finally:
        say(backstay_redis, "CONFIG", "SET", "min-replicas-to-write", "0")
    assert inbox.take() is None


def test_a_job_may_be_sent_to_an_inbox_that_is_forbidden(desk, inbox, backstay_redis, namespace):
    """Whoever enqueues may not have the right to publish there."""
    user = ["ACL", "SETUSER", "clerk", "on", ">secret", "~*", "+@all", "resetchannels", f"&{namespace}:sched"]
    say(backstay_redis, *user)
    clerk = RedisDesk(backstay_redis.url.replace("://", "://clerk:secret@"), namespace, announces=True, now=START)
    try:
        desk.step(want=1, stand=inbox.stand())
        assert state(clerk, clerk.add()) == "pending"
    finally:
        clerk.close()
        say(backstay_redis, "ACL", "DELUSER", "clerk")


# ── histories ──


class Hand:
    """A lane as `job/worker/channel.py` has it, whose messages and answers may be lost."""

    def __init__(self, desk, name, inbox, chance):
        self.name, self._inbox, self._desk, self._chance = name, inbox, desk, chance
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

    def step(self, finishes, want):
        self.seq += 1
        stand = self._inbox.stand() if not self.held and self._chance.random() < 0.8 else None
        command = self._desk.command(finishes, seq=self.seq, want=want, unheard=self.standing, stand=stand)
        while True:
            self._desk.name = self.name
            command = self._desk.command(
                finishes, seq=self.seq, want=want, unheard=self.standing, stand=command.claim.stand
            )
            reply = self._desk.ask("step", command)
            if self._chance.random() < 0.3:
                continue  # the answer was lost
            if reply.handed:
                self.standing = 0
                self._start(reply.jobs)
                want, command = max(0, want - len(reply.jobs)), self._desk.command(stand=None)
                continue
            self.standing = 0 if command.claim.stand is None or reply.jobs else self.seq
            self._start(reply.jobs)
            return reply.verdicts


@pytest.mark.parametrize("seed", range(20))
def test_every_job_is_done_once_whatever_is_lost(desk, inboxes, seed):
    chance = random.Random(seed)
    hands = [Hand(desk, name, inboxes(), chance) for name in "ab"]
    jobs = []
    done = []
    for _ in range(40):
        desk.now += chance.choice((1, 100_000))
        hand = chance.choice(hands)
        match chance.choice("eehss"):
            case "e":
                jobs += [
                    made.id for made in desk.ask("enqueue", 0, [desk.job() for _ in range(chance.choice((1, 1, 2)))])
                ]
            case "h":
                hand.hear()
            case _:
                _turn(hand, done, chance.randrange(3), ends=chance.random() < 0.7)
    for hand in itertools.chain(hands * 4):
        _turn(hand, done, 10, ends=True)
    assert sorted(done) == sorted(jobs)
    assert {desk.ask("get", job).attempt for job in jobs} <= {1}


def _turn(hand, done, want, *, ends):
    ending = list(hand.held.values()) if ends else []
    for job in ending:
        del hand.held[job.id]
    verdicts = hand.step([Finish(job=job.id, fence=job.fence, kind="complete") for job in ending], want)
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


def test_an_idle_worker_begins_without_asking(shop, backstay_redis, namespace):
    async def main():
        async with shop() as stay:

            @stay.job()
            async def work(number: int) -> int:
                return number

            async with working(stay) as worker:
                await idle(backstay_redis, namespace)
                for number in range(5):
                    steps = worker.steps
                    handle = await work.enqueue(number)
                    assert await handle.result(timeout=5) == number
                    await idle(backstay_redis, namespace)
                    assert worker.steps == steps + 1, "the one that told its end, and left the next claim"
                assert not await stay._core.port.apply(stay._core.store.next_due(0))
            assert worker.counts["completed"] == 5

    asyncio.run(main())


def test_a_worker_whose_handler_runs_is_handed_nothing(shop, backstay_redis, namespace):
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


def test_a_worker_that_stops_takes_its_claim_back(shop, backstay_redis, namespace):
    async def main():
        async with shop() as stay:

            @stay.job()
            async def work() -> None: ...

            async with working(stay):
                await idle(backstay_redis, namespace)
            handle = await work.enqueue()
            assert await handle.status() == "pending"

    asyncio.run(main())


def test_a_job_whose_message_was_lost_begins_with_the_next_look(shop, backstay_redis, namespace, monkeypatch):
    async def main():
        async with shop() as stay:

            @stay.job()
            async def work(number: int) -> int:
                return number

            async with working(stay) as worker:
                await idle(backstay_redis, namespace)
                monkeypatch.setattr(worker._dispatch, "handed", lambda _: None)
                handle = await work.enqueue(1)
                assert await handle.status() == "running"
                worker._dispatch.look()
                assert await handle.result(timeout=5) == 1
                await idle(backstay_redis, namespace)

    asyncio.run(main())


def test_a_message_that_overtakes_the_answer_counts(shop, backstay_redis, namespace, monkeypatch):
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
                    if type(answer).__name__ == "StepReply" and not handles:
                        handles.append(await same.enqueue(7))
                        assert await handles[0].status() == "running"
                    return answer

                monkeypatch.setattr(type(port), "apply", lambda self, op: slow(op) if self is port else apply(op))
                worker._dispatch.look()

                async def sent():
                    return bool(handles)

                assert await soon(sent)
                monkeypatch.undo()
                steps = worker.steps
                assert await handles[0].result(timeout=1) == 7
                assert worker.steps <= steps + 1

    asyncio.run(main())


def test_a_message_of_a_job_that_was_reaped_meanwhile_starts_nothing(desk, inbox):
    """The message came at once, the answer to the step that it was for only when the job's lease was over."""

    async def main():
        identity, begun, heard = Identity("worker", "one"), [], []

        class Port:
            """Answers late, and then as the shard does."""

            async def apply(self, op):
                if heard:
                    return desk.engine.apply(op)
                desk.engine.apply(op)
                desk.add()
                handed = inbox.take()
                heard.append(handed.reply.jobs[0].id)
                assert lane.hears(handed) is False
                desk.now += LEASE + 1
                desk.ask("reap", 0)
                raise OutcomeUnknown("no answer")

        core = SimpleNamespace(engine=desk.engine, port=Port(), telemetry=Telemetry())
        lane = Lane(core, desk.store, identity, 0, 0, lambda reply, _: begun.append(reply))
        lane.busy = True
        claim = Claim(want=1, queues=(("default",),), labels=(), lease=LEASE, stand=inbox.stand())
        reply, _ = await lane.step([], claim)
        assert reply.jobs == ()
        assert begun == []
        assert state(desk, heard[0]) == "failed"

    asyncio.run(main())


def test_a_broken_subscription_costs_time_only(shop, backstay_redis, namespace):
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


def test_one_place_is_filled_once(shop, backstay_redis, namespace):
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
