"""The failure matrix of the guarantees, column idempotency: one test for each cell, on each engine that can fail so."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading

import pytest

import backstay
import backstay.sync
from backstay.testing.plugin import started_or_skip
from backstay.testing.proxy import FaultProxy
from backstay.testing.servers import RedisServer
from backstay.testing.servers.ports import lasting_port
from backstay.testing.servers.postgres import PostgresServer
from backstay.testing.waiting import eventually, soon

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

PROFILES = {
    "balanced": backstay.BALANCED,
    "safety": backstay.MAX_SAFETY,
    "availability": backstay.MAX_AVAILABILITY,
}
REDIS = pytest.param("redis", marks=pytest.mark.redis)
POSTGRES = pytest.param("postgres", marks=pytest.mark.postgres)

#: Runs "x" forever; prints a line when it has begun.
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


@pytest.fixture
def redis():
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


@pytest.fixture(params=PROFILES.values(), ids=PROFILES)
def profile(request):
    return request.param


@pytest.fixture(params=["sqlite", REDIS, POSTGRES])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/matrix.db"
    return request.getfixturevalue(request.param).url


class Down:
    """An engine that is there, then away, then there again."""

    def __init__(self, kind, request, tmp_path):
        self._kind = kind
        if kind == "sqlite":  # away means here: a process that stopped inside a transaction keeps the file
            self._path = tmp_path / "down.db"
            self.url = f"sqlite:///{self._path}?timeout=0.1"
        else:
            self._server = request.getfixturevalue(kind)
            self.url = self._server.url

    def go(self):
        if self._kind == "sqlite":
            self._blocker = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            self._blocker.execute("BEGIN IMMEDIATE")
        else:
            self._server.kill()

    def come_back(self):
        if self._kind == "sqlite":
            self._blocker.execute("ROLLBACK")
            self._blocker.close()
        else:
            self._server.restart()


@pytest.fixture(params=["sqlite", REDIS, POSTGRES])
def engine(request, tmp_path):
    return Down(request.param, request, tmp_path)


def test_engine_down_calls_are_refused_or_run_by_profile(engine, profile):
    ran = []
    with backstay.sync.Backstay(engine.url, profile=profile) as stay:
        stay.idempotency.run("before", lambda: 1)
        engine.go()
        if profile is backstay.MAX_AVAILABILITY:
            assert stay.idempotency.run("x", lambda: ran.append("unprotected")) is None
            assert stay.telemetry.counts["idempotency.unprotected"] == 1
        else:
            with pytest.raises(backstay.EngineError):
                stay.idempotency.run("x", lambda: ran.append("unprotected"))
        assert len(ran) == (1 if profile is backstay.MAX_AVAILABILITY else 0)
        engine.come_back()
        assert stay.idempotency.run("y", lambda: 2) == 2


@pytest.mark.redis
def test_engine_down_a_call_may_override_its_profile(redis):
    with (
        backstay.sync.Backstay(redis.url) as careful,
        backstay.sync.Backstay(redis.url, profile=backstay.MAX_AVAILABILITY) as bold,
    ):
        redis.kill()
        assert careful.idempotency.run("x", lambda: 1, on_unavailable="allow") == 1
        with pytest.raises(backstay.EngineError):
            bold.idempotency.run("x", lambda: 1, on_unavailable="raise")

        async def same():
            stay = backstay.Backstay(redis.url, profile=backstay.MAX_AVAILABILITY)
            answer = await stay.idempotency.run("x", lambda: asyncio.sleep(0, "ran"))
            await stay.close()
            return answer

        assert asyncio.run(same()) == "ran"


def test_engine_down_while_a_call_runs_its_outcome_is_kept_when_the_engine_is_back(engine, profile):
    """The keeper keeps resending the outcome; the profile decides whether the caller gets the error."""
    with backstay.sync.Backstay(engine.url, profile=profile) as stay:

        def work():
            engine.go()
            return "done"

        if profile is backstay.MAX_AVAILABILITY:
            assert stay.idempotency.run("x", work) == "done"
        else:
            with pytest.raises(backstay.OutcomeUnknown, match="ran"):
                stay.idempotency.run("x", work)
        engine.come_back()
        if not engine.url.startswith("redis"):  # which forgets in a restart
            assert eventually(lambda: stay.idempotency.inspect("x").state == "completed", 20)
            assert stay.idempotency.run("x", lambda: pytest.fail("it ran")) == "done"


@pytest.mark.parametrize("kind", [REDIS, POSTGRES])
def test_partition_the_fenced_completion_keeps_one_result(kind, profile, request):
    """Cut off, an owner is overtaken; what it answers afterwards is refused. Under `allow` both have run."""
    server = request.getfixturevalue(kind)
    ran = []
    with (
        FaultProxy(server.port) as proxy,
        backstay.sync.Backstay(proxy.instead_of(server.url) + "?timeout=2", profile=profile) as cut_off,
        backstay.sync.Backstay(server.url, profile=profile) as stay,
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
def test_partition_an_async_call_is_cancelled_when_its_lease_is_lost(redis):
    """Unless it is allowed to go on: then it ends, and its outcome is refused all the same."""

    async def play(profile):
        seen = []
        with FaultProxy(redis.port) as proxy:
            url = proxy.instead_of(redis.url) + "?timeout=0.2"
            async with backstay.Backstay(url, profile=profile) as cut_off, backstay.Backstay(redis.url) as stay:
                await stay.idempotency.forget("x")
                may_end = asyncio.Event()

                async def work():
                    proxy.rule("blackhole")
                    try:
                        await may_end.wait()
                    except asyncio.CancelledError:
                        seen.append("cancelled")
                        raise
                    return "stale"

                call = asyncio.create_task(cut_off.idempotency.run("x", work, lease=1))
                assert await soon(lambda: asyncio.sleep(0, cut_off.telemetry.counts["idempotency.begun"]))
                assert await stay.idempotency.run("x", lambda: "fresh", wait=20) == "fresh"
                if profile is backstay.BALANCED:
                    assert await soon(lambda: asyncio.sleep(0, seen))
                proxy.heal()
                may_end.set()
                with pytest.raises(backstay.LeaseLost):
                    await call
        return seen

    assert asyncio.run(play(backstay.BALANCED)) == ["cancelled"]
    assert asyncio.run(play(backstay.MAX_AVAILABILITY)) == []


@pytest.fixture
def owner(url, profile):
    """Another process that runs "x" until it is stopped."""
    name = next(name for name in ("BALANCED", "MAX_SAFETY", "MAX_AVAILABILITY") if getattr(backstay, name) is profile)
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, url, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "begun\n"
    yield process
    process.kill()
    process.communicate()


def test_process_crash_one_contender_takes_over(owner, url, profile):
    ran = []
    with backstay.sync.Backstay(url, profile=profile) as stay:
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


def test_process_crash_of_a_live_owner_is_not_assumed(owner, url, profile):
    with backstay.sync.Backstay(url, profile=profile) as stay, pytest.raises(backstay.InProgress):
        stay.idempotency.run("x", lambda: pytest.fail("it ran"), wait=4)


def test_process_crash_a_paused_owner_that_resumes_cannot_overwrite(owner, url, profile):
    os.kill(owner.pid, signal.SIGSTOP)
    with backstay.sync.Backstay(url, profile=profile) as stay:
        assert stay.idempotency.run("x", lambda: "fresh", wait=20) == "fresh"
        os.kill(owner.pid, signal.SIGCONT)
        owner.stdin.write("\n")
        owner.stdin.flush()
        assert owner.stdout.readline() == "LeaseLost\n"
        assert stay.idempotency.run("x", lambda: "third") == "fresh"


def test_process_crash_a_paused_owner_without_a_successor_stores_its_outcome(owner, url, profile):
    """Its lease has ended, but no other outcome exists: it is stored, so that no caller runs the function again."""
    os.kill(owner.pid, signal.SIGSTOP)
    with backstay.sync.Backstay(url, profile=profile) as stay:
        assert eventually(lambda: stay.idempotency.inspect("x").state == "lapsed")
        os.kill(owner.pid, signal.SIGCONT)
        owner.stdin.write("\n")
        owner.stdin.flush()
        assert owner.stdout.readline() == "stale\n"
        assert stay.idempotency.run("x", lambda: pytest.fail("it ran")) == "stale"


@pytest.mark.redis
def test_engine_restart_without_aof_outcomes_are_lost(redis, profile):
    with backstay.sync.Backstay(redis.url, profile=profile) as stay:
        stay.idempotency.run("x", lambda: "first")
        redis.restart()
        assert stay.idempotency.run("x", lambda: "second") == "second"


@pytest.mark.redis
def test_engine_restart_with_aof_outcomes_survive(profile):
    server = RedisServer(port=lasting_port(), aof=True)
    try:
        started_or_skip(server)
        with backstay.sync.Backstay(server.url, profile=profile) as stay:
            stay.idempotency.run("x", lambda: "first")
            server.restart()
            assert stay.idempotency.run("x", lambda: "second") == "first"
    finally:
        server.stop()


@pytest.mark.postgres
def test_engine_restart_on_postgres_outcomes_and_running_calls_survive(postgres, profile):
    with backstay.sync.Backstay(postgres.url, profile=profile) as stay:
        stay.idempotency.run("x", lambda: "first")

        def work():
            postgres.restart()
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
