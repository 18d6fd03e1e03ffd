"""On a single Redis, the claim of an idle worker waits in the shard. The next enqueue leases its job to that worker and
sends it in the same script (direct handoff). A lost message only delays the job.
"""

from __future__ import annotations

import pytest
import redis
from redis_store_client import LEASE, MINUTE, START

from backstay.job.exchange import WaitingClaimSpec
from backstay.job.model import Concurrency, StartRate, Unique
from backstay.testing.servers.redis import say
from support.store_client import finish

pytestmark = pytest.mark.redis


def state(client, job):
    return client.apply("get", job).state


def test_a_job_is_handed_off_to_the_waiting_claim(client, inbox):
    assert not client.exchange(want=1, seq=1, waiting=inbox.waiting()).jobs
    (made,) = client.apply("enqueue", 0, [client.job(args=b"args", priority=3)])
    assert made.state == "running"
    handed = inbox.receive()
    assert handed.channel == "worker\0i\x000"
    assert handed.seq == 1
    (job,) = handed.reply.jobs
    stored = client.apply("get", made.id)
    assert (job.id, job.fence, job.args, job.attempt, job.priority) == (made.id, stored.fence, b"args", 1, 3)
    assert (stored.state, stored.worker, stored.attempt) == ("running", "worker", 1)
    assert stored.lease_until == job.until == START + LEASE
    assert stored.started == stored.enqueued == stored.due == START
    assert client.finish(job, result=b"done").verdicts == ("ok",)
    assert state(client, job.id) == "completed"


def test_a_handed_off_job_counts_as_running_and_is_not_announced(client, inbox, backstay_redis, namespace):
    client.exchange(want=1, waiting=inbox.waiting())
    with redis.Redis.from_url(backstay_redis.url) as raw, raw.pubsub() as subscription:
        subscription.subscribe(f"{namespace}:sched")
        assert subscription.get_message(timeout=5)["type"] == "subscribe"
        client.add()
        assert subscription.get_message(timeout=0.05) is None
    (queue,) = client.apply("queues")
    assert (queue.pending, queue.running) == (0, 1)


def test_a_waiting_claim_gets_one_job(client, inbox):
    client.exchange(want=5, waiting=inbox.waiting())
    first, second = client.add(), client.add()
    assert (state(client, first), state(client, second)) == ("running", "pending")
    assert [job.id for job in client.claim(5)] == [second]


def test_a_claim_that_found_a_job_does_not_wait(client, inbox):
    client.add()
    assert len(client.claim(5, waiting=inbox.waiting())) == 1
    assert state(client, client.add()) == "pending"


def test_fences_grow_whichever_way_a_job_is_handed_out(client, inbox):
    fences = []
    for number in range(1, 6):
        client.exchange(want=1, waiting=inbox.waiting())
        client.add()
        fences.append(inbox.receive().reply.jobs[0].fence)
        client.add()
        fences += [job.fence for job in client.claim(1)]
        client.now += number
    assert fences == sorted(set(fences))


def test_waiting_claims_are_served_last_in_first_out_and_once_each(client, clients, inboxes):
    for name in "abc":
        worker = clients(name=name, now=START)
        worker.now = client.now = client.now + 1
        worker.exchange(want=1, waiting=inboxes().waiting())
    jobs = [client.add() for _ in range(4)]
    assert [client.apply("get", job).worker for job in jobs] == ["c", "b", "a", ""]


def test_a_worker_of_several_queues_is_given_one_job(client, inbox):
    client.exchange(want=1, waiting=inbox.waiting(queues=("default", "other")))
    assert state(client, client.add(queue="other")) == "running"
    assert state(client, client.add()) == "pending"


def test_an_undelivered_handoff_comes_with_the_next_exchange_reply(client, inbox):
    client.exchange(want=1, seq=1, waiting=inbox.waiting())
    job = client.add()
    client.now += 1_000_000
    late = client.exchange(want=1, seq=2, waiting_seq=1)
    assert late.handed_off
    assert [each.id for each in late.jobs] == [job]
    assert client.apply("get", job).lease_until == client.now + LEASE, "renewed, since the worker receives it only now"
    again = client.exchange(want=1, seq=2, waiting_seq=1)
    assert again.handed_off, "until the channel confirms that it has received it"
    assert [each.fence for each in again.jobs] == [each.fence for each in late.jobs]
    after = client.exchange(want=1, seq=2)
    assert not after.handed_off
    assert not after.jobs


def test_an_exchange_does_nothing_before_its_undelivered_handoff_is_known(client, inbox):
    other = client.add()
    (busy,) = client.claim(1)
    assert busy.id == other
    client.exchange(want=1, seq=205, waiting=inbox.waiting())
    client.add()
    finishes = [finish(busy)]
    late = client.exchange(finishes, seq=206, waiting_seq=205)
    assert (late.handed_off, late.verdicts) == (True, ())
    assert state(client, other) == "running"
    assert client.exchange(finishes, seq=206).verdicts == ("ok",)


def test_a_resent_exchange_returns_the_handoff_made_since(client, inbox):
    assert not client.claim(1, seq=1, waiting=inbox.waiting())
    job = client.add()
    assert [each.id for each in client.claim(1, seq=1, waiting=inbox.waiting())] == [job]


def test_an_undelivered_handoff_that_was_reaped_is_not_returned(client, inbox):
    client.exchange(want=1, seq=1, waiting=inbox.waiting())
    job = client.add(retries=3)
    client.now += LEASE + 1
    client.apply("reap", 0)
    late = client.exchange(want=1, seq=2, waiting_seq=1)
    assert late.handed_off
    assert not late.jobs
    assert [each.id for each in client.claim(1, seq=2)] == [job]


def test_an_inbox_without_a_subscriber_is_skipped(client, inbox):
    client.exchange(want=1, seq=1, waiting=WaitingClaimSpec("not-subscribed", 3_000_000, "\0work\0", ("default",)))
    job = client.add()
    assert state(client, job) == "pending"
    assert [each.id for each in client.claim(1, seq=2, waiting_seq=1)] == [job]


def test_a_live_waiting_claim_is_found_behind_dead_ones(client, clients, inbox):
    client.exchange(want=1, waiting=inbox.waiting())
    for name in "abc":
        dead = clients(name=name, now=START + 1)
        dead.exchange(want=1, waiting=WaitingClaimSpec("not-subscribed", 3_000_000, "\0work\0", ("default",)))

    client.now += 1
    assert client.apply("get", client.add()).worker == "worker"


def test_an_unreadable_handoff_message_is_ignored(client):
    for message in (b"", b"\0", b"\xff" * 30, b"\xff" * 300, b"{}" * 40):
        assert client.store.read_handoff(message) is None


def test_any_exchange_of_its_channel_withdraws_the_waiting_claim(client, inbox):
    client.exchange(want=1, seq=1, waiting=inbox.waiting())
    client.exchange(seq=2, waiting_seq=1)
    assert state(client, client.add()) == "pending"
    assert inbox.receive() is None


def test_a_waiting_claim_expires(client, inbox):
    client.exchange(want=1, waiting=inbox.waiting(life=3_000_000))
    client.now += 3_000_000
    assert state(client, client.add()) == "pending"


def test_a_denied_claim_keeps_the_waiting_claim(client, inbox, backstay_redis, namespace):
    client.exchange(want=1, seq=1, waiting=inbox.waiting())
    say(backstay_redis, "SET", f"{namespace}:hint:used-up", "0", "EX", "60")
    assert client.exchange(want=1, seq=2, waiting_seq=1, hints=("used-up",), waiting=inbox.waiting()).denied
    assert state(client, client.add()) == "running"
    assert inbox.receive().seq == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"queue": "other"},
        {"type": "unknown"},
        {"labels": ("gpu",)},
        {"rate": StartRate("api", 1_000_000, 1)},
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
    client.exchange(want=1, waiting=inbox.waiting())
    assert state(client, client.add(**fields)) != "running"
    assert inbox.receive() is None
    assert state(client, client.add()) == "running" or "queue" not in fields


def test_jobs_of_a_bulk_enqueue_are_not_handed_off(client, inbox):
    client.exchange(want=5, waiting=inbox.waiting())
    assert {made.state for made in client.apply("enqueue", 0, [client.job(), client.job()])} == {"pending"}


def test_an_existing_job_is_not_handed_off_again(client, inbox):
    job = client.job()
    client.apply("enqueue", 0, [job])
    (claimed,) = client.claim(1)
    client.finish(claimed)
    client.exchange(want=1, waiting=inbox.waiting())
    (again,) = client.apply("enqueue", 0, [job])
    assert again.state == "completed"
    assert inbox.receive() is None


def test_a_paused_or_limited_queue_hands_nothing_off(client, inbox):
    client.exchange(want=1, waiting=inbox.waiting())
    client.apply("pause", "default", paused=True)
    job = client.add()
    assert state(client, job) == "pending"
    client.apply("pause", "default", paused=False)
    client.apply("limit_queue", "default", StartRate("default", MINUTE, 1))
    client.exchange(want=0)
    client.exchange(want=0, waiting=inbox.waiting())
    assert state(client, client.add()) == "pending"


def test_no_handoff_overtakes_a_pending_or_due_job(client, inbox):
    client.exchange(want=1, waiting=inbox.waiting())
    waiting = client.apply("enqueue", 0, [client.job(), client.job()])
    client.exchange(want=0, waiting=inbox.waiting())
    assert state(client, client.add()) == "pending"
    assert len(client.claim(5)) == len(waiting) + 1
    client.exchange(want=1, waiting=inbox.waiting())
    due = client.add(delay=10)
    client.now += 10
    assert state(client, client.add()) == "pending"
    assert [job.id for job in client.claim(1)] == [due]


def test_a_read_only_server_sends_no_handoff(client, inbox, backstay_redis):
    client.exchange(want=1, waiting=inbox.waiting())
    say(backstay_redis, "CONFIG", "SET", "min-replicas-to-write", "1")
    try:
        with pytest.raises(Exception, match="NOREPLICAS"):
            client.add()
    finally:
        say(backstay_redis, "CONFIG", "SET", "min-replicas-to-write", "0")
    assert inbox.receive() is None


def test_a_handoff_to_a_forbidden_inbox_leaves_the_job_claimable(client, clients, inbox, backstay_redis, namespace):
    """The user of the enqueuing process may lack the right to publish to the inbox."""
    user = ["ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", "resetchannels", f"&{namespace}:sched"]
    say(backstay_redis, *user)
    try:
        enqueuer = clients(backstay_redis.url.replace("://", "://app:secret@"), announces=True, now=START)
        client.exchange(want=1, waiting=inbox.waiting())
        assert state(enqueuer, enqueuer.add()) == "pending"
        enqueuer.close()
    finally:
        say(backstay_redis, "ACL", "DELUSER", "app")
