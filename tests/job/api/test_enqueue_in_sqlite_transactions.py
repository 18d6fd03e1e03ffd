"""Jobs enqueued in a caller's SQLite transaction: refused connections, deadlocks, threads, tasks."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import uuid

import pytest
from order_database import define_ship

import backstay
import backstay.sync
from backstay import ConfigError, WouldDeadlock
from backstay.testing.waiting import WITHIN, eventually
from support.app import working
from support.event_loop import on_a_loop


def test_a_connection_to_another_file_is_refused(sqlite_database, tmp_path):
    db = sqlite3.connect(tmp_path / "other.db")
    with pytest.raises(ConfigError, match="one file"):
        sqlite_database.enqueue(db, 1)
    with pytest.raises(ConfigError, match="one file"), sqlite_database.stay.transaction(db):
        pass
    memory = sqlite3.connect(":memory:")
    with pytest.raises(ConfigError, match="memory"):
        sqlite_database.enqueue(memory, 1)
    db.close()
    memory.close()


def test_the_memory_engine_refuses_foreign_transactions():
    with backstay.sync.Backstay("memory://") as stay:

        @stay.job()
        def ship() -> None: ...

        db = sqlite3.connect(":memory:")
        with pytest.raises(ConfigError, match="sqlite:///"):
            ship.options(connection=db).enqueue()
        db.close()


def test_a_stale_snapshot_is_refused_with_a_remedy(sqlite_database):
    db = sqlite_database.connect(isolation_level=None)
    db.execute("BEGIN")
    db.execute("SELECT * FROM backstay_clock").fetchall()
    sqlite_database.ship.enqueue(1)
    with pytest.raises(ConfigError, match="BEGIN IMMEDIATE"):
        sqlite_database.enqueue(db, 2)
    db.execute("ROLLBACK")
    db.close()


def test_other_calls_inside_the_block_raise_would_deadlock(sqlite_database, sqlite_db):
    with sqlite_database.stay.transaction(sqlite_db):
        sqlite_database.enqueue(sqlite_db, 1)
        with pytest.raises(WouldDeadlock, match="connection="):
            sqlite_database.ship.enqueue(2)
        with pytest.raises(WouldDeadlock):
            sqlite_database.stay.lock("x").acquire(wait=0)
    assert sqlite_database.stay.lock("x").acquire(wait=0).release().released
    assert sqlite_database.orders() == [1]


def test_other_calls_raise_would_deadlock_until_the_transaction_of_a_bare_connection_ends(sqlite_database, sqlite_db):
    sqlite_database.enqueue(sqlite_db, 1)
    with pytest.raises(WouldDeadlock):
        sqlite_database.stay.jobs.list()
    sqlite_db.rollback()
    assert sqlite_database.orders() == []


def test_a_call_in_another_thread_waits_for_the_commit(sqlite_database, sqlite_db):
    done = threading.Event()

    def enqueue_in_thread():
        sqlite_database.ship.enqueue(2)
        done.set()

    with sqlite_database.stay.transaction(sqlite_db):
        sqlite_database.enqueue(sqlite_db, 1)
        thread = threading.Thread(target=enqueue_in_thread)
        thread.start()
        assert not done.wait(0.1)
    assert done.wait(WITHIN)
    thread.join(WITHIN)
    assert sqlite_database.orders() == [1, 2]


@on_a_loop
async def test_a_commit_on_a_bare_connection_is_found_at_the_next_poll(tmp_path):
    async with backstay.Backstay(f"sqlite:///{tmp_path / 'database.db'}") as stay:
        ship = define_ship(stay)

        async with working(stay):
            db = sqlite3.connect(tmp_path / "database.db")
            handle = await ship.options(connection=db).enqueue(7)
            db.commit()
            assert await handle.result(WITHIN) == 7
            db.close()


@on_a_loop
async def test_the_async_block_wakes_a_worker_at_once(tmp_path):
    async with backstay.Backstay(f"sqlite:///{tmp_path / 'database.db'}") as stay:
        ship = define_ship(stay)

        async with working(stay):
            db = sqlite3.connect(tmp_path / "database.db")
            for order in range(5):
                async with stay.transaction(db):
                    handle = await ship.options(connection=db).enqueue(order)
                assert await handle.result(WITHIN) == order
            db.close()


@pytest.mark.redis
def test_redis_refuses_a_sql_transaction(backstay_redis):
    with backstay.sync.Backstay(backstay_redis.url, namespace=uuid.uuid4().hex[:12]) as stay:

        @stay.job()
        def ship() -> None: ...

        db = sqlite3.connect(":memory:")
        with pytest.raises(ConfigError, match="Redis cannot take part"):
            ship.options(connection=db).enqueue()
        with pytest.raises(ConfigError, match="Redis cannot take part"):
            stay.transaction(db)
        db.close()


def test_notifications_are_discarded_when_a_thread_rolls_back(sqlite_database):
    """Blocks of two threads keep their announcements separate."""
    barrier = threading.Barrier(2)

    def block(order, fail):
        db = sqlite_database.connect(timeout=20)
        with contextlib.suppress(ZeroDivisionError):
            barrier.wait(WITHIN)
            with sqlite_database.stay.transaction(db):
                sqlite_database.enqueue(db, order)
                if fail:
                    raise ZeroDivisionError
        db.close()

    threads = [threading.Thread(target=block, args=(1, True)), threading.Thread(target=block, args=(2, False))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert eventually(lambda: sqlite_database.orders() == [2])


def test_tasks_can_use_transaction_blocks(tmp_path):
    async def main():
        async with backstay.Backstay(f"sqlite:///{tmp_path / 'database.db'}") as stay:
            ship = define_ship(stay)

            async def block(order):
                db = sqlite3.connect(tmp_path / "database.db")
                async with stay.transaction(db):
                    await ship.options(connection=db).enqueue(order)
                db.close()

            await block(1)
            await block(2)
            assert sorted(job.args["order"] for job in await stay.jobs.list()) == [1, 2]

    asyncio.run(main())
