"""A user's ConnectionPool: it is used, its connections are returned unchanged, it is never closed, no lease is lost."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack

import psycopg
import pytest
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool, NullConnectionPool

from backstay import Backstay, ConfigError, EngineUnavailable, sync
from backstay.policy import BALANCED, MAX_AVAILABILITY
from backstay.testing.waiting import WITHIN, eventually
from support.exercise import exercise_async, exercise_blocking
from support.pool_state import all_returned, drain_into, settings

pytestmark = pytest.mark.postgres


@pytest.mark.parametrize("size", [1, 4])
def test_both_apis_work_through_a_pool_and_leave_it_open(pools, size, namespace):
    pool = pools(size=size)
    exercise_blocking(lambda: sync.Backstay(pool, namespace=namespace))
    asyncio.run(exercise_async(lambda: Backstay(engine=pool, namespace=namespace)))
    assert not pool.closed
    assert eventually(lambda: all_returned(pool))
    with pool.connection() as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_null_pool_is_accepted(backstay_postgres, namespace):
    with NullConnectionPool(backstay_postgres.url, max_size=4, open=True) as pool:
        exercise_blocking(lambda: sync.Backstay(pool, namespace=namespace))


def test_batches_use_the_pool_and_only_the_hub_has_its_own_connection(pools, admin, namespace):
    pool = pools(kwargs={"application_name": namespace})
    with sync.Backstay(pool, namespace=namespace) as stay, stay.lock("x"):
        before = pool.get_stats()["requests_num"]
        stay.locks.inspect("x")
        assert pool.get_stats()["requests_num"] == before + 1
        with stay.hub.listen("news"):
            names = admin.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", (namespace,)
            ).fetchone()
        assert names == (pool.max_size + 1,)  # the hub's own connection, with the same arguments


@pytest.mark.parametrize("autocommit", [False, True])
def test_a_connection_is_returned_with_its_settings_unchanged(pools, autocommit, namespace):
    pool = pools(size=1, kwargs={"row_factory": dict_row, "autocommit": autocommit, "prepare_threshold": 7})
    with pool.connection() as connection:
        connection.execute("SET search_path TO elsewhere, public")
        connection.execute("SET lock_timeout = '7s'")
        connection.execute("SELECT 41", prepare=True)
        connection.commit()
        before = settings(connection)
        pid = connection.info.backend_pid
        handlers = connection.pgconn.notice_handler, connection.pgconn.notify_handler
    with sync.Backstay(pool, namespace=namespace) as stay:
        for _ in range(12):  # more than psycopg's prepare threshold
            stay.lock("x").acquire(wait=0).release()
        stay.locks.list("")
        stay._core.engine._connections[0].sweep()
    with pool.connection() as connection:
        assert connection.info.backend_pid == pid
        assert settings(connection) == before
        assert len(before["prepared"]) == 1
        assert connection.autocommit is autocommit
        assert connection.prepare_threshold == 7
        assert connection.pgconn.transaction_status == TransactionStatus.IDLE
        assert connection.pgconn.pipeline_status == PipelineStatus.OFF
        assert (connection.pgconn.notice_handler, connection.pgconn.notify_handler) == handlers
        assert connection.execute("SELECT 1 AS one").fetchone() == {"one": 1}


def test_a_search_path_set_on_a_session_does_not_split_the_locks(pools, database, namespace):
    pool = pools(database.url, size=2)
    with ExitStack() as stack:
        one, two = drain_into(stack, pool)
        one.execute("CREATE SCHEMA tenant")
        one.commit()
        two.execute("SET search_path TO tenant")
    with sync.Backstay(pool, namespace=namespace) as stay:
        lease = stay.lock("x").acquire(wait=0)
        for _ in range(4):  # on either connection
            assert stay.lock("x").try_acquire() is None
        lease.release()
    with psycopg.connect(database.url) as connection:
        found = connection.execute("SELECT schemaname FROM pg_tables WHERE tablename = 'backstay_state'").fetchall()
    assert found == [("public",)]


def test_a_users_own_notifications_are_still_delivered(pools, namespace):
    pool = pools(size=1)
    received = []
    with pool.connection() as connection:
        connection.add_notify_handler(received.append)
        connection.autocommit = True
        connection.execute("LISTEN theirs")
    with sync.Backstay(pool, namespace=namespace) as stay:
        with psycopg.connect(pool.conninfo, autocommit=True) as other:
            other.execute("NOTIFY theirs, 'hello'")
        stay.lock("x").acquire(wait=0).release()
        assert eventually(lambda: stay.locks.inspect("x") and received)
    assert received[0].payload == "hello"


def test_an_exhausted_pool_raises_engine_unavailable_in_time(pools, namespace):
    pool = pools(timeout=0.2, name="web")
    with sync.Backstay(pool, namespace=namespace) as stay:
        stay.lock("y").acquire(wait=0).release()
        with ExitStack() as stack:
            drain_into(stack, pool)
            with pytest.raises(
                EngineUnavailable, match=r"pool 'web' \(max_size=2\) had no connection free within 0.2 s"
            ):
                stay.lock("x").acquire(wait=0)
        stay.lock("x").acquire(wait=0).release()
    assert eventually(lambda: all_returned(pool))


def test_a_full_waiting_queue_of_the_pool_raises_engine_unavailable(pools, namespace):
    pool = pools(size=1, timeout=5, max_waiting=1, name="web")
    with sync.Backstay(pool, namespace=namespace) as stay, ExitStack() as stack:
        drain_into(stack, pool)
        waiter = threading.Thread(target=lambda: pool.putconn(pool.getconn(5)))
        waiter.start()
        assert eventually(lambda: pool.get_stats()["requests_waiting"] == 1)
        with pytest.raises(EngineUnavailable, match=r"'web'.*max_waiting=1"):
            stay.lock("x").acquire(wait=0)
        stack.close()
        waiter.join()


@pytest.mark.parametrize(("profile", "attempts"), [(BALANCED, 4), (MAX_AVAILABILITY, 2)])
def test_an_exhausted_pool_is_retried_as_the_policy_says(pools, namespace, profile, attempts):
    pool = pools(timeout=0.1)
    pool.wait(30)
    with sync.Backstay(pool, namespace=namespace, profile=profile) as stay, ExitStack() as taken:
        drain_into(taken, pool)
        before = pool.get_stats().get("requests_errors", 0)
        with pytest.raises(EngineUnavailable, match="no connection free"):
            stay.lock("x").acquire(wait=0)
        assert pool.get_stats()["requests_errors"] - before == attempts


def test_an_unreachable_server_is_not_reported_as_an_exhausted_pool(pools, namespace):
    pool = pools("postgresql://backstay:hunter2@127.0.0.1:1/x", timeout=0.5, name="web")
    with pytest.raises(EngineUnavailable, match=r"'web' \(max_size=2\).*failed to connect \d+ times") as caught:
        sync.Backstay(pool, namespace=namespace).lock("x").acquire(wait=0)
    assert "hunter2" not in str(caught.value)


@pytest.mark.timed
def test_leases_are_renewed_while_the_pool_is_exhausted(pools, namespace):
    pool = pools(timeout=0.2)
    with sync.Backstay(pool, namespace=namespace) as stay:
        lease = stay.lock("x", ttl=1.5).acquire(wait=0)
        began = lease.expires_at
        with ExitStack() as stack:
            drain_into(stack, pool)
            assert eventually(lambda: lease.is_lost or (lease.expires_at - began).total_seconds() > 3)  # twice the TTL
            assert not lease.is_lost
        assert not lease.release().idempotent
    assert eventually(lambda: all_returned(pool))


def test_a_lock_is_released_although_the_pool_was_closed_first(pools, backstay_postgres, namespace):
    pool = pools(name="web")
    stay = sync.Backstay(pool, namespace=namespace)
    with stay.lock("x", ttl=30):
        pool.close()
        with pytest.raises(EngineUnavailable, match="pool 'web' was closed by its owner"):
            stay.locks.inspect("x")
    with sync.Backstay(backstay_postgres.url, namespace=namespace) as other:
        other.lock("x").acquire(wait=WITHIN).release()
    stay.close()


def test_a_pool_may_be_opened_later(backstay_postgres, namespace):
    pool = ConnectionPool(backstay_postgres.url, min_size=1, open=False, name="web")
    stay = sync.Backstay(pool, namespace=namespace)
    with pytest.raises(EngineUnavailable, match="pool 'web' is not open yet"):
        stay.lock("x").acquire(wait=0)
    with pool:
        stay.lock("x").acquire(wait=0).release()
        stay.close()


def test_a_closed_pool_is_refused(backstay_postgres):
    with ConnectionPool(backstay_postgres.url, min_size=1, open=True, name="web") as pool:
        pass
    for kind in (Backstay, sync.Backstay):
        with pytest.raises(ConfigError, match="pool 'web' is closed"):
            kind(pool)


def test_a_pool_carries_the_hints_of_another_engine(pools, namespace, tmp_path):
    pool = pools()
    url = f"sqlite:///{tmp_path / 'state.db'}"
    with (
        sync.Backstay(url, namespace=namespace, hub=pool) as one,
        sync.Backstay(url, namespace=namespace, hub=pool) as two,
    ):
        with one.hub.listen("news") as messages:
            two.hub.publish("news", "x")
            message = messages.next(timeout=WITHIN)
        assert message is not None
        assert message.payload == "x"
    assert eventually(lambda: all_returned(pool))


def test_the_engines_pool_is_accepted_as_its_hub(pools, namespace):
    pool = pools()
    with sync.Backstay(pool, namespace=namespace, hub=pool) as stay:
        assert stay._core.hub.runner is stay.engine
