"""The failure matrix of the guarantees, column idempotency: one test for each cell, on each engine that can fail so."""

import asyncio
import os
import signal
import subprocess
import sys
import threading

import pytest

import backstay
import backstay.sync
from backstay.testing.proxy import FaultProxy
from backstay.testing.servers import RedisServer
from backstay.testing.servers.ports import reserve_port
from backstay.testing.waiting import eventually, soon
from support.servers import running

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

PROFILES = {
    "balanced": backstay.BALANCED,
    "safety": backstay.MAX_SAFETY,
    "availability": backstay.MAX_AVAILABILITY,
}

#: A program that calls "x", prints a line when the function has begun, and returns after a line on standard input.
OWNER = """
import sys
import backstay
from backstay.sync import Backstay
stay = Backstay(sys.argv[1], profile=getattr(backstay, sys.argv[2]))

def work():
    print("begun", flush=True)
    sys.stdin.readline()
    return "stale"

try:
    print(stay.idempotency.run("x", work, lease=2), flush=True)
except Exception as error:
    print(type(error).__name__, flush=True)
"""


@pytest.fixture(params=PROFILES.values(), ids=PROFILES)
def profile(request):
    return request.param


def test_engine_down_calls_are_refused_or_run_by_profile(own_engine, profile):
    ran = []
    with backstay.sync.Backstay(own_engine.url, profile=profile) as stay:
        stay.idempotency.run("before", lambda: 1)
        own_engine.stop()
        if profile is backstay.MAX_AVAILABILITY:
            assert stay.idempotency.run("x", lambda: ran.append("unprotected")) is None
            assert stay.telemetry.counts["idempotency.unprotected"] == 1
        else:
            with pytest.raises(backstay.EngineError):
                stay.idempotency.run("x", lambda: ran.append("unprotected"))
        assert len(ran) == (1 if profile is backstay.MAX_AVAILABILITY else 0)
        own_engine.start()
        assert stay.idempotency.run("y", lambda: 2) == 2


@pytest.mark.redis
def test_engine_down_a_call_may_override_its_profile(own_redis):
    with (
        backstay.sync.Backstay(own_redis.url) as balanced,
        backstay.sync.Backstay(own_redis.url, profile=backstay.MAX_AVAILABILITY) as available,
    ):
        own_redis.kill()
        assert balanced.idempotency.run("x", lambda: 1, on_unavailable="allow") == 1
        with pytest.raises(backstay.EngineError):
            available.idempotency.run("x", lambda: 1, on_unavailable="raise")

        async def run_async():
            stay = backstay.Backstay(own_redis.url, profile=backstay.MAX_AVAILABILITY)
            outcome = await stay.idempotency.run("x", lambda: asyncio.sleep(0, "ran"))
            await stay.close()
            return outcome

        assert asyncio.run(run_async()) == "ran"


def test_engine_down_while_a_call_runs_its_outcome_is_kept_when_the_engine_is_back(own_engine, profile):
    """The keeper keeps resending the outcome; the profile decides whether the caller gets the error."""
    with backstay.sync.Backstay(own_engine.url, profile=profile) as stay:

        def work():
            own_engine.stop()
            return "done"

        if profile is backstay.MAX_AVAILABILITY:
            assert stay.idempotency.run("x", work) == "done"
        else:
            with pytest.raises(backstay.OutcomeUnknown, match="ran"):
                stay.idempotency.run("x", work)
        own_engine.start()
        if not own_engine.url.startswith("redis"):  # this Redis loses its data in the restart
            assert eventually(lambda: stay.idempotency.inspect("x").state == "completed", 20)
            assert stay.idempotency.run("x", lambda: pytest.fail("it ran")) == "done"


def test_partition_the_fenced_completion_keeps_one_result(own_server, profile):
    """An owner that cannot reach the server is superseded, and its outcome is refused. Both functions have run."""
    ran = []
    with (
        FaultProxy(own_server.port) as proxy,
        backstay.sync.Backstay(proxy.instead_of(own_server.url) + "?timeout=2", profile=profile) as cut_off,
        backstay.sync.Backstay(own_server.url, profile=profile) as stay,
    ):
        may_end = threading.Event()
        outcome = []

        def work():
            ran.append("cut off")
            proxy.rule("blackhole")
            may_end.wait(30)
            return "stale"

        def call():
            try:
                outcome.append(cut_off.idempotency.run("x", work, lease=1))
            except backstay.BackstayError as error:
                outcome.append(type(error))

        thread = threading.Thread(target=call)
        thread.start()
        assert eventually(lambda: ran)
        assert stay.idempotency.run("x", lambda: ran.append("fresh") or "fresh", wait=20) == "fresh"
        proxy.heal()
        may_end.set()
        thread.join()
        assert ran == ["cut off", "fresh"]
        assert outcome == [backstay.LeaseLost]
        assert stay.idempotency.run("x", lambda: "third") == "fresh"


@pytest.mark.redis
def test_partition_an_async_call_is_cancelled_when_its_lease_is_lost(own_redis):
    """Under MAX_AVAILABILITY it runs to its end, and its outcome is refused nevertheless."""

    async def call_with(profile):
        events = []
        with FaultProxy(own_redis.port) as proxy:
            url = proxy.instead_of(own_redis.url) + "?timeout=0.2"
            async with backstay.Backstay(url, profile=profile) as cut_off, backstay.Backstay(own_redis.url) as stay:
                await stay.idempotency.forget("x")
                may_end = asyncio.Event()

                async def work():
                    proxy.rule("blackhole")
                    try:
                        await may_end.wait()
                    except asyncio.CancelledError:
                        events.append("cancelled")
                        raise
                    return "stale"

                call = asyncio.create_task(cut_off.idempotency.run("x", work, lease=1))
                assert await soon(lambda: asyncio.sleep(0, cut_off.telemetry.counts["idempotency.begun"]))
                assert await stay.idempotency.run("x", lambda: "fresh", wait=20) == "fresh"
                if profile is backstay.BALANCED:
                    assert await soon(lambda: asyncio.sleep(0, events))
                proxy.heal()
                may_end.set()
                with pytest.raises(backstay.LeaseLost):
                    await call
        return events

    assert asyncio.run(call_with(backstay.BALANCED)) == ["cancelled"]
    assert asyncio.run(call_with(backstay.MAX_AVAILABILITY)) == []


@pytest.fixture
def owner(own_url, profile):
    """Another process that runs "x" until the test ends it."""
    name = next(name for name in ("BALANCED", "MAX_SAFETY", "MAX_AVAILABILITY") if getattr(backstay, name) is profile)
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, own_url, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "begun\n"
    yield process
    process.kill()
    process.communicate()


def test_process_crash_one_contender_takes_over(owner, own_url, profile):
    ran = []
    with backstay.sync.Backstay(own_url, profile=profile) as stay:
        with pytest.raises(backstay.InProgress):
            stay.idempotency.run("x", lambda: 1, wait=0)
        outcomes = []
        threads = [
            threading.Thread(target=lambda i=i: outcomes.append(stay.idempotency.run("x", lambda: ran.append(i) or i)))
            for i in range(6)
        ]
        for thread in threads:
            thread.start()
        assert eventually(lambda: stay.idempotency.inspect("x").waiters == 6)
        owner.kill()
        for thread in threads:
            thread.join()
        assert len(ran) == 1
        assert outcomes == ran * 6


def test_process_crash_of_a_live_owner_is_not_assumed(owner, own_url, profile):
    with backstay.sync.Backstay(own_url, profile=profile) as stay, pytest.raises(backstay.InProgress):
        stay.idempotency.run("x", lambda: pytest.fail("it ran"), wait=4)


def test_process_crash_a_paused_owner_that_resumes_cannot_overwrite(owner, own_url, profile):
    os.kill(owner.pid, signal.SIGSTOP)
    with backstay.sync.Backstay(own_url, profile=profile) as stay:
        assert stay.idempotency.run("x", lambda: "fresh", wait=20) == "fresh"
        os.kill(owner.pid, signal.SIGCONT)
        owner.stdin.write("\n")
        owner.stdin.flush()
        assert owner.stdout.readline() == "LeaseLost\n"
        assert stay.idempotency.run("x", lambda: "third") == "fresh"


def test_process_crash_a_paused_owner_without_a_successor_stores_its_outcome(owner, own_url, profile):
    """Its lease has ended, but no other outcome exists: it is stored, so that no caller runs the function again."""
    os.kill(owner.pid, signal.SIGSTOP)
    with backstay.sync.Backstay(own_url, profile=profile) as stay:
        assert eventually(lambda: stay.idempotency.inspect("x").state == "lapsed")
        os.kill(owner.pid, signal.SIGCONT)
        owner.stdin.write("\n")
        owner.stdin.flush()
        assert owner.stdout.readline() == "stale\n"
        assert stay.idempotency.run("x", lambda: pytest.fail("it ran")) == "stale"


@pytest.mark.redis
def test_engine_restart_without_aof_outcomes_are_lost(own_redis, profile):
    with backstay.sync.Backstay(own_redis.url, profile=profile) as stay:
        stay.idempotency.run("x", lambda: "first")
        own_redis.restart()
        assert stay.idempotency.run("x", lambda: "second") == "second"


@pytest.mark.redis
def test_engine_restart_with_aof_outcomes_survive(profile):
    with (
        running(RedisServer(port=reserve_port(), aof=True)) as server,
        backstay.sync.Backstay(server.url, profile=profile) as stay,
    ):
        stay.idempotency.run("x", lambda: "first")
        server.restart()
        assert stay.idempotency.run("x", lambda: "second") == "first"


@pytest.mark.postgres
def test_engine_restart_on_postgres_outcomes_and_running_calls_survive(own_postgres, profile):
    with backstay.sync.Backstay(own_postgres.url, profile=profile) as stay:
        stay.idempotency.run("x", lambda: "first")

        def work():
            own_postgres.restart()
            return "through a restart"

        assert stay.idempotency.run("y", work) == "through a restart"
        assert stay.idempotency.run("x", lambda: "second") == "first"
        assert stay.idempotency.run("y", lambda: "second") == "through a restart"


def test_engine_restart_means_nothing_to_sqlite(tmp_path, profile):
    url = f"sqlite:///{tmp_path}/a.db"
    for _ in range(2):
        with backstay.sync.Backstay(url, profile=profile) as stay:
            assert stay.idempotency.run("x", os.getpid) == os.getpid()
    with backstay.sync.Backstay(url, profile=profile) as stay:
        assert stay.idempotency.run("x", lambda: pytest.fail("it ran")) == os.getpid()
