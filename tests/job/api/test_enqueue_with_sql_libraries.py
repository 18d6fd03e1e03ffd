"""Jobs enqueued in transactions of SQLAlchemy and Django."""

from __future__ import annotations

import contextlib
import uuid

import pytest
import sqlalchemy
from order_database import define_ship, is_silent
from sqlalchemy.orm import Session

import backstay
import backstay.sync
from backstay import ConfigError
from backstay.testing.waiting import WITHIN
from support.app import working
from support.event_loop import on_a_loop


def test_a_sqlalchemy_connection_enqueues_with_its_transaction(database):
    engine = database.engine()
    with engine.connect() as connection:
        database.enqueue(connection, 1)
        connection.rollback()
        database.enqueue(connection, 2)
        connection.commit()
        with database.listening() as notices:
            with database.stay.transaction(connection):
                database.enqueue(connection, 3)
            assert database.is_announced(notices)
    engine.dispose()
    assert database.orders() == [2, 3]


def test_a_sqlalchemy_session_notifies_after_its_commit(database):
    engine = database.engine()
    with Session(engine) as session, database.listening() as notices:
        database.enqueue(session, 1)
        session.rollback()
        assert is_silent(notices)
        database.enqueue(session, 2)
        session.commit()
        assert database.is_announced(notices)
    engine.dispose()
    assert database.orders() == [2]


def test_a_rolled_back_sqlalchemy_savepoint_drops_its_notifications(database):
    engine = database.engine()
    with Session(engine) as session, database.listening() as notices:
        session.execute(sqlalchemy.text("SELECT 1"))
        with contextlib.suppress(ZeroDivisionError), session.begin_nested():
            database.enqueue(session, 1)
            raise ZeroDivisionError
        session.commit()
        assert is_silent(notices)
        database.enqueue(session, 2)
        with contextlib.suppress(ZeroDivisionError), session.begin_nested():
            database.enqueue(session, 3)
            raise ZeroDivisionError
        with session.begin_nested():
            database.enqueue(session, 4)
        session.commit()
        assert database.is_announced(notices)
    engine.dispose()
    assert database.orders() == [2, 4]


def test_a_transaction_block_accepts_a_sqlalchemy_session(database):
    engine = database.engine()
    with Session(engine) as session, database.listening() as notices:
        with database.stay.transaction(session):
            database.enqueue(session, 1)
        assert database.is_announced(notices)
        with contextlib.suppress(ZeroDivisionError), database.stay.transaction(session):
            database.enqueue(session, 2)
            raise ZeroDivisionError
    engine.dispose()
    assert database.orders() == [1]


@pytest.mark.postgres
@on_a_loop
async def test_a_sqlalchemy_async_session_or_connection_enqueues_with_its_transaction(backstay_postgres):
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    engine = create_async_engine(backstay_postgres.url.replace("postgresql://", "postgresql+psycopg://"))
    async with backstay.Backstay(backstay_postgres.url, namespace=uuid.uuid4().hex[:12]) as stay:
        ship = define_ship(stay)

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
        database.enqueue(connection, 0)
    with database.listening() as notices:
        with transaction.atomic(using=database.product):
            database.enqueue(connection, 1)
            with contextlib.suppress(ZeroDivisionError), transaction.atomic(using=database.product):
                database.enqueue(connection, 2)
                raise ZeroDivisionError
        assert database.is_announced(notices)
        assert is_silent(notices)
        with contextlib.suppress(ZeroDivisionError), transaction.atomic(using=database.product):
            database.enqueue(connection, 3)
            raise ZeroDivisionError
        assert is_silent(notices)
        with database.stay.transaction(connection):
            database.enqueue(connection, 4)
        assert database.is_announced(notices)
    assert database.orders() == [1, 4]
