"""Jobs in the caller's own transaction: there when it commits, never when it rolls back, and workers hear of them."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import uuid

import psycopg
import pytest
import sqlalchemy
from on_a_loop import on_a_loop
from psycopg.rows import dict_row
from sqlalchemy.orm import Session
from workshop import working

import backstay
import backstay.sync
from backstay import ConfigError, JobNotFound, WouldDeadlock
from backstay.testing.waiting import WITHIN, eventually, soon

POSTGRES = pytest.param("postgres", marks=pytest.mark.postgres)


class Shop:
    """A database, a blocking Backstay in it, and a job."""

    def __init__(self, product, url, address):
        self.product, self.url, self.address = product, url, address
        self.stay = backstay.sync.Backstay(url, namespace=f"t{uuid.uuid4().hex[:12]}").open()
        self.heard = []

        @self.stay.job()
        def ship(order: int) -> int:
            return order

        self.ship = ship

    def connect(self, **options):
        if self.product == "sqlite":
            return sqlite3.connect(self.address, **options)
        return psycopg.connect(self.address, **options)

    def engine(self, **options):
        url = f"sqlite:///{self.address}"
        if self.product == "postgres":
            url = self.address.replace("postgresql://", "postgresql+psycopg://")
        return sqlalchemy.create_engine(url, **options)

    def orders(self):
        """What is enqueued, as everybody sees it."""
        return sorted(job.args["order"] for job in self.stay.jobs.list())

    @contextlib.contextmanager
    def listening(self):
        """How many jobs are announced meanwhile, type by type."""
        with self.stay.hub.listen_scheduled() as notices:
            yield notices

    def is_announced(self, notices):
        notice = notices.next(timeout=WITHIN)
        return notice is not None and notice.type == "ship" and not notice.missed


@pytest.fixture(params=["sqlite", POSTGRES])
def shop(request, tmp_path):
    if request.param == "sqlite":
        made = Shop("sqlite", f"sqlite:///{tmp_path / 'shop.db'}", tmp_path / "shop.db")
    else:
        server = request.getfixturevalue("backstay_postgres")
        made = Shop("postgres", server.url, server.url)
    yield made
    made.stay.close()


@pytest.fixture
def file_shop(tmp_path):
    made = Shop("sqlite", f"sqlite:///{tmp_path / 'shop.db'}", tmp_path / "shop.db")
    yield made
    made.stay.close()


def is_silent(notices):
    return notices.next(timeout=0.3) is None


def test_a_commit_enqueues(shop):
    db = shop.connect()
    handle = shop.ship.options(connection=db).enqueue(1)
    db.commit()
    assert handle.status() == "pending"
    assert shop.orders() == [1]
    db.close()


def test_a_rollback_leaves_nothing_and_wakes_nobody(shop):
    db = shop.connect()
    with shop.listening() as notices:
        handle = shop.ship.options(connection=db).enqueue(1)
        db.rollback()
        assert is_silent(notices)
    with pytest.raises(JobNotFound):
        handle.status()
    assert shop.orders() == []
    db.close()


def test_many_jobs_go_into_one_transaction(shop):
    db = shop.connect()
    handles = shop.ship.options(connection=db).enqueue_many([(i,) for i in range(50)])
    db.commit()
    assert len({handle.id for handle in handles}) == 50
    assert shop.orders() == list(range(50))
    db.close()


def test_nobody_else_sees_it_before_the_commit(shop):
    db = shop.connect()
    handle = shop.ship.options(connection=db).enqueue(1)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(shop.stay.jobs.list()))  # not inside: another thread may ask
    if shop.product == "postgres":
        thread.start()
        thread.join(WITHIN)
        assert seen == [[]]
    db.commit()
    assert handle.status() == "pending"
    db.close()


def test_the_block_commits_and_tells_the_workers_once(shop):
    db = shop.connect()
    with shop.listening() as notices:
        with shop.stay.transaction(db):
            shop.ship.options(connection=db).enqueue(1)
            shop.ship.options(connection=db).enqueue(2)
            if shop.product == "postgres":  # on SQLite nothing may be asked inside
                assert is_silent(notices)
        assert shop.is_announced(notices)
        if shop.product == "sqlite":
            assert is_silent(notices)
    assert shop.orders() == [1, 2]
    db.close()


def test_the_block_rolls_back_on_an_exception(shop):
    db = shop.connect()
    with shop.listening() as notices:
        with contextlib.suppress(ZeroDivisionError), shop.stay.transaction(db):
            shop.ship.options(connection=db).enqueue(1)
            raise ZeroDivisionError
        assert is_silent(notices)
    assert shop.orders() == []
    db.close()


def test_a_block_inside_a_block_is_a_savepoint(shop):
    db = shop.connect()
    with shop.stay.transaction(db):
        shop.ship.options(connection=db).enqueue(1)
        with contextlib.suppress(ZeroDivisionError), shop.stay.transaction(db):
            shop.ship.options(connection=db).enqueue(2)
            raise ZeroDivisionError
        with shop.stay.transaction(db):
            shop.ship.options(connection=db).enqueue(3)
    assert shop.orders() == [1, 3]
    db.close()


def test_what_a_savepoint_took_back_is_not_announced(shop):
    db = shop.connect()
    with shop.listening() as notices:
        with shop.stay.transaction(db), contextlib.suppress(ZeroDivisionError), shop.stay.transaction(db):
            shop.ship.options(connection=db).enqueue(2)
            raise ZeroDivisionError
        assert is_silent(notices)
    assert shop.orders() == []
    db.close()


def test_a_connection_with_its_own_kind_of_rows_will_do(shop):
    db = shop.connect()
    db.row_factory = (lambda cursor, row: {"row": row}) if shop.product == "sqlite" else dict_row
    with shop.stay.transaction(db):
        shop.ship.options(connection=db).enqueue(1)
    assert shop.orders() == [1]
    assert isinstance(db.execute("SELECT 1 AS one").fetchone(), dict)
    db.close()


def test_a_connection_that_commits_by_itself_is_refused(shop):
    db = shop.connect(**({"isolation_level": None} if shop.product == "sqlite" else {"autocommit": True}))
    with pytest.raises(ConfigError, match="commits every statement"):
        shop.ship.options(connection=db).enqueue(1)
    with shop.stay.transaction(db):  # but a block opens a transaction
        shop.ship.options(connection=db).enqueue(2)
    assert shop.orders() == [2]
    db.close()


def test_a_refused_job_leaves_the_callers_transaction_as_it_was(shop):
    db = shop.connect()
    with shop.stay.transaction(db):
        shop.ship.options(connection=db).enqueue(1)
        with pytest.raises(ConfigError):
            shop.ship.options(connection=db, after="0-1a1e347d93f00000f555804b359d").enqueue(2)
        shop.ship.options(connection=db).enqueue(3)
    assert shop.orders() == [1, 3]
    db.close()


def test_a_job_may_wait_for_others_whether_they_are_in_the_transaction_or_not(shop):
    outside = shop.ship.enqueue(1)
    db = shop.connect()
    with shop.stay.transaction(db):
        inside = shop.ship.options(connection=db).enqueue(2)
        waits = shop.ship.options(connection=db, after=[outside, inside]).enqueue(3)
    assert waits.status() == "blocked"
    shop.stay.worker(signals=False).run(burst=True)
    assert waits.status() == "completed"
    with shop.stay.transaction(db):
        late = shop.ship.options(connection=db, after=waits).enqueue(4)
    assert late.status() == "pending"
    db.close()


def test_a_rollback_takes_the_waiting_back_too(shop):
    blocker = shop.ship.enqueue(1)
    db = shop.connect()
    shop.ship.options(connection=db, after=blocker).enqueue(2)
    db.rollback()
    shop.stay.worker(signals=False).run(burst=True)
    assert blocker.status() == "completed"
    assert shop.orders() == [1]
    db.close()


def test_unique_holds_across_transactions(shop):
    db = shop.connect()
    one = shop.ship.options(connection=db, unique="order:{order}").enqueue(1)
    again = shop.ship.options(connection=db, unique="order:{order}").enqueue(1)
    db.commit()
    assert again.deduplicated
    assert again.id == one.id
    assert shop.ship.options(unique="order:{order}").enqueue(1).deduplicated
    assert shop.orders() == [1]
    db.close()


def test_a_unique_key_that_was_rolled_back_is_free(shop):
    db = shop.connect()
    shop.ship.options(connection=db, unique="order:{order}").enqueue(1)
    db.rollback()
    assert not shop.ship.options(unique="order:{order}").enqueue(1).deduplicated
    db.close()


def test_lanes_that_were_rolled_back_are_made_again(shop):
    """What a store remembers of its tables must not come from a transaction that never was."""
    db = shop.connect()
    shop.ship.options(connection=db, queue="rare").enqueue(1)
    db.rollback()
    shop.ship.options(queue="rare").enqueue(2)
    shop.stay.worker(queues=["rare"], signals=False).run(burst=True)
    assert [job.state for job in shop.stay.jobs.list()] == ["completed"]
    db.close()


def test_sqlalchemys_connection(shop):
    engine = shop.engine()
    with engine.connect() as connection:
        shop.ship.options(connection=connection).enqueue(1)
        connection.rollback()
        shop.ship.options(connection=connection).enqueue(2)
        connection.commit()
        with shop.listening() as notices:
            with shop.stay.transaction(connection):
                shop.ship.options(connection=connection).enqueue(3)
            assert shop.is_announced(notices)
    engine.dispose()
    assert shop.orders() == [2, 3]


def test_sqlalchemys_session_tells_after_its_commit(shop):
    engine = shop.engine()
    with Session(engine) as session, shop.listening() as notices:
        shop.ship.options(connection=session).enqueue(1)
        session.rollback()
        assert is_silent(notices)
        shop.ship.options(connection=session).enqueue(2)
        session.commit()
        assert shop.is_announced(notices)
    engine.dispose()
    assert shop.orders() == [2]


def test_sqlalchemys_savepoints_take_their_hints_with_them(shop):
    engine = shop.engine()
    with Session(engine) as session, shop.listening() as notices:
        session.execute(sqlalchemy.text("SELECT 1"))
        with contextlib.suppress(ZeroDivisionError), session.begin_nested():
            shop.ship.options(connection=session).enqueue(1)
            raise ZeroDivisionError
        session.commit()
        assert is_silent(notices)
        shop.ship.options(connection=session).enqueue(2)
        with contextlib.suppress(ZeroDivisionError), session.begin_nested():
            shop.ship.options(connection=session).enqueue(3)
            raise ZeroDivisionError
        with session.begin_nested():
            shop.ship.options(connection=session).enqueue(4)
        session.commit()
        assert shop.is_announced(notices)
    engine.dispose()
    assert shop.orders() == [2, 4]


def test_a_block_on_a_session(shop):
    engine = shop.engine()
    with Session(engine) as session, shop.listening() as notices:
        with shop.stay.transaction(session):
            shop.ship.options(connection=session).enqueue(1)
        assert shop.is_announced(notices)
        with contextlib.suppress(ZeroDivisionError), shop.stay.transaction(session):
            shop.ship.options(connection=session).enqueue(2)
            raise ZeroDivisionError
    engine.dispose()
    assert shop.orders() == [1]


# ── SQLite ──


def test_another_file_is_refused(file_shop, tmp_path):
    db = sqlite3.connect(tmp_path / "other.db")
    with pytest.raises(ConfigError, match="one file"):
        file_shop.ship.options(connection=db).enqueue(1)
    with pytest.raises(ConfigError, match="one file"), file_shop.stay.transaction(db):
        pass
    memory = sqlite3.connect(":memory:")
    with pytest.raises(ConfigError, match="memory"):
        file_shop.ship.options(connection=memory).enqueue(1)
    db.close()
    memory.close()


def test_a_backstay_in_memory_has_no_transactions_of_others():
    with backstay.sync.Backstay("memory://") as stay:

        @stay.job()
        def ship() -> None: ...

        db = sqlite3.connect(":memory:")
        with pytest.raises(ConfigError, match="sqlite:///"):
            ship.options(connection=db).enqueue()
        db.close()


def test_a_stale_snapshot_is_refused_with_a_way_out(file_shop):
    db = file_shop.connect(isolation_level=None)
    db.execute("BEGIN")
    db.execute("SELECT * FROM backstay_clock").fetchall()
    file_shop.ship.enqueue(1)
    with pytest.raises(ConfigError, match="BEGIN IMMEDIATE"):
        file_shop.ship.options(connection=db).enqueue(2)
    db.execute("ROLLBACK")
    db.close()


def test_other_calls_inside_the_block_would_deadlock(file_shop):
    db = file_shop.connect()
    with file_shop.stay.transaction(db):
        file_shop.ship.options(connection=db).enqueue(1)
        with pytest.raises(WouldDeadlock, match="connection="):
            file_shop.ship.enqueue(2)
        with pytest.raises(WouldDeadlock):
            file_shop.stay.lock("x").acquire(wait=0)
    assert file_shop.stay.lock("x").acquire(wait=0).release().released
    assert file_shop.orders() == [1]
    db.close()


def test_other_calls_after_an_enqueue_on_a_bare_connection_would_deadlock_until_it_ends(file_shop):
    db = file_shop.connect()
    file_shop.ship.options(connection=db).enqueue(1)
    with pytest.raises(WouldDeadlock):
        file_shop.stay.jobs.list()
    db.rollback()
    assert file_shop.orders() == []
    db.close()


def test_another_thread_only_waits_for_the_commit(file_shop):
    db = file_shop.connect()
    done = threading.Event()

    def elsewhere():
        file_shop.ship.enqueue(2)
        done.set()

    with file_shop.stay.transaction(db):
        file_shop.ship.options(connection=db).enqueue(1)
        thread = threading.Thread(target=elsewhere)
        thread.start()
        assert not done.wait(0.1)
    assert done.wait(WITHIN)
    thread.join(WITHIN)
    assert file_shop.orders() == [1, 2]
    db.close()


@on_a_loop
async def test_a_commit_on_a_bare_connection_is_found_at_the_next_poll(tmp_path):
    async with backstay.Backstay(f"sqlite:///{tmp_path / 'shop.db'}") as stay:

        @stay.job()
        async def ship(order: int) -> int:
            return order

        async with working(stay):
            db = sqlite3.connect(tmp_path / "shop.db")
            handle = await ship.options(connection=db).enqueue(7)
            db.commit()
            assert await handle.result(WITHIN) == 7
            db.close()


@on_a_loop
async def test_the_async_block_wakes_a_worker_at_once(tmp_path):
    async with backstay.Backstay(f"sqlite:///{tmp_path / 'shop.db'}") as stay:

        @stay.job()
        async def ship(order: int) -> int:
            return order

        async with working(stay):
            db = sqlite3.connect(tmp_path / "shop.db")
            for order in range(5):
                async with stay.transaction(db):
                    handle = await ship.options(connection=db).enqueue(order)
                assert await handle.result(WITHIN) == order
            db.close()


# ── PostgreSQL ──


async def _are_running(*handles):
    return [await handle.status() for handle in handles] == ["running"] * len(handles)


async def _one_waits_for_a_lock(url):
    async with await psycopg.AsyncConnection.connect(url) as db:
        cursor = await db.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return (await cursor.fetchone())[0] == 1


@pytest.mark.timed
@pytest.mark.postgres
@on_a_loop
async def test_a_blocker_that_ends_while_the_transaction_is_open_starts_who_waits_after_the_commit(backstay_postgres):
    async with backstay.Backstay(backstay_postgres.url, namespace=f"t{uuid.uuid4().hex[:12]}") as stay:
        asked = asyncio.Event()

        @stay.job()
        async def pack(order: int) -> int:
            await asked.wait()
            return order

        @stay.job()
        async def ship(order: int) -> int:
            return order

        blocker = await pack.enqueue(1)
        beside = await pack.enqueue(3)
        async with working(stay, lease=1.5), await psycopg.AsyncConnection.connect(backstay_postgres.url) as db:
            await soon(lambda: _are_running(blocker, beside))
            async with stay.transaction(db):
                waits = await ship.options(connection=db, after=blocker).enqueue(2)
                await asyncio.sleep(2)  # longer than a lease: what is held lives on, and so does what is beside it
                assert await _are_running(blocker, beside)
                asked.set()
                await soon(lambda: _one_waits_for_a_lock(backstay_postgres.url))
            assert await blocker.result(WITHIN) == 1
            assert await beside.result(WITHIN) == 3
            assert (await stay.jobs.get(blocker.id)).attempt == 1
            assert await waits.result(WITHIN) == 2


@pytest.mark.postgres
@on_a_loop
async def test_an_async_psycopg_connection(backstay_postgres):
    async with backstay.Backstay(backstay_postgres.url, namespace=uuid.uuid4().hex[:12]) as stay:

        @stay.job()
        async def ship(order: int) -> int:
            return order

        async with working(stay), await psycopg.AsyncConnection.connect(backstay_postgres.url) as db:
            async with stay.transaction(db):
                one = await ship.options(connection=db).enqueue(1)
            assert await one.result(WITHIN) == 1
            two = await ship.options(connection=db).enqueue(2)
            await db.rollback()
            with pytest.raises(JobNotFound):
                await two.status()


@pytest.mark.postgres
@on_a_loop
async def test_sqlalchemys_async_session_and_connection(backstay_postgres):
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    engine = create_async_engine(backstay_postgres.url.replace("postgresql://", "postgresql+psycopg://"))
    async with backstay.Backstay(backstay_postgres.url, namespace=uuid.uuid4().hex[:12]) as stay:

        @stay.job()
        async def ship(order: int) -> int:
            return order

        async with working(stay), AsyncSession(engine) as session:
            one = await ship.options(connection=session).enqueue(1)
            await session.commit()
            assert await one.result(WITHIN) == 1
            async with stay.transaction(session):
                two = await ship.options(connection=session).enqueue(2)
            assert await two.result(WITHIN) == 2
            async with engine.connect() as connection:
                async with stay.transaction(connection):
                    three = await ship.options(connection=connection).enqueue(3)
                assert await three.result(WITHIN) == 3
    await engine.dispose()


@pytest.mark.postgres
def test_a_hint_follows_the_commit_and_not_the_rollback(backstay_postgres):
    """A bare connection, without a block: PostgreSQL itself sends it with the commit."""
    shop = Shop("postgres", backstay_postgres.url, backstay_postgres.url)
    db = shop.connect()
    with shop.listening() as notices:
        shop.ship.options(connection=db).enqueue(1)
        assert is_silent(notices)
        db.rollback()
        assert is_silent(notices)
        shop.ship.options(connection=db).enqueue(2)
        db.commit()
        assert shop.is_announced(notices)
    db.close()
    shop.stay.close()


@pytest.mark.postgres
@pytest.mark.redis
def test_with_hints_on_redis_they_go_after_the_block(backstay_postgres, backstay_redis):
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
    shop = Shop("postgres", backstay_postgres.url, backstay_postgres.url)
    name = f"other_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(backstay_postgres.admin_url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
        with psycopg.connect(f"postgresql://backstay@127.0.0.1:{backstay_postgres.port}/{name}") as db:
            with pytest.raises(ConfigError, match="no tables"):
                shop.ship.options(connection=db).enqueue(1)
            assert db.execute("SELECT 1").fetchone() == (1,)  # the caller's transaction is as it was
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    shop.stay.close()


@pytest.mark.redis
def test_redis_has_no_part_in_a_sql_transaction(backstay_redis):
    with backstay.sync.Backstay(backstay_redis.url, namespace=uuid.uuid4().hex[:12]) as stay:

        @stay.job()
        def ship() -> None: ...

        db = sqlite3.connect(":memory:")
        with pytest.raises(ConfigError, match="Redis has no part"):
            ship.options(connection=db).enqueue()
        with pytest.raises(ConfigError, match="Redis has no part"):
            stay.transaction(db)
        db.close()


def test_hints_are_discarded_when_a_thread_rolls_back(file_shop):
    """Two threads with blocks of their own do not mix up what they announce."""
    barrier = threading.Barrier(2)

    def block(order, fail):
        db = file_shop.connect(timeout=20)
        with contextlib.suppress(ZeroDivisionError):
            barrier.wait(WITHIN)
            with file_shop.stay.transaction(db):
                file_shop.ship.options(connection=db).enqueue(order)
                if fail:
                    raise ZeroDivisionError
        db.close()

    threads = [threading.Thread(target=block, args=(1, True)), threading.Thread(target=block, args=(2, False))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert eventually(lambda: file_shop.orders() == [2])


def test_two_tasks_may_have_blocks_at_once(tmp_path):
    async def main():
        async with backstay.Backstay(f"sqlite:///{tmp_path / 'shop.db'}") as stay:

            @stay.job()
            async def ship(order: int) -> int:
                return order

            async def block(order):
                db = sqlite3.connect(tmp_path / "shop.db")
                async with stay.transaction(db):
                    await ship.options(connection=db).enqueue(order)
                db.close()

            await block(1)
            await block(2)
            assert sorted(job.args["order"] for job in await stay.jobs.list()) == [1, 2]

    asyncio.run(main())


@pytest.fixture
def django_connections(tmp_path, request):
    """Django's own handler, without a project: one connection for each database."""
    pytest.importorskip("django", reason="Django is not installed: pip install 'backstay[django]'")
    import django
    from django.conf import settings
    from django.db import connections

    server = request.getfixturevalue("backstay_postgres")
    if not settings.configured:
        settings.configure(DATABASES={}, USE_TZ=True)
        django.setup()
    databases = {
        "sqlite": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "shop.db")},
        "postgres": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": server.url.rpartition("/")[2].partition("?")[0],
            "USER": "backstay",
            "HOST": "127.0.0.1",
            "PORT": server.port,
        },
    }
    before = connections.settings
    connections.settings = connections.configure_settings({"default": databases["sqlite"], **databases})
    yield connections
    for alias in databases:
        connections[alias].close()
        del connections[alias]
    connections.settings = before


@pytest.mark.postgres
def test_djangos_connection_tells_after_its_commit(shop, django_connections):
    from django.db import transaction

    connection = django_connections[shop.product]
    with pytest.raises(ConfigError, match="atomic"):
        shop.ship.options(connection=connection).enqueue(0)
    with shop.listening() as notices:
        with transaction.atomic(using=shop.product):
            shop.ship.options(connection=connection).enqueue(1)
            with contextlib.suppress(ZeroDivisionError), transaction.atomic(using=shop.product):
                shop.ship.options(connection=connection).enqueue(2)
                raise ZeroDivisionError
        assert shop.is_announced(notices)
        assert is_silent(notices)
        with contextlib.suppress(ZeroDivisionError), transaction.atomic(using=shop.product):
            shop.ship.options(connection=connection).enqueue(3)
            raise ZeroDivisionError
        assert is_silent(notices)
        with shop.stay.transaction(connection):
            shop.ship.options(connection=connection).enqueue(4)
        assert shop.is_announced(notices)
    assert shop.orders() == [1, 4]
