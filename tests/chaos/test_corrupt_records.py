"""A record that cannot be decoded raises CorruptRecord for its own name and affects no other name."""

import sqlite3

import msgspec
import psycopg
import pytest

import backstay
import backstay.sync
from backstay.engine.redis.address import parse
from backstay.engine.redis.link.blocking_link import BlockingLink
from backstay.engine.redis.link.protocol import pack
from backstay.testing.waiting import WITHIN, eventually

pytestmark = pytest.mark.chaos

DAMAGED = {
    "garbage": b"\xc1\xff\x00 not msgpack",
    "empty": b"",
    "cut short": msgspec.msgpack.encode([1, 1, 5, 5, [], [], []])[:4],
    "of a later version": msgspec.msgpack.encode([99, 1, 5, 5, [], [], []]),
    "of another shape": msgspec.msgpack.encode([1, "many", {}, None, 5]),
    "too short": msgspec.msgpack.encode([1]),
    "a number": msgspec.msgpack.encode(7),
    "a holder of another shape": msgspec.msgpack.encode([1, 1, 5, 5, [["ticket"]], [], []]),
}


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("redis", marks=pytest.mark.redis),
        pytest.param("postgres", marks=pytest.mark.postgres),
    ]
)
def damaged(request, tmp_path, name):
    """A Backstay, and a function that overwrites the record of `name`."""
    if request.param == "sqlite":
        path = tmp_path / "a.db"
        url = f"sqlite:///{path}"

        def overwrite(raw):
            with sqlite3.connect(path) as db:
                db.execute("UPDATE backstay_state SET doc = ? WHERE name = ?", (raw, name))
            db.close()
    elif request.param == "postgres":
        url = request.getfixturevalue("backstay_postgres").url

        def overwrite(raw):
            with psycopg.connect(url, autocommit=True) as db:
                db.execute("UPDATE backstay_state SET doc = %s WHERE name = %s", (raw, name.encode()))
    else:
        url = request.getfixturevalue("backstay_redis").url

        def overwrite(raw):
            link = BlockingLink(parse(url), "writer", None)
            link.call_many([pack("SET", f"backstay:gate:{{{name}}}", raw)])
            link.close()

    with backstay.sync.Backstay(url) as stay:
        yield stay, overwrite


@pytest.mark.parametrize("raw", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_record_is_reported_and_affects_no_other_name(damaged, name, raw):
    stay, overwrite = damaged
    lease = stay.lock(name, ttl=30, renew=False).acquire(wait=0)
    overwrite(raw)
    for use in (
        lambda: stay.lock(name).acquire(wait=0),
        lambda: stay.lock(name).acquire(wait=1),
        lambda: stay.locks.inspect(name),
        lambda: stay.locks.force_release(name),
        lease.renew,
        lease.release,
    ):
        with pytest.raises(backstay.CorruptRecord):
            use()
    with stay.lock(f"{name}-other", wait=0):
        pass


def test_a_damaged_record_does_not_hide_the_others_from_a_list(damaged, name):
    stay, overwrite = damaged
    stay.lock(name, renew=False).acquire(wait=0)
    overwrite(DAMAGED["garbage"])
    with stay.lock(f"{name}-whole", wait=0):
        broken, whole = stay.locks.list(name)
    assert broken.trouble
    assert name in broken.trouble or "record" in broken.trouble
    assert not broken.held
    assert whole.held
    assert not whole.trouble


@pytest.mark.redis
def test_a_key_of_another_type_is_reported(direct, backstay_redis, name):
    link = BlockingLink(parse(backstay_redis.url), "writer", None)
    link.call_many([pack("RPUSH", f"backstay:gate:{{{name}}}", "x")])
    link.close()
    with pytest.raises(backstay.CorruptRecord):
        direct.lock(name).acquire(wait=0)
    with pytest.raises(backstay.CorruptRecord):
        direct.locks.inspect(name)


def test_leases_beside_a_damaged_one_are_still_renewed(damaged, name):
    stay, overwrite = damaged
    broken = stay.lock(name, ttl=3).acquire(wait=0)
    whole = stay.lock(f"{name}-whole", ttl=3).acquire(wait=0)
    overwrite(DAMAGED["garbage"])
    assert broken.lost.wait(WITHIN)
    whole.check()
    whole.release()


def test_a_record_that_only_the_script_can_decode_affects_no_other_name(damaged, name):
    """The fence of its holder is text instead of a number: Lua copies it into the reply unchanged."""
    stay, overwrite = damaged
    broken = stay.lock(name, ttl=3).acquire(wait=0)
    whole = stay.lock(f"{name}-whole", ttl=3).acquire(wait=0)
    until = broken._acquired + 600_000_000
    holder = ["t", "l", True, "word", broken._acquired, until, ["", "", ""]]
    overwrite(msgspec.msgpack.encode([1, 1, broken.fence, broken._acquired, [holder]]))
    with pytest.raises(backstay.CorruptRecord):
        stay.lock(name).acquire(wait=0)
    assert broken.lost.wait(WITHIN)
    whole.check()
    whole.release()


def test_a_rejected_request_is_not_resent(damaged, name):
    stay, overwrite = damaged
    stay.lock(name, renew=False).acquire(wait=0)
    overwrite(DAMAGED["garbage"])
    for _ in range(5):
        with pytest.raises(backstay.CorruptRecord):
            stay.lock(name).acquire(wait=0)
    assert eventually(lambda: not stay._core.keeper._pending)


@pytest.mark.redis
def test_a_foreign_key_under_the_prefix_does_not_hide_the_list(backstay_redis, name):
    link = BlockingLink(parse(backstay_redis.url), "writer", None)
    key = b"backstay:gate:{" + name.encode() + b"\xff\xfe}"
    with backstay.sync.Backstay(backstay_redis.url) as stay, stay.lock(name):
        link.call_many([pack("SET", key, "1")])
        try:
            assert [entry.name for entry in stay.locks.list(name)] == [name]
        finally:
            link.call_many([pack("DEL", key)])
            link.close()
