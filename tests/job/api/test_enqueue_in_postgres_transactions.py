"""Jobs enqueued in a caller's PostgreSQL transaction: row locks, async connections, notifications."""

from __future__ import annotations

import asyncio
import uuid

import psycopg
import pytest
from order_database import OrderDatabase, define_ship, is_silent

import backstay
import backstay.sync
from backstay import ConfigError, JobNotFound
from backstay.testing.waiting import WITHIN, soon
from support.app import working
from support.event_loop import on_a_loop


async def are_running(*handles):
    return [await handle.status() for handle in handles] == ["running"] * len(handles)


async def one_waits_for_a_lock(url):
    async with await psycopg.AsyncConnection.connect(url) as db:
        cursor = await db.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return (await cursor.fetchone())[0] == 1


@pytest.mark.timed
@pytest.mark.postgres
@on_a_loop
async def test_a_blocker_that_ends_during_the_transaction_starts_its_dependent_after_the_commit(backstay_postgres):
    async with backstay.Backstay(backstay_postgres.url, namespace=f"t{uuid.uuid4().hex[:12]}") as stay:
        may_finish = asyncio.Event()

        @stay.job()
        async def pack(order: int) -> int:
            await may_finish.wait()
            return order

        ship = define_ship(stay)

        blocker = await pack.enqueue(1)
        other = await pack.enqueue(3)
        async with working(stay, lease=1.5), await psycopg.AsyncConnection.connect(backstay_postgres.url) as db:
            await soon(lambda: are_running(blocker, other))
            async with stay.transaction(db):
                dependent = await ship.options(connection=db, after=blocker).enqueue(2)
                await asyncio.sleep(
                    2
                )  # longer than a lease, so both leases must be renewed, also that of the locked row
                assert await are_running(blocker, other)
                may_finish.set()
                await soon(lambda: one_waits_for_a_lock(backstay_postgres.url))
            assert await blocker.result(WITHIN) == 1
            assert await other.result(WITHIN) == 3
            assert (await stay.jobs.get(blocker.id)).attempt == 1
            assert await dependent.result(WITHIN) == 2


@pytest.mark.postgres
@on_a_loop
async def test_an_async_psycopg_connection_enqueues_with_its_transaction(backstay_postgres):
    async with backstay.Backstay(backstay_postgres.url, namespace=uuid.uuid4().hex[:12]) as stay:
        ship = define_ship(stay)

        async with working(stay), await psycopg.AsyncConnection.connect(backstay_postgres.url) as db:
            async with stay.transaction(db):
                one = await ship.options(connection=db).enqueue(1)
            assert await one.result(WITHIN) == 1
            two = await ship.options(connection=db).enqueue(2)
            await db.rollback()
            with pytest.raises(JobNotFound):
                await two.status()


@pytest.mark.postgres
def test_postgres_notifies_on_commit_and_not_on_rollback(backstay_postgres):
    """On a connection without a block, PostgreSQL sends the NOTIFY with the commit."""
    database = OrderDatabase("postgres", backstay_postgres.url, backstay_postgres.url)
    db = database.connect()
    with database.listening() as notices:
        database.enqueue(db, 1)
        assert is_silent(notices)
        db.rollback()
        assert is_silent(notices)
        database.enqueue(db, 2)
        db.commit()
        assert database.is_announced(notices)
    db.close()
    database.stay.close()


@pytest.mark.postgres
@pytest.mark.redis
def test_with_a_redis_hub_notifications_follow_the_block(backstay_postgres, backstay_redis):
    stay = backstay.sync.Backstay(backstay_postgres.url, namespace=uuid.uuid4().hex[:12], hub=backstay_redis.url)

    @stay.job()
    def ship(order: int) -> int:
        return order

    with stay, psycopg.connect(backstay_postgres.url) as db, stay.hub.listen_scheduled() as notices:
        with stay.transaction(db):
            ship.options(connection=db).enqueue(1)
            assert is_silent(notices)
        notice = notices.next(timeout=WITHIN)
        assert notice is not None
        assert notice.type == "ship"


@pytest.mark.postgres
def test_a_database_without_backstays_tables_is_refused(backstay_postgres):
    database = OrderDatabase("postgres", backstay_postgres.url, backstay_postgres.url)
    name = f"other_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(backstay_postgres.admin_url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
        with psycopg.connect(f"postgresql://backstay@127.0.0.1:{backstay_postgres.port}/{name}") as db:
            with pytest.raises(ConfigError, match="no tables"):
                database.enqueue(db, 1)
            assert db.execute("SELECT 1").fetchone() == (1,)  # the caller's transaction is still usable
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    database.stay.close()
