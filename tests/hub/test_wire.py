"""The wire table, from its other side: plain redis-py, and what our scripts leave behind."""

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
def ours(request, connect, backstay_redis, tmp_path):
    """A Backstay whose hub is Redis, whatever its engine."""
    if request.param == "redis":
        return connect(backstay_redis.url)
    return connect(f"sqlite:///{tmp_path / 'state.db'}", hub=backstay_redis.url)


def subscribed(plain, *channels):
    heard = plain.pubsub(ignore_subscribe_messages=True)
    heard.subscribe(*channels)
    assert eventually(lambda: all(count for _, count in plain.pubsub_numsub(*channels)))
    return heard


def message(heard):
    found = []
    assert eventually(lambda: found or found.extend(filter(None, [heard.get_message(timeout=0.05)])))
    return found[0]["channel"], found[0]["data"]


def test_a_plain_subscriber_hears_what_we_publish(ours, plain, namespace):
    channels = [f"{namespace}:{name}" for name in ("sched", "chainc", "owls", "news")]
    with subscribed(plain, *channels) as heard:
        hint = ours.hub.publish_scheduled("mail:send", 5)
        assert A_UUID.fullmatch(hint)
        assert message(heard) == (channels[0], f"{hint}:mail:send")
        assert plain.get(f"{namespace}:hint:{hint}") == "5"
        assert plain.type(f"{namespace}:hint:{hint}") == "string"
        assert 50 <= plain.ttl(f"{namespace}:hint:{hint}") <= 60
        ours.hub.publish_chain_completed("c:1")
        assert message(heard) == (channels[1], "c:1")
        ours.hub.publish_ownership_lost("j:1")
        assert message(heard) == (channels[2], "j:1")
        ours.hub.publish("news", "é")
        assert message(heard) == (channels[3], "é")


def test_we_hear_a_plain_producer(ours, plain, namespace):
    """SET and PUBLISH, as anybody can write them from the table alone; also in upper case."""
    with ours.hub.listen_scheduled(["a:b"]) as jobs, ours.hub.listen_chain_completed("c1") as chains:
        for hint in (str(uuid.uuid4()), str(uuid.uuid4()).upper()):
            plain.set(f"{namespace}:hint:{hint}", 2, ex=60)
            plain.publish(f"{namespace}:sched", f"{hint}:a:b")
            notice = jobs.next(timeout=WITHIN)
            assert notice is not None
            assert (notice.type, notice.hint_id, notice.missed) == ("a:b", hint, False)
            assert ours.hub.take_hint(hint, 5) == 2
            assert plain.get(f"{namespace}:hint:{hint}") == "0"
            assert ours.hub.take_hint(hint) == 0
        plain.publish(f"{namespace}:chainc", "c1")
        notice = chains.next(timeout=WITHIN)
        assert notice is not None
        assert notice.id == "c1"


def test_the_prefix_is_ours_to_choose(connect, backstay_redis, plain, namespace):
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


def test_an_exhausted_counter_stays_zero_and_keeps_its_end(ours, plain, namespace):
    hint = ours.hub.publish_scheduled("resize", 2)
    key = f"{namespace}:hint:{hint}"
    plain.pexpire(key, 30_000)
    assert [ours.hub.take_hint(hint, n) for n in (1, 5, 1, 1)] == [1, 1, 0, 0]
    assert plain.get(key) == "0"
    assert 0 < plain.pttl(key) <= 30_000


def test_an_expired_counter_lets_everybody_come_and_is_not_made_again(ours, plain, namespace):
    hint = ours.hub.publish_scheduled("resize", 1)
    key = f"{namespace}:hint:{hint}"
    assert ours.hub.take_hint(hint) == 1
    assert ours.hub.take_hint(hint) == 0
    plain.pexpire(key, 1)
    assert eventually(lambda: not plain.exists(key))
    assert ours.hub.take_hint(hint, 3) == 3
    assert not plain.exists(key)


def test_a_counter_that_somebody_made_without_an_end_gets_one(ours, plain, namespace):
    hint = str(uuid.uuid4())
    key = f"{namespace}:hint:{hint}"
    for value, taken in (("3", 1), ("0", 0), ("not a number", 1)):
        plain.set(key, value)
        assert ours.hub.take_hint(hint) == taken
        assert 0 < plain.pttl(key) <= 60_000, value


@pytest.mark.parametrize(
    ("stored", "taken", "left"),
    [
        ("-4", 0, "-4"),  # one that others count below zero
        ("007", 2, "5"),
        ("3.5", 2, "3.5"),
        ("inf", 2, "inf"),
        ("", 2, ""),
        ("9" * 400, 2, "9" * 400),
        ("999999999999999", 2, "999999999999997"),
    ],
)
def test_whatever_a_stranger_stored_a_take_answers_and_keeps_it_whole(ours, plain, namespace, stored, taken, left):
    hint = str(uuid.uuid4())
    plain.set(f"{namespace}:hint:{hint}", stored, ex=60)
    assert ours.hub.take_hint(hint, 2) == taken
    assert plain.get(f"{namespace}:hint:{hint}") == left


def test_a_key_of_another_kind_lets_everybody_come(ours, plain, namespace):
    hint = str(uuid.uuid4())
    plain.rpush(f"{namespace}:hint:{hint}", "x")
    assert ours.hub.take_hint(hint, 2) == 2
    assert ours.telemetry.counts["hub.hint_unknown"] == 1


def test_scripts_are_sent_whole_to_a_server_that_forgot_them(ours, plain):
    for _ in range(2):
        plain.script_flush()
        hint = ours.hub.publish_scheduled("resize", 1)
        plain.script_flush()
        assert ours.hub.take_hint(hint) == 1
        assert ours.hub.take_hint(hint) == 0


@pytest.mark.parametrize(
    "payload",
    ["", ":", "x", f"{uuid.UUID(int=1)}", f"{uuid.UUID(int=1)}:", f"urn:uuid:{uuid.UUID(int=1)}:t", "g" * 36 + ":t"],
)
def test_what_is_no_announcement_is_none(payload):
    assert protocol.read_scheduled(payload) is None


@pytest.mark.parametrize(
    "hint",
    [
        "0000000-00000-0000-0000-000000000000",  # a dash in another place
        "00000000-0000-0000-0000-0000 0000000",
        "00000000-0000-0000-0000- 00000000000",
        "00000000-0000-0000-0000-00000000_000",
        "00000000-0000-0000-0000-00000000000٣",
        "00000000-0000-0000-0000-0000000000000",
        "00000000-0000-0000-000--000000000000",
    ],
)
def test_what_is_not_shaped_like_a_uuid_is_no_hint(hint):
    assert not protocol.is_hint_id(hint)
    assert protocol.read_scheduled(f"{hint}:t") is None


def test_a_new_hint_is_a_uuid():
    made = {protocol.new_hint_id() for _ in range(1000)}
    assert len(made) == 1000
    assert all(
        A_UUID.fullmatch(hint) and protocol.is_hint_id(hint) and protocol.is_hint_id(hint.upper()) for hint in made
    )


def test_hints_differ_in_processes_that_seed_alike():
    random.seed(1)
    first = protocol.new_hint_id()
    random.seed(1)
    assert protocol.new_hint_id() != first


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_the_hints_of_a_forked_child_are_its_own():
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as child:
        theirs = child.submit(protocol.new_hint_id).result()
    assert theirs != protocol.new_hint_id()


def test_an_announcement_is_split_at_its_first_colon():
    hint = str(uuid.uuid4())
    assert protocol.read_scheduled(f"{hint}:a:b: c") == protocol.Scheduled("a:b: c", hint)
    assert protocol.read_scheduled(protocol.write_scheduled(hint, ":")) == protocol.Scheduled(":", hint)


def test_nothing_is_sent_by_a_closed_backstay(backstay_redis, namespace):
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
