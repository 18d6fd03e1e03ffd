"""State in SQLite, hints over Redis: handoffs are fast with Redis and correct without it."""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
from contextlib import closing

import pytest

from backstay.engine.base import steady
from backstay.testing.conformance import CrashSuite, ProcessDriver
from backstay.testing.conformance.gate.cases import enter
from backstay.testing.servers import RedisServer

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("hub") / "gates.db"


@pytest.fixture(scope="module")
def url(file):
    return f"sqlite:///{file}?synchronous=normal"


@pytest.fixture(scope="module")
def driver(url, backstay_redis):
    with ProcessDriver(url, hub=backstay_redis.url) as driver:
        yield driver


class TestCrashes(CrashSuite):
    pass


@pytest.mark.timed
def test_a_waiter_in_another_process_is_woken_over_redis(driver, file):
    """The handoff takes far less than a recheck, so the hint caused it; the hint was not stored in SQLite."""
    took = []

    async def hand_over(stage):
        holder, waiter = await stage.actors(2)
        for _ in range(10):
            held = await holder.acquire("baton")
            place = await enter(holder, waiter, "baton")
            began = steady()
            await holder.release(held)
            grant = await place
            took.append(steady() - began)
            await waiter.release(grant)

    driver.play(hand_over)
    assert statistics.median(took) < 0.1, took
    with closing(sqlite3.connect(file)) as db:
        assert db.execute("SELECT count(*) FROM backstay_hint").fetchone() == (0,)


async def _hand_over(stage):
    holder, waiter = await stage.actors(2)
    held = await holder.acquire("baton", ttl=5)
    place = await enter(holder, waiter, "baton")
    await holder.release(held)
    async with asyncio.timeout(30):
        assert (await place).fence > held.fence


def test_without_its_hub_a_waiter_still_acquires_in_order(url):
    with ProcessDriver(url, hub="redis://127.0.0.1:1/0?connect_timeout=0.2") as driver:
        driver.play(_hand_over)


@pytest.mark.chaos
def test_a_hub_is_used_again_after_its_server_restarts(url):
    with RedisServer() as server, ProcessDriver(url, hub=server.url) as driver:
        driver.play(_hand_over)
        server.kill()
        driver.play(_hand_over)
        server.start()
        driver.play(_hand_over)
