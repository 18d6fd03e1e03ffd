"""The failure matrix of the guarantees, column limits: one test for each cell, under the default and both profiles."""

import asyncio
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

import backstay
import backstay.sync
from backstay.engine.base import steady
from backstay.testing.proxy import FaultProxy
from backstay.testing.servers import RedisServer
from backstay.testing.servers.ports import reserve_port
from backstay.testing.waiting import WITHIN, eventually, soon
from support.servers import running

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

TIMEOUTS = "?timeout=1&connect_timeout=2"
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
DECISIONS = {"deny": [False, False, False], "allow": [True, True, True], "local": [True, True, False]}


def hit_three_times(api, key="k"):
    """Return the decisions for three hits, and the set of what decided: the engine or a policy."""
    decisions = [api.hit(key) for _ in range(3)]
    return [d.allowed for d in decisions], {d.by for d in decisions}


@PROFILES
def test_engine_down_limits_follow_the_policy(own_server, profile, mode):
    with backstay.sync.Backstay(own_server.url + TIMEOUTS, profile=profile) as stay:
        api = stay.limit("api", "2/hour")
        assert hit_three_times(api) == ([True, True, False], {"engine"})
        own_server.kill()
        assert hit_three_times(api, "other") == (DECISIONS[mode], {mode})
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
def test_engine_down_for_async_callers(own_redis, profile, mode):
    async def main():
        async with backstay.Backstay(own_redis.url + TIMEOUTS, profile=profile) as stay:
            api = stay.limit("api", "2/hour")
            assert (await api.hit("k")).by == "engine"
            own_redis.kill()
            decisions = [await api.hit("other") for _ in range(3)]
            assert [d.allowed for d in decisions] == DECISIONS[mode]

            @stay.limited("2/hour", key="{0}")
            async def work(key):
                return key

            if mode == "deny":
                with pytest.raises(backstay.RateLimited):
                    await work("a")
            else:
                assert await work("a") == "a"

    asyncio.run(main())


@PROFILES
def test_engine_down_on_sqlite(own_sqlite, profile, mode):
    with backstay.sync.Backstay(own_sqlite.url, profile=profile) as stay:
        api = stay.limit("api", "2/hour")
        assert api.hit("k").by == "engine"
        own_sqlite.stop()
        assert hit_three_times(api, "other") == (DECISIONS[mode], {mode})
        own_sqlite.start()
        assert eventually(lambda: api.peek("third").by == "engine")


@pytest.mark.parametrize("fault", ["refuse", "blackhole"])
@PROFILES
def test_partition_exceeds_the_limit_only_by_policy(own_server, profile, mode, fault):
    """A process that cannot reach the engine follows its policy; the engine keeps counting for all other processes."""
    with (
        FaultProxy(own_server.port) as proxy,
        backstay.sync.Backstay(proxy.instead_of(own_server.url) + TIMEOUTS, profile=profile) as cut_off,
        backstay.sync.Backstay(own_server.url) as stay,
    ):
        cut_off_api, api = cut_off.limit("api", "2/hour"), stay.limit("api", "2/hour")
        assert cut_off_api.hit("k").count == 1
        proxy.refuse() if fault == "refuse" else proxy.rule("blackhole")
        assert api.hit("k").count == 2
        assert [cut_off_api.hit("k").allowed for _ in range(3)] == DECISIONS[mode]
        assert not api.hit("k").allowed  # the engine does not count hits of the other process yet
        proxy.heal()
        proxy.cut_all()
        assert eventually(lambda: cut_off_api.peek("k").by == "engine")
        assert not cut_off_api.hit("k").allowed


@pytest.mark.timed
@pytest.mark.redis
def test_a_silent_engine_delays_a_hit_only_briefly(own_redis):
    """After one hit has timed out, the policy decides at once, and only now and then a hit tries the engine again."""
    profile = backstay.MAX_AVAILABILITY
    with (
        FaultProxy(own_redis.port) as proxy,
        backstay.sync.Backstay(proxy.instead_of(own_redis.url) + "?timeout=1", profile=profile) as stay,
    ):
        api = stay.limit("api", "1000/hour")
        api.hit("k")
        proxy.rule("blackhole")
        api.hit("k")
        began = steady()
        for _ in range(100):
            assert api.hit("k").by == "local"
        assert steady() - began < 0.45  # less than the pause between two tries of the engine


def test_locally_admitted_hits_are_reported_when_the_engine_returns(own_server):
    url = own_server.url
    with (
        FaultProxy(own_server.port) as proxy,
        backstay.sync.Backstay(proxy.instead_of(url) + TIMEOUTS, profile=backstay.MAX_AVAILABILITY) as cut_off,
        backstay.sync.Backstay(url) as stay,
    ):
        rates = {"fixed": "10/hour", "sliding": "10/hour", "sliding-counter": "10/hour", "gcra": "10/hour"}
        limits = {name: cut_off.limit(name, rate, "99/day", algorithm=name) for name, rate in rates.items()}
        for api in limits.values():
            api.hit("k", 2)
        proxy.refuse()
        for api in limits.values():
            assert [api.hit("k", 3).by for _ in range(2)] == ["local", "local"]
        proxy.heal()
        assert eventually(lambda: limits["fixed"].peek("other").by == "engine")
        for name, rate in rates.items():
            decision = stay.limit(name, rate, "99/day", algorithm=name).peek("k")
            assert (decision.count, decision.remaining) == (8, 2), name
        assert cut_off.telemetry.counts["limit.recovered"] == 1


@EACH_PROFILE
def test_process_crash_counts_are_intact(engine_url, profile, namespace):
    if engine_url == "memory://":
        pytest.skip("its data ends with the process")
    program = "import sys; from backstay.sync import Backstay; stay = Backstay(sys.argv[1], namespace=sys.argv[2]);"
    program += "stay.limit('api', '5/hour').hit('k', 3); import os; os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", program, engine_url, namespace], check=False, timeout=60)
    with backstay.sync.Backstay(engine_url, namespace=namespace, profile=profile) as stay:
        api = stay.limit("api", "5/hour")
        decision = api.peek("k")
        assert (decision.count, decision.by) == (3, "engine")


def count_after_restart(server, profile):
    with backstay.sync.Backstay(server.url, profile=profile) as stay:
        api = stay.limit("api", "5/hour")
        api.hit("k", 3)
        server.restart()
        assert eventually(lambda: api.peek("k").by == "engine")
        return api.peek("k").count


@pytest.mark.redis
@EACH_PROFILE
@pytest.mark.parametrize("aof", [True, False])
def test_engine_restart_counts_are_as_durable_as_redis(aof, profile):
    with running(RedisServer(port=reserve_port(), aof=aof)) as server:
        assert count_after_restart(server, profile) == (3 if aof else 0)


@pytest.mark.postgres
@EACH_PROFILE
def test_engine_restart_counts_survive_on_postgres(own_postgres, profile):
    assert count_after_restart(own_postgres, profile) == 3


@pytest.mark.redis
@pytest.mark.parametrize("loss", ["drop", "cut-after", "cut-before"])
def test_a_lost_reply_counts_too_much_never_too_little(own_redis, loss):
    """A hit whose reply was lost is sent again: the caller gets a decision, and the limit is never exceeded."""
    with (
        FaultProxy(own_redis.port) as proxy,
        # A hit without a reply for longer than this is decided by the policy instead of being sent again.
        backstay.sync.Backstay(proxy.instead_of(own_redis.url) + "?timeout=0.5") as stay,
        backstay.sync.Backstay(own_redis.url) as direct,
    ):
        api, direct_api = stay.limit("api", "10/hour"), direct.limit("api", "10/hour")
        allowed = lost = 0
        while True:
            rule = proxy.once(loss, b"EVALSHA") if allowed % 3 == 1 else None
            decision = api.hit("k")
            lost += rule is not None and rule.applied.is_set()
            proxy.heal()
            assert decision.by == "engine"
            if not decision.allowed:
                break
            allowed += 1
        assert direct_api.peek("k").count == 10
        assert 10 - lost <= allowed <= 10
        assert allowed == (10 if loss == "cut-before" else 10 - lost)
        assert lost


@pytest.mark.redis
def test_a_refund_whose_reply_is_lost_is_not_sent_again(own_redis):
    with (
        FaultProxy(own_redis.port) as proxy,
        backstay.sync.Backstay(proxy.instead_of(own_redis.url) + TIMEOUTS) as stay,
        backstay.sync.Backstay(own_redis.url) as direct,
    ):
        api = stay.limit("api", "10/hour")
        api.hit("k", 5)
        api.refund("other")  # loads the script, so that the next refund sends only its hash
        proxy.once("cut-after", b"EVALSHA")
        with pytest.raises(backstay.OutcomeUnknown):
            api.refund("k", 2)
        assert direct.limit("api", "10/hour").peek("k").count == 3


@pytest.mark.redis
def test_a_cancelled_wait_refunds_its_hit(own_redis):
    async def cancel():
        async with backstay.Backstay(own_redis.url) as stay:
            for nth, algorithm in enumerate(("fixed", "sliding", "sliding-counter", "token-bucket", "gcra"), 1):
                api = stay.limit("api", "1/hour", algorithm=algorithm)
                await api.hit("k")
                before = await api.peek("k")
                task = asyncio.create_task(api.wait("k"))
                assert await soon(lambda nth=nth: asyncio.sleep(0, stay.telemetry.counts["limit.waiting"] == nth))
                waiting = await api.peek("k")
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                after = await api.peek("k")
                assert waiting.at + waiting.retry_after >= before.at + before.retry_after + 3500, algorithm
                assert after.at + after.retry_after <= before.at + before.retry_after + 0.001, algorithm

    asyncio.run(cancel())


@pytest.mark.redis
def test_closing_the_backstay_raises_in_waiting_callers(own_redis):
    async def close():
        stay = await backstay.Backstay(own_redis.url).open()
        api = stay.limit("api", "1/hour")
        await api.hit("k")
        task = asyncio.create_task(api.wait("k"))
        assert await soon(lambda: asyncio.sleep(0, stay.telemetry.counts["limit.waiting"]))
        await stay.close()
        with pytest.raises(backstay.Closed):
            await task

    asyncio.run(close())

    stay = backstay.sync.Backstay(own_redis.url).open()
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
