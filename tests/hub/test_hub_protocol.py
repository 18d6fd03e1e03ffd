"""The documented wire format, checked with plain redis-py: channels, payloads and hint keys."""

from __future__ import annotations

import os
import random
import re
import uuid
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
import redis

from backstay import sync
from backstay.hub import protocol
from backstay.testing.waiting import WITHIN, eventually

pytestmark = pytest.mark.redis
A_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


@pytest.fixture
def plain(backstay_redis):
    with redis.Redis(port=backstay_redis.port, decode_responses=True) as client:
        yield client


@pytest.fixture(params=["redis", "sqlite"])
def redis_stay(request, connect, backstay_redis, tmp_path):
    """A Backstay whose hub is Redis, on either engine."""
    if request.param == "redis":
        return connect(backstay_redis.url)
    return connect(f"sqlite:///{tmp_path / 'state.db'}", hub=backstay_redis.url)


def subscribed(plain, *channels):
    subscription = plain.pubsub(ignore_subscribe_messages=True)
    subscription.subscribe(*channels)
    assert eventually(lambda: all(count for _, count in plain.pubsub_numsub(*channels)))
    return subscription


def message(subscription):
    found = []
    assert eventually(lambda: found or found.extend(filter(None, [subscription.get_message(timeout=0.05)])))
    return found[0]["channel"], found[0]["data"]


def test_a_redis_py_subscriber_receives_published_messages(redis_stay, plain, namespace):
    channels = [f"{namespace}:{name}" for name in ("sched", "chainc", "owls", "news")]
    with subscribed(plain, *channels) as subscription:
        hint = redis_stay.hub.publish_scheduled("mail:send", 5)
        assert A_UUID.fullmatch(hint)
        assert message(subscription) == (channels[0], f"{hint}:mail:send")
        assert plain.get(f"{namespace}:hint:{hint}") == "5"
        assert plain.type(f"{namespace}:hint:{hint}") == "string"
        assert 50 <= plain.ttl(f"{namespace}:hint:{hint}") <= 60
        redis_stay.hub.publish_chain_completed("c:1")
        assert message(subscription) == (channels[1], "c:1")
        redis_stay.hub.publish_ownership_lost("j:1")
        assert message(subscription) == (channels[2], "j:1")
        redis_stay.hub.publish("news", "é")
        assert message(subscription) == (channels[3], "é")


def test_messages_of_a_redis_py_producer_are_received(redis_stay, plain, namespace):
    """The producer uses SET and PUBLISH as the wire format documents them, also with an upper-case id."""
    with redis_stay.hub.listen_scheduled(["a:b"]) as jobs, redis_stay.hub.listen_chain_completed("c1") as chains:
        for hint in (str(uuid.uuid4()), str(uuid.uuid4()).upper()):
            plain.set(f"{namespace}:hint:{hint}", 2, ex=60)
            plain.publish(f"{namespace}:sched", f"{hint}:a:b")
            notice = jobs.next(timeout=WITHIN)
            assert notice is not None
            assert (notice.type, notice.hint_id, notice.missed) == ("a:b", hint, False)
            assert redis_stay.hub.take_hint(hint, 5) == 2
            assert plain.get(f"{namespace}:hint:{hint}") == "0"
            assert redis_stay.hub.take_hint(hint) == 0
        plain.publish(f"{namespace}:chainc", "c1")
        notice = chains.next(timeout=WITHIN)
        assert notice is not None
        assert notice.id == "c1"


def provide(plain, key, count):
    """Add to the counter of a type, like a producer that has one counter for each type."""
    plain.set(key, int(plain.get(key) or 0) + count, ex=60)


def test_announcements_of_a_producer_that_counts_by_type_are_received(redis_stay, plain, namespace):
    """The payload is the type alone, and all announcements of a type share its counter."""
    key = f"{namespace}:hint:mail:send"
    with redis_stay.hub.listen_scheduled(["mail:send"]) as jobs:
        for count in (3, 2):
            provide(plain, key, count)
            plain.publish(f"{namespace}:sched", "mail:send")
        hint = redis_stay.hub.publish_scheduled("mail:send", 7)  # of Backstay, on the same channel
        notices = [jobs.next(timeout=WITHIN) for _ in range(3)]
        assert [(one.type, one.hint_id) for one in notices] == [
            ("mail:send", "mail:send"),
            ("mail:send", "mail:send"),
            ("mail:send", hint),
        ]
        assert [redis_stay.hub.take_hint(notices[0].hint_id, n) for n in (2, 9, 1)] == [2, 3, 0]
        assert 0 < plain.pttl(key) <= 60_000
        assert redis_stay.hub.take_hint(notices[2].hint_id, 9) == 7
        provide(plain, key, 1)
        assert redis_stay.hub.take_hint("mail:send", 9) == 1
        plain.delete(key)
        assert redis_stay.hub.take_hint("mail:send", 9) == 9  # without a counter, every worker may respond
        assert not plain.exists(key)


def test_the_hub_prefix_is_configurable(connect, backstay_redis, plain, namespace):
    one = connect(backstay_redis.url, hub_prefix=f"x-{namespace}")
    other = connect(backstay_redis.url)
    with one.hub.listen_scheduled() as jobs, other.hub.listen_scheduled() as elsewhere:
        hint = one.hub.publish_scheduled("resize", 3)
        assert jobs.next(timeout=WITHIN) is not None
        assert plain.get(f"x-{namespace}:hint:{hint}") == "3"
        other.hub.publish_scheduled("mail")
        notice = elsewhere.next(timeout=WITHIN)
        assert notice is not None
        assert notice.type == "mail"


def test_an_exhausted_counter_stays_zero_and_keeps_its_expiry(redis_stay, plain, namespace):
    hint = redis_stay.hub.publish_scheduled("resize", 2)
    key = f"{namespace}:hint:{hint}"
    plain.pexpire(key, 30_000)
    assert [redis_stay.hub.take_hint(hint, n) for n in (1, 5, 1, 1)] == [1, 1, 0, 0]
    assert plain.get(key) == "0"
    assert 0 < plain.pttl(key) <= 30_000


def test_an_expired_counter_allows_every_take_and_is_not_recreated(redis_stay, plain, namespace):
    hint = redis_stay.hub.publish_scheduled("resize", 1)
    key = f"{namespace}:hint:{hint}"
    assert redis_stay.hub.take_hint(hint) == 1
    assert redis_stay.hub.take_hint(hint) == 0
    plain.pexpire(key, 1)
    assert eventually(lambda: not plain.exists(key))
    assert redis_stay.hub.take_hint(hint, 3) == 3
    assert not plain.exists(key)


def test_a_foreign_counter_without_an_expiry_gets_one(redis_stay, plain, namespace):
    hint = str(uuid.uuid4())
    key = f"{namespace}:hint:{hint}"
    for value, taken in (("3", 1), ("0", 0), ("not a number", 1)):
        plain.set(key, value)
        assert redis_stay.hub.take_hint(hint) == taken
        assert 0 < plain.pttl(key) <= 60_000, value


@pytest.mark.parametrize(
    ("stored", "taken", "left"),
    [
        ("-4", 0, "-4"),  # a foreign program may count below zero
        ("007", 2, "5"),
        ("3.5", 2, "3.5"),
        ("inf", 2, "inf"),
        ("", 2, ""),
        ("9" * 400, 2, "9" * 400),
        ("999999999999999", 2, "999999999999997"),
    ],
)
def test_a_take_accepts_any_stored_counter_value_and_does_not_corrupt_it(
    redis_stay, plain, namespace, stored, taken, left
):
    hint = str(uuid.uuid4())
    plain.set(f"{namespace}:hint:{hint}", stored, ex=60)
    assert redis_stay.hub.take_hint(hint, 2) == taken
    assert plain.get(f"{namespace}:hint:{hint}") == left


def test_a_counter_key_of_another_type_allows_every_take(redis_stay, plain, namespace):
    hint = str(uuid.uuid4())
    plain.rpush(f"{namespace}:hint:{hint}", "x")
    assert redis_stay.hub.take_hint(hint, 2) == 2
    assert redis_stay.telemetry.counts["hub.hint_unknown"] == 1


def test_flushed_scripts_are_loaded_again(redis_stay, plain):
    for _ in range(2):
        plain.script_flush()
        hint = redis_stay.hub.publish_scheduled("resize", 1)
        plain.script_flush()
        assert redis_stay.hub.take_hint(hint) == 1
        assert redis_stay.hub.take_hint(hint) == 0


@pytest.mark.parametrize(
    "payload",
    [
        "",
        f"{uuid.UUID(int=1)}",
        f"{uuid.UUID(int=1)}:",
        f"{uuid.UUID(int=1)}:{'t' * 513}",
        "t" * 513,
        "é" * 257,
        "a\0b",
    ],
)
def test_a_malformed_announcement_is_ignored(payload):
    assert protocol.read_scheduled(payload) is None


@pytest.mark.parametrize(
    "hint",
    [
        "0000000-00000-0000-0000-000000000000",  # a misplaced dash
        "00000000-0000-0000-0000-0000 0000000",
        "00000000-0000-0000-0000- 00000000000",
        "00000000-0000-0000-0000-00000000_000",
        "00000000-0000-0000-0000-00000000000٣",
        "00000000-0000-0000-0000-0000000000000",
        "00000000-0000-0000-000--000000000000",
    ],
)
def test_only_a_uuid_is_a_hint_id(hint):
    assert not protocol.is_hint_id(hint)
    assert protocol.read_scheduled(f"{hint}:t") == protocol.Scheduled(f"{hint}:t", f"{hint}:t")


def test_a_new_hint_id_is_a_uuid():
    made = {protocol.new_hint_id() for _ in range(1000)}
    assert len(made) == 1000
    assert all(
        A_UUID.fullmatch(hint) and protocol.is_hint_id(hint) and protocol.is_hint_id(hint.upper()) for hint in made
    )


def test_hint_ids_do_not_depend_on_the_random_seed():
    random.seed(1)
    first = protocol.new_hint_id()
    random.seed(1)
    assert protocol.new_hint_id() != first


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_creates_different_hint_ids():
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as child:
        theirs = child.submit(protocol.new_hint_id).result()
    assert theirs != protocol.new_hint_id()


def test_an_announcement_is_split_at_its_first_colon():
    hint = str(uuid.uuid4())
    assert protocol.read_scheduled(f"{hint}:a:b: c") == protocol.Scheduled("a:b: c", hint)
    assert protocol.read_scheduled(protocol.write_scheduled(hint, ":")) == protocol.Scheduled(":", hint)


def test_a_closed_backstay_sends_nothing(backstay_redis, namespace):
    from backstay import Closed

    stay = sync.Backstay(backstay_redis.url, namespace=namespace)
    stay.close()
    for call in (
        lambda: stay.hub.publish("x"),
        lambda: stay.hub.publish_scheduled("x"),
        lambda: stay.hub.take_hint(str(uuid.uuid4())),
        lambda: stay.hub.listen("x").__enter__(),
    ):
        with pytest.raises(Closed):
            call()
