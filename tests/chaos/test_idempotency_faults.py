"""Idempotency keys under lost replies, late requests, damaged records and wrong clocks: a key has one outcome."""

import asyncio
import sqlite3
from contextlib import suppress

import msgspec
import psycopg
import pytest

import backstay
import backstay.sync
from backstay.engine.redis import scripts
from backstay.engine.redis.address import parse
from backstay.engine.redis.link.blocking_link import BlockingLink
from backstay.engine.redis.link.protocol import pack
from backstay.engine.sqlite.engine import SqliteEngine
from backstay.idempotency.machine import IDEMPOTENCY, Abandon, Begin, Complete, Renew
from backstay.testing.waiting import eventually, soon

pytestmark = pytest.mark.chaos

#: URL options: short timeouts, so that a client soon detects a lost reply.
SHORT_TIMEOUTS = "?timeout=0.3&connect_timeout=1"
LOSSES = ["drop", "cut-after", "cut-before", "blackhole"]


def sha(command):
    """Return the hash of a command's script, by which the proxy recognizes its request."""
    return scripts.command_script(IDEMPOTENCY, command).sha.encode()


@pytest.fixture
def loaded_scripts(backstay_redis):
    """Load the scripts, so that clients send only their hashes."""
    link = BlockingLink(parse(backstay_redis.url), "loader", None)
    for command in (Begin, Renew, Complete, Abandon):
        link.call_many([pack("SCRIPT", "LOAD", IDEMPOTENCY.script(command))])
    link.close()


@pytest.fixture(params=["async", "blocking"])
def run(request, proxy, loaded_scripts):
    """`run(key, fn)` on either API, through the proxy."""
    if request.param == "blocking":
        with backstay.sync.Backstay(proxy.url + SHORT_TIMEOUTS) as stay:
            yield stay.idempotency.run
        return
    with asyncio.Runner() as runner:
        stay = backstay.Backstay(proxy.url + SHORT_TIMEOUTS)
        runner.run(stay.open())
        yield lambda *args, **options: runner.run(stay.idempotency.run(*args, **options))
        runner.run(stay.close())


@pytest.mark.redis
@pytest.mark.parametrize("command", [Begin, Complete])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_lost_reply_means_one_run_and_one_outcome(run, proxy, direct, name, loss, command):
    ran = []
    applied = proxy.once(loss, sha(command)).applied
    assert run(name, lambda: ran.append(1) or "first") == "first"
    assert applied.is_set()
    assert ran == [1]
    assert direct.idempotency.run(name, lambda: "second") == "first"


@pytest.mark.redis
@pytest.mark.parametrize("loss", LOSSES)
def test_a_replay_whose_reply_is_lost_is_retried(run, proxy, direct, name, loss):
    direct.idempotency.run(name, lambda: "first")
    applied = [proxy.once(loss, pattern).applied for pattern in (b"$3\r\nGET", sha(Begin))]
    assert run(name, lambda: pytest.fail("it ran")) == "first"
    assert all(event.is_set() for event in applied)


@pytest.mark.redis
def test_a_late_begin_after_a_failure_starts_nothing(run, proxy, direct, name):
    proxy.once("hold", sha(Begin))
    with pytest.raises(ZeroDivisionError):
        run(name, lambda: 1 / 0)
    (reply,) = proxy.deliver_held()
    assert b"expired" in reply
    assert direct.idempotency.inspect(name).state == "idle"


@pytest.mark.redis
def test_a_late_begin_after_the_outcome_changes_nothing(run, proxy, direct, name):
    proxy.once("hold", sha(Begin))
    run(name, lambda: "first")
    before = direct.idempotency.inspect(name)
    (reply,) = proxy.deliver_held()
    assert b"done" in reply
    assert direct.idempotency.inspect(name) == before


@pytest.mark.redis
def test_a_late_outcome_does_not_overwrite_a_later_ones(run, proxy, direct, name):
    proxy.once("hold", sha(Complete))
    assert run(name, lambda: "first") == "first"
    assert direct.idempotency.forget(name)
    assert direct.idempotency.run(name, lambda: "second") == "second"
    (reply,) = proxy.deliver_held()
    assert b"lost" in reply
    assert direct.idempotency.run(name, lambda: "third") == "second"


@pytest.mark.redis
def test_a_cancelled_begin_whose_reply_is_lost_leaves_the_key_free(proxy, direct, name, loaded_scripts):
    async def cancel():
        async with backstay.Backstay(proxy.url + SHORT_TIMEOUTS) as stay:
            applied = proxy.once("drop", sha(Begin)).applied
            call = asyncio.create_task(stay.idempotency.run(name, lambda: "never"))
            assert await soon(lambda: asyncio.sleep(0, applied.is_set()))
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

    asyncio.run(cancel())
    assert eventually(lambda: direct.idempotency.inspect(name).state == "idle")
    assert direct.idempotency.run(name, lambda: "second", wait=0) == "second"


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("redis", marks=pytest.mark.redis),
        pytest.param("postgres", marks=pytest.mark.postgres),
    ]
)
def damaged(request, tmp_path, name):
    """A Backstay, and a function that overwrites the record of `name` (`doc`) or its stored outcome (`body`)."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/a.db"

        def overwrite(column, raw):
            db = sqlite3.connect(tmp_path / "a.db")
            db.execute(f"UPDATE backstay_state SET {column} = ? WHERE name = ?", (raw, name))  # noqa: S608 - a column
            db.commit()
            db.close()
    elif request.param == "postgres":
        url = request.getfixturevalue("backstay_postgres").url

        def overwrite(column, raw):
            with psycopg.connect(url, autocommit=True) as db:
                statement = f"UPDATE backstay_state SET {column} = %s WHERE name = %s"  # noqa: S608 - a column
                db.execute(statement, (raw, name.encode()))
    else:
        url = request.getfixturevalue("backstay_redis").url

        def overwrite(column, raw):
            kind = "idempotency" if column == "doc" else "idempotency-body"
            key = f"backstay:{kind}:{{{name}}}"
            link = BlockingLink(parse(url), "writer", None)
            link.call_many([pack("DEL", key) if raw is None else pack("SET", key, raw)])
            link.close()

    with backstay.sync.Backstay(url) as stay:
        yield stay, overwrite


DAMAGED = {
    "garbage": b"\xc1\xff\x00 not msgpack",
    "empty": b"",
    "of a later version": msgspec.msgpack.encode([99, 5, 5, "completed", "t", "b", 1, 1, 2**52, "", [], []]),
    "of another shape": msgspec.msgpack.encode([1, "many", {}, None]),
    "a number": msgspec.msgpack.encode(7),
}


@pytest.mark.parametrize("raw", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_record_is_reported_and_nothing_runs(damaged, name, raw):
    stay, overwrite = damaged
    stay.idempotency.run(name, lambda: "first")
    overwrite("doc", raw)
    for policy in ("raise", "allow"):
        with suppress(backstay.CorruptRecord):  # Redis may replay the outcome without reading the record
            assert stay.idempotency.run(name, lambda: pytest.fail("it ran"), on_unavailable=policy) == "first"
    for use in (
        lambda: stay.idempotency.run(name, lambda: pytest.fail("it ran"), fingerprint="another"),
        lambda: stay.idempotency.inspect(name),
        lambda: stay.idempotency.forget(name),
    ):
        with pytest.raises(backstay.CorruptRecord):
            use()
    assert stay.idempotency.run(f"{name}-other", lambda: 1) == 1


def test_an_outcome_that_is_gone_or_damaged_is_reported_and_may_be_forgotten(damaged, name):
    stay, overwrite = damaged
    stay.idempotency.run(name, lambda: "first")
    for raw in (None, b"\xc1", b""):
        overwrite("body", raw)
        with pytest.raises(backstay.CorruptRecord):
            stay.idempotency.run(name, lambda: pytest.fail("it ran"))
    assert stay.idempotency.forget(name)
    assert stay.idempotency.run(name, lambda: "second") == "second"


@pytest.mark.redis
@pytest.mark.parametrize("off", [3600, -3600])
def test_a_client_whose_clock_is_wrong_changes_nothing(direct, backstay_redis, name, off):
    """TTLs follow the server's clock: a client whose clock is an hour off neither shortens nor extends an outcome."""
    direct.idempotency.run(name, lambda: "first", ttl=600)
    with backstay.sync.Backstay(backstay_redis.url) as stay:
        stay.engine.correct_clock(stay.engine.now() + off * 1_000_000)
        assert stay.idempotency.run(name, lambda: "second") == "first"
        stay.engine.correct_clock(stay.engine.now() + off * 1_000_000)
        assert stay.idempotency.run(f"{name}-new", lambda: "new", ttl=600) == "new"
    record = direct.idempotency.inspect(f"{name}-new")
    assert 590 < (record.until - record.since).total_seconds() < 630


def test_a_host_clock_set_back_does_not_bring_an_ended_outcome_back():
    now = [1_700_000_000_000_000]
    engine = SqliteEngine(":memory:", clock=lambda: now[0])
    stay = backstay.sync.Backstay(engine=engine)
    stay.idempotency.run("x", lambda: "first", ttl=10)
    now[0] += 11_000_000
    assert stay.idempotency.run("x", lambda: "second", ttl=10) == "second"
    now[0] -= 10_000_000
    assert stay.idempotency.run("x", lambda: "third", ttl=10) == "second"
    stay.close()
    engine.close_blocking()
