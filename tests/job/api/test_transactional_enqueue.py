"""Jobs enqueued in the caller's own transaction appear with its commit, never after a rollback, and notify workers."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import uuid

import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.orm import Session

import backstay
import backstay.sync
from backstay import ConfigError, JobNotFound, WouldDeadlock
from backstay.testing.waiting import WITHIN, eventually, soon
from support.app import working
from support.event_loop import on_a_loop

POSTGRES = pytest.param("postgres", marks=pytest.mark.postgres)


class Database:
    """A database with a blocking Backstay and one job type in it."""

    def __init__(self, product, url, address):
        self.product, self.url, self.address = product, url, address
        self.stay = backstay.sync.Backstay(url, namespace=f"t{uuid.uuid4().hex[:12]}").open()

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
        """Return the orders of all committed jobs."""
        return sorted(job.args["order"] for job in self.stay.jobs.list())

    @contextlib.contextmanager
    def listening(self):
        """Listen for announcements of jobs."""
        with self.stay.hub.listen_scheduled() as notices:
            yield notices

    def is_announced(self, notices):
        notice = notices.next(timeout=WITHIN)
        return notice is not None and notice.type == "ship" and not notice.missed


@pytest.fixture(params=["sqlite", POSTGRES])
def database(request, tmp_path):
    if request.param == "sqlite":
        made = Database("sqlite", f"sqlite:///{tmp_path / 'database.db'}", tmp_path / "database.db")
    else:
        server = request.getfixturevalue("backstay_postgres")
        made = Database("postgres", server.url, server.url)
    yield made
    made.stay.close()


@pytest.fixture
def sqlite_database(tmp_path):
    made = Database("sqlite", f"sqlite:///{tmp_path / 'database.db'}", tmp_path / "database.db")
    yield made
    made.stay.close()


def is_silent(notices):
    return notices.next(timeout=0.3) is None


def test_a_commit_enqueues_the_job(database):
    db = database.connect()
    handle = database.ship.options(connection=db).enqueue(1)
    db.commit()
    assert handle.status() == "pending"
    assert database.orders() == [1]
    db.close()


def test_a_rollback_leaves_no_job_and_no_notification(database):
    db = database.connect()
    with database.listening() as notices:
        handle = database.ship.options(connection=db).enqueue(1)
        db.rollback()
        assert is_silent(notices)
    with pytest.raises(JobNotFound):
        handle.status()
    assert database.orders() == []
    db.close()


def test_many_jobs_go_into_one_transaction(database):
    db = database.connect()
    handles = database.ship.options(connection=db).enqueue_many([(i,) for i in range(50)])
    db.commit()
    assert len({handle.id for handle in handles}) == 50
    assert database.orders() == list(range(50))
    db.close()


def test_other_connections_see_no_job_before_the_commit(database):
    db = database.connect()
    handle = database.ship.options(connection=db).enqueue(1)
    seen = []
    # In another thread: calls of this thread would count as inside the transaction.
    thread = threading.Thread(target=lambda: seen.append(database.stay.jobs.list()))
    if database.product == "postgres":
        thread.start()
        thread.join(WITHIN)
        assert seen == [[]]
    db.commit()
    assert handle.status() == "pending"
    db.close()


def test_a_transaction_block_commits_and_notifies_workers_once(database):
    db = database.connect()
    with database.listening() as notices:
        with database.stay.transaction(db):
            database.ship.options(connection=db).enqueue(1)
            database.ship.options(connection=db).enqueue(2)
            if database.product == "postgres":  # SQLite allows no other calls inside the block
                assert is_silent(notices)
        assert database.is_announced(notices)
        if database.product == "sqlite":
            assert is_silent(notices)
    assert database.orders() == [1, 2]
    db.close()


def test_a_transaction_block_rolls_back_on_an_exception(database):
    db = database.connect()
    with database.listening() as notices:
        with contextlib.suppress(ZeroDivisionError), database.stay.transaction(db):
            database.ship.options(connection=db).enqueue(1)
            raise ZeroDivisionError
        assert is_silent(notices)
    assert database.orders() == []
    db.close()


def test_a_nested_transaction_block_is_a_savepoint(database):
    db = database.connect()
    with database.stay.transaction(db):
        database.ship.options(connection=db).enqueue(1)
        with contextlib.suppress(ZeroDivisionError), database.stay.transaction(db):
            database.ship.options(connection=db).enqueue(2)
            raise ZeroDivisionError
        with database.stay.transaction(db):
            database.ship.options(connection=db).enqueue(3)
    assert database.orders() == [1, 3]
    db.close()


def test_jobs_of_a_rolled_back_savepoint_are_not_announced(database):
    db = database.connect()
    with database.listening() as notices:
        with database.stay.transaction(db), contextlib.suppress(ZeroDivisionError), database.stay.transaction(db):
            database.ship.options(connection=db).enqueue(2)
            raise ZeroDivisionError
        assert is_silent(notices)
    assert database.orders() == []
    db.close()


def test_a_connection_with_its_own_row_factory_is_accepted(database):
    db = database.connect()
    db.row_factory = (lambda cursor, row: {"row": row}) if database.product == "sqlite" else dict_row
    with database.stay.transaction(db):
        database.ship.options(connection=db).enqueue(1)
    assert database.orders() == [1]
    assert isinstance(db.execute("SELECT 1 AS one").fetchone(), dict)
    db.close()


def test_a_connection_in_autocommit_mode_is_refused(database):
    db = database.connect(**({"isolation_level": None} if database.product == "sqlite" else {"autocommit": True}))
    with pytest.raises(ConfigError, match="autocommit mode"):
        database.ship.options(connection=db).enqueue(1)
    with database.stay.transaction(db):  # a block opens a transaction itself
        database.ship.options(connection=db).enqueue(2)
    assert database.orders() == [2]
    db.close()


def test_a_refused_job_leaves_the_callers_transaction_unchanged(database):
    db = database.connect()
    with database.stay.transaction(db):
        database.ship.options(connection=db).enqueue(1)
        with pytest.raises(ConfigError):
            database.ship.options(connection=db, after="0-1a1e347d93f00000f555804b359d").enqueue(2)
        database.ship.options(connection=db).enqueue(3)
    assert database.orders() == [1, 3]
    db.close()


def test_a_job_can_wait_for_jobs_inside_and_outside_the_transaction(database):
    outside = database.ship.enqueue(1)
    db = database.connect()
    with database.stay.transaction(db):
        inside = database.ship.options(connection=db).enqueue(2)
        waits = database.ship.options(connection=db, after=[outside, inside]).enqueue(3)
    assert waits.status() == "blocked"
    database.stay.worker(signals=False).run(burst=True)
    assert waits.status() == "completed"
    with database.stay.transaction(db):
        late = database.ship.options(connection=db, after=waits).enqueue(4)
    assert late.status() == "pending"
    db.close()


def test_a_rollback_removes_the_dependency_on_a_blocker(database):
    blocker = database.ship.enqueue(1)
    db = database.connect()
    database.ship.options(connection=db, after=blocker).enqueue(2)
    db.rollback()
    database.stay.worker(signals=False).run(burst=True)
    assert blocker.status() == "completed"
    assert database.orders() == [1]
    db.close()


def test_a_unique_key_holds_across_transactions(database):
    db = database.connect()
    one = database.ship.options(connection=db, unique="order:{order}").enqueue(1)
    again = database.ship.options(connection=db, unique="order:{order}").enqueue(1)
    db.commit()
    assert again.deduplicated
    assert again.id == one.id
    assert database.ship.options(unique="order:{order}").enqueue(1).deduplicated
    assert database.orders() == [1]
    db.close()


def test_a_unique_key_that_was_rolled_back_is_free(database):
    db = database.connect()
    database.ship.options(connection=db, unique="order:{order}").enqueue(1)
    db.rollback()
    assert not database.ship.options(unique="order:{order}").enqueue(1).deduplicated
    db.close()


def test_lanes_that_were_rolled_back_are_created_again(database):
    """A store must not cache table contents that a transaction rolled back."""
    db = database.connect()
    database.ship.options(connection=db, queue="rare").enqueue(1)
    db.rollback()
    database.ship.options(queue="rare").enqueue(2)
    database.stay.worker(queues=["rare"], signals=False).run(burst=True)
    assert [job.state for job in database.stay.jobs.list()] == ["completed"]
    db.close()


def test_a_sqlalchemy_connection_enqueues_with_its_transaction(database):
    engine = database.engine()
    with engine.connect() as connection:
        database.ship.options(connection=connection).enqueue(1)
        connection.rollback()
        database.ship.options(connection=connection).enqueue(2)
        connection.commit()
        with database.listening() as notices:
            with database.stay.transaction(connection):
                database.ship.options(connection=connection).enqueue(3)
            assert database.is_announced(notices)
    engine.dispose()
    assert database.orders() == [2, 3]


def test_a_sqlalchemy_session_notifies_after_its_commit(database):
    engine = database.engine()
    with Session(engine) as session, database.listening() as notices:
        database.ship.options(connection=session).enqueue(1)
        session.rollback()
        assert is_silent(notices)
        database.ship.options(connection=session).enqueue(2)
        session.commit()
        assert database.is_announced(notices)
    engine.dispose()
    assert database.orders() == [2]


def test_a_rolled_back_sqlalchemy_savepoint_drops_its_notifications(database):
    engine = database.engine()
    with Session(engine) as session, database.listening() as notices:
        session.execute(sqlalchemy.text("SELECT 1"))
        with contextlib.suppress(ZeroDivisionError), session.begin_nested():
            database.ship.options(connection=session).enqueue(1)
            raise ZeroDivisionError
        session.commit()
        assert is_silent(notices)
        database.ship.options(connection=session).enqueue(2)
        with contextlib.suppress(ZeroDivisionError), session.begin_nested():
            database.ship.options(connection=session).enqueue(3)
            raise ZeroDivisionError
        with session.begin_nested():
            database.ship.options(connection=session).enqueue(4)
        session.commit()
        assert database.is_announced(notices)
    engine.dispose()
    assert database.orders() == [2, 4]


def test_a_transaction_block_accepts_a_sqlalchemy_session(database):
    engine = database.engine()
    with Session(engine) as session, database.listening() as notices:
        with database.stay.transaction(session):
            database.ship.options(connection=session).enqueue(1)
        assert database.is_announced(notices)
        with contextlib.suppress(ZeroDivisionError), database.stay.transaction(session):
            database.ship.options(connection=session).enqueue(2)
            raise ZeroDivisionError
    engine.dispose()
    assert database.orders() == [1]


# ── SQLite ──


def test_a_connection_to_another_file_is_refused(sqlite_database, tmp_path):
    db = sqlite3.connect(tmp_path / "other.db")
    with pytest.raises(ConfigError, match="one file"):
        sqlite_database.ship.options(connection=db).enqueue(1)
    with pytest.raises(ConfigError, match="one file"), sqlite_database.stay.transaction(db):
        pass
    memory = sqlite3.connect(":memory:")
    with pytest.raises(ConfigError, match="memory"):
        sqlite_database.ship.options(connection=memory).enqueue(1)
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


def test_a_stale_snapshot_is_refused_with_a_way_out(sqlite_database):
    db = sqlite_database.connect(isolation_level=None)
    db.execute("BEGIN")
    db.execute("SELECT * FROM backstay_clock").fetchall()
    sqlite_database.ship.enqueue(1)
    with pytest.raises(ConfigError, match="BEGIN IMMEDIATE"):
        sqlite_database.ship.options(connection=db).enqueue(2)
    db.execute("ROLLBACK")
    db.close()


def test_other_calls_inside_the_block_raise_would_deadlock(sqlite_database):
    db = sqlite_database.connect()
    with sqlite_database.stay.transaction(db):
        sqlite_database.ship.options(connection=db).enqueue(1)
        with pytest.raises(WouldDeadlock, match="connection="):
            sqlite_database.ship.enqueue(2)
        with pytest.raises(WouldDeadlock):
            sqlite_database.stay.lock("x").acquire(wait=0)
    assert sqlite_database.stay.lock("x").acquire(wait=0).release().released
    assert sqlite_database.orders() == [1]
    db.close()


def test_other_calls_raise_would_deadlock_until_the_transaction_of_a_bare_connection_ends(sqlite_database):
    db = sqlite_database.connect()
    sqlite_database.ship.options(connection=db).enqueue(1)
    with pytest.raises(WouldDeadlock):
        sqlite_database.stay.jobs.list()
    db.rollback()
    assert sqlite_database.orders() == []
    db.close()


def test_a_call_in_another_thread_waits_for_the_commit(sqlite_database):
    db = sqlite_database.connect()
    done = threading.Event()

    def enqueue_in_thread():
        sqlite_database.ship.enqueue(2)
        done.set()

    with sqlite_database.stay.transaction(db):
        sqlite_database.ship.options(connection=db).enqueue(1)
        thread = threading.Thread(target=enqueue_in_thread)
        thread.start()
        assert not done.wait(0.1)
    assert done.wait(WITHIN)
    thread.join(WITHIN)
    assert sqlite_database.orders() == [1, 2]
    db.close()


@on_a_loop
async def test_a_commit_on_a_bare_connection_is_found_at_the_next_poll(tmp_path):
    async with backstay.Backstay(f"sqlite:///{tmp_path / 'database.db'}") as stay:

        @stay.job()
        async def ship(order: int) -> int:
            return order

        async with working(stay):
            db = sqlite3.connect(tmp_path / "database.db")
            handle = await ship.options(connection=db).enqueue(7)
            db.commit()
            assert await handle.result(WITHIN) == 7
            db.close()


@on_a_loop
async def test_the_async_block_wakes_a_worker_at_once(tmp_path):
    async with backstay.Backstay(f"sqlite:///{tmp_path / 'database.db'}") as stay:

        @stay.job()
        async def ship(order: int) -> int:
            return order

        async with working(stay):
            db = sqlite3.connect(tmp_path / "database.db")
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
async def test_a_blocker_that_ends_during_the_transaction_starts_its_dependent_after_the_commit(backstay_postgres):
    async with backstay.Backstay(backstay_postgres.url, namespace=f"t{uuid.uuid4().hex[:12]}") as stay:
        may_finish = asyncio.Event()

        @stay.job()
        async def pack(order: int) -> int:
            await may_finish.wait()
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
                await asyncio.sleep(2)  # longer than a lease: both leases are renewed, also that of the locked row
                assert await _are_running(blocker, beside)
                may_finish.set()
                await soon(lambda: _one_waits_for_a_lock(backstay_postgres.url))
            assert await blocker.result(WITHIN) == 1
            assert await beside.result(WITHIN) == 3
            assert (await stay.jobs.get(blocker.id)).attempt == 1
            assert await waits.result(WITHIN) == 2


@pytest.mark.postgres
@on_a_loop
async def test_an_async_psycopg_connection_enqueues_with_its_transaction(backstay_postgres):
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
async def test_a_sqlalchemy_async_session_or_connection_enqueues_with_its_transaction(backstay_postgres):
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
def test_postgres_notifies_on_commit_and_not_on_rollback(backstay_postgres):
    """On a connection without a block, PostgreSQL sends the NOTIFY with the commit."""
    database = Database("postgres", backstay_postgres.url, backstay_postgres.url)
    db = database.connect()
    with database.listening() as notices:
        database.ship.options(connection=db).enqueue(1)
        assert is_silent(notices)
        db.rollback()
        assert is_silent(notices)
        database.ship.options(connection=db).enqueue(2)
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
    database = Database("postgres", backstay_postgres.url, backstay_postgres.url)
    name = f"other_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(backstay_postgres.admin_url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
        with psycopg.connect(f"postgresql://backstay@127.0.0.1:{backstay_postgres.port}/{name}") as db:
            with pytest.raises(ConfigError, match="no tables"):
                database.ship.options(connection=db).enqueue(1)
            assert db.execute("SELECT 1").fetchone() == (1,)  # the caller's transaction is still usable
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    database.stay.close()


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
                sqlite_database.ship.options(connection=db).enqueue(order)
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

            @stay.job()
            async def ship(order: int) -> int:
                return order

            async def block(order):
                db = sqlite3.connect(tmp_path / "database.db")
                async with stay.transaction(db):
                    await ship.options(connection=db).enqueue(order)
                db.close()

            await block(1)
            await block(2)
            assert sorted(job.args["order"] for job in await stay.jobs.list()) == [1, 2]

    asyncio.run(main())


@pytest.fixture
def django_connections(tmp_path, request):
    """Django's connection handler without a project, with one connection per database."""
    pytest.importorskip("django", reason="Django is not installed: pip install 'backstay[django]'")
    import django
    from django.conf import settings
    from django.db import connections

    server = request.getfixturevalue("backstay_postgres")
    if not settings.configured:
        settings.configure(DATABASES={}, USE_TZ=True)
        django.setup()
    databases = {
        "sqlite": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "database.db")},
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
def test_a_django_connection_notifies_after_its_commit(database, django_connections):
    from django.db import transaction

    connection = django_connections[database.product]
    with pytest.raises(ConfigError, match="atomic"):
        database.ship.options(connection=connection).enqueue(0)
    with database.listening() as notices:
        with transaction.atomic(using=database.product):
            database.ship.options(connection=connection).enqueue(1)
            with contextlib.suppress(ZeroDivisionError), transaction.atomic(using=database.product):
                database.ship.options(connection=connection).enqueue(2)
                raise ZeroDivisionError
        assert database.is_announced(notices)
        assert is_silent(notices)
        with contextlib.suppress(ZeroDivisionError), transaction.atomic(using=database.product):
            database.ship.options(connection=connection).enqueue(3)
            raise ZeroDivisionError
        assert is_silent(notices)
        with database.stay.transaction(connection):
            database.ship.options(connection=connection).enqueue(4)
        assert database.is_announced(notices)
    assert database.orders() == [1, 4]
