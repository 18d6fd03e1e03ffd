"""The failure matrix of the guarantees, column limits: one test for each cell, under the default and both profiles."""

import asyncio
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

import backstay
import backstay.sync
from backstay.engine.base import steady
from backstay.testing.plugin import started_or_skip
from backstay.testing.proxy import FaultProxy
from backstay.testing.servers import RedisServer
from backstay.testing.servers.ports import lasting_port
from backstay.testing.servers.postgres import PostgresServer
from backstay.testing.waiting import WITHIN, eventually, soon

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

QUICK = "?timeout=1&connect_timeout=2"
PROFILES = pytest.mark.parametrize(
    ("profile", "mode"),
    [
        (backstay.BALANCED, "deny"),
        (backstay.MAX_SAFETY, "deny"),
        (backstay.MAX_AVAILABILITY, "local"),
        (replace(backstay.BALANCED, limit_on_unavailable="allow"), "allow"),
    ],
    ids=["default", "safety", "availability", "allow"],
)
EACH_PROFILE = pytest.mark.parametrize(
    "profile",
    [backstay.BALANCED, backstay.MAX_SAFETY, backstay.MAX_AVAILABILITY],
    ids=["default", "safety", "availability"],
)
#: The decisions for three hits of a limit of two while the engine is down.
INSTEAD = {"deny": [False, False, False], "allow": [True, True, True], "local": [True, True, False]}


@pytest.fixture
def server():
    server = RedisServer(port=lasting_port())
    try:
        yield started_or_skip(server)
    finally:
        server.stop()


@pytest.fixture
def postgres():
    server = PostgresServer()
    try:
        yield started_or_skip(server)
    finally:
        server.stop()


KINDS = pytest.mark.parametrize(
    "kind",
    [pytest.param("server", marks=pytest.mark.redis), pytest.param("postgres", marks=pytest.mark.postgres)],
    ids=["redis", "postgres"],
)


def judge(api, key="k"):
    """Three hits, and who decided."""
    told = [api.hit(key) for _ in range(3)]
    return [d.allowed for d in told], {d.by for d in told}


@KINDS
@PROFILES
def test_engine_down_limits_follow_the_policy(kind, profile, mode, request):
    server = request.getfixturevalue(kind)
    with backstay.sync.Backstay(server.url + QUICK, profile=profile) as stay:
        api = stay.limit("api", "2/hour")
        assert judge(api) == ([True, True, False], {"engine"})
        server.kill()
        assert judge(api, "other") == (INSTEAD[mode], {mode})
        peeked = api.peek("third")
        assert (peeked.allowed, peeked.by) == (mode != "deny", mode)
        if mode == "deny":
            denied = api.hit("other")
            assert denied.trouble
            assert 0 < denied.retry_after <= 1
            with pytest.raises(backstay.RateLimited, match="could not be checked"):
                api.wait("other", timeout=5)
        else:
            assert api.wait("fourth", timeout=5).allowed
        with pytest.raises(backstay.EngineError):
            api.reset("k")


@pytest.mark.redis
@PROFILES
def test_engine_down_for_async_callers(server, profile, mode):
    async def down():
        async with backstay.Backstay(server.url + QUICK, profile=profile) as stay:
            api = stay.limit("api", "2/hour")
            assert (await api.hit("k")).by == "engine"
            server.kill()
            told = [await api.hit("other") for _ in range(3)]
            assert [d.allowed for d in told] == INSTEAD[mode]

            @stay.limited("2/hour", key="{0}")
            async def work(key):
                return key

            if mode == "deny":
                with pytest.raises(backstay.RateLimited):
                    await work("a")
            else:
                assert await work("a") == "a"

    asyncio.run(down())


@PROFILES
def test_engine_down_on_sqlite(tmp_path, profile, mode):
    """Down means here: a process that stopped inside a transaction keeps the file."""
    path = tmp_path / "down.db"
    with backstay.sync.Backstay(f"sqlite:///{path}?timeout=0.2", profile=profile) as stay:
        api = stay.limit("api", "2/hour")
        assert api.hit("k").by == "engine"
        blocker = sqlite3.connect(path, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        assert judge(api, "other") == (INSTEAD[mode], {mode})
        blocker.execute("ROLLBACK")
        blocker.close()
        assert eventually(lambda: api.peek("third").by == "engine")


@pytest.mark.parametrize("fault", ["refuse", "blackhole"])
@KINDS
@PROFILES
def test_partition_exceeds_the_limit_only_by_policy(kind, profile, mode, fault, request):
    """A process cut off from the engine follows its policy; the engine keeps counting for all other processes."""
    server = request.getfixturevalue(kind)
    with (
        FaultProxy(server.port) as proxy,
        backstay.sync.Backstay(proxy.instead_of(server.url) + QUICK, profile=profile) as cut_off,
        backstay.sync.Backstay(server.url) as stay,
    ):
        theirs, ours = cut_off.limit("api", "2/hour"), stay.limit("api", "2/hour")
        assert theirs.hit("k").count == 1
        proxy.refuse() if fault == "refuse" else proxy.rule("blackhole")
        assert ours.hit("k").count == 2
        assert [theirs.hit("k").allowed for _ in range(3)] == INSTEAD[mode]
        assert not ours.hit("k").allowed  # the engine's count is its own
        proxy.heal()
        proxy.cut_all()
        assert eventually(lambda: theirs.peek("k").by == "engine")
        assert not theirs.hit("k").allowed


@pytest.mark.timed
@pytest.mark.redis
def test_a_silent_engine_delays_a_hit_only_briefly(server):
    """After the first has waited in vain, the policy answers at once; one in a while looks again."""
    with (
        FaultProxy(server.port) as proxy,
        backstay.sync.Backstay(proxy.instead_of(server.url) + "?timeout=1", profile=backstay.MAX_AVAILABILITY) as stay,
    ):
        api = stay.limit("api", "1000/hour")
        api.hit("k")
        proxy.rule("blackhole")
        api.hit("k")
        began = steady()
        for _ in range(100):
            assert api.hit("k").by == "local"
        assert steady() - began < 0.45  # less than the pause: the engine was not asked


@KINDS
def test_locally_admitted_hits_are_reported_when_the_engine_returns(kind, request):
    server = request.getfixturevalue(kind)
    with (
        FaultProxy(server.port) as proxy,
        backstay.sync.Backstay(proxy.instead_of(server.url) + QUICK, profile=backstay.MAX_AVAILABILITY) as cut_off,
        backstay.sync.Backstay(server.url) as stay,
    ):
        rates = {"fixed": "10/hour", "sliding": "10/hour", "sliding-counter": "10/hour", "gcra": "10/hour"}
        views = {name: (cut_off.limit(name, rate, "99/day", algorithm=name), name) for name, rate in rates.items()}
        for api, _ in views.values():
            api.hit("k", 2)
        proxy.refuse()
        for api, _ in views.values():
            assert [api.hit("k", 3).by for _ in range(2)] == ["local", "local"]
        proxy.heal()
        assert eventually(lambda: views["fixed"][0].peek("other").by == "engine")
        for name, rate in rates.items():
            seen = stay.limit(name, rate, "99/day", algorithm=name).peek("k")
            assert (seen.count, seen.remaining) == (8, 2), name
        assert cut_off.telemetry.counts["limit.back"] == 1


@EACH_PROFILE
def test_process_crash_counts_are_intact(engine_url, profile, namespace):
    if engine_url == "memory://":
        pytest.skip("dies with its process")
    taker = "import sys; from backstay.sync import Backstay; stay = Backstay(sys.argv[1], namespace=sys.argv[2]);"
    taker += "stay.limit('api', '5/hour').hit('k', 3); import os; os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", taker, engine_url, namespace], check=False, timeout=60)
    with backstay.sync.Backstay(engine_url, namespace=namespace, profile=profile) as stay:
        api = stay.limit("api", "5/hour")
        seen = api.peek("k")
        assert (seen.count, seen.by) == (3, "engine")


@pytest.mark.redis
@EACH_PROFILE
@pytest.mark.parametrize("aof", [True, False])
def test_engine_restart_counts_are_as_durable_as_redis(aof, profile):
    server = RedisServer(port=lasting_port(), aof=aof)
    try:
        started_or_skip(server)
        with backstay.sync.Backstay(server.url, profile=profile) as stay:
            api = stay.limit("api", "5/hour")
            api.hit("k", 3)
            server.restart()
            assert eventually(lambda: api.peek("k").by == "engine")
            assert api.peek("k").count == (3 if aof else 0)
    finally:
        server.stop()


@pytest.mark.postgres
@EACH_PROFILE
def test_engine_restart_counts_survive_on_postgres(postgres, profile):
    with backstay.sync.Backstay(postgres.url, profile=profile) as stay:
        api = stay.limit("api", "5/hour")
        api.hit("k", 3)
        postgres.restart()
        assert eventually(lambda: api.peek("k").by == "engine")
        assert api.peek("k").count == 3


@pytest.mark.redis
@pytest.mark.parametrize("loss", ["drop", "cut-after", "cut-before"])
def test_a_lost_reply_counts_too_much_never_too_little(server, loss):
    """A hit whose reply was lost is sent again: the caller gets a decision, and the limit is never exceeded."""
    with (
        FaultProxy(server.port) as proxy,
        backstay.sync.Backstay(proxy.instead_of(server.url) + "?timeout=0.5") as stay,  # a longer silence is an answer
        backstay.sync.Backstay(server.url) as truth,
    ):
        api, real = stay.limit("api", "10/hour"), truth.limit("api", "10/hour")
        allowed = lost = 0
        while True:
            rule = proxy.once(loss, b"EVALSHA") if allowed % 3 == 1 else None
            decision = api.hit("k")
            lost += rule is not None and rule.struck.is_set()
            proxy.heal()
            assert decision.by == "engine"
            if not decision.allowed:
                break
            allowed += 1
        assert real.peek("k").count == 10
        assert 10 - lost <= allowed <= 10
        assert allowed == (10 if loss == "cut-before" else 10 - lost)
        assert lost


@pytest.mark.redis
def test_a_refund_whose_reply_is_lost_is_not_sent_again(server):
    with (
        FaultProxy(server.port) as proxy,
        backstay.sync.Backstay(proxy.instead_of(server.url) + QUICK) as stay,
        backstay.sync.Backstay(server.url) as truth,
    ):
        api = stay.limit("api", "10/hour")
        api.hit("k", 5)
        api.refund("other")  # the server knows the script
        proxy.once("cut-after", b"EVALSHA")
        with pytest.raises(backstay.OutcomeUnknown):
            api.refund("k", 2)
        assert truth.limit("api", "10/hour").peek("k").count == 3


@pytest.mark.redis
def test_a_cancelled_wait_refunds_its_hit(server):
    async def cancel():
        async with backstay.Backstay(server.url) as stay:
            for nth, algorithm in enumerate(("fixed", "sliding", "sliding-counter", "token-bucket", "gcra"), 1):
                api = stay.limit("api", "1/hour", algorithm=algorithm)
                await api.hit("k")
                before = await api.peek("k")
                task = asyncio.create_task(api.wait("k"))
                assert await soon(lambda nth=nth: asyncio.sleep(0, stay.telemetry.counts["limit.waiting"] == nth))
                behind = await api.peek("k")
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                after = await api.peek("k")
                assert behind.at + behind.retry_after >= before.at + before.retry_after + 3500, algorithm
                assert after.at + after.retry_after <= before.at + before.retry_after + 0.001, algorithm

    asyncio.run(cancel())


@pytest.mark.redis
def test_closing_the_backstay_raises_in_waiting_callers(server):
    async def close():
        stay = await backstay.Backstay(server.url).open()
        api = stay.limit("api", "1/hour")
        await api.hit("k")
        task = asyncio.create_task(api.wait("k"))
        assert await soon(lambda: asyncio.sleep(0, stay.telemetry.counts["limit.waiting"]))
        await stay.close()
        with pytest.raises(backstay.Closed):
            await task

    asyncio.run(close())

    stay = backstay.sync.Backstay(server.url).open()
    api = stay.limit("api", "1/hour")
    raised = []

    def wait():
        try:
            api.wait("k")
        except backstay.Closed as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert eventually(lambda: stay.telemetry.counts["limit.waiting"])
    stay.close()
    thread.join(WITHIN)
    assert raised
