"""Connections of a user's pool that are broken, in use, or inherited by a forked child."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from contextlib import ExitStack

import psycopg
import pytest
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg_pool import ConnectionPool

from backstay import EngineError, sync
from backstay.engine.base import Ping, steady
from backstay.engine.postgres.address import Address, parse
from backstay.engine.postgres.batches import batch
from backstay.engine.postgres.connection.pool_adapter import BlockingPoolAdapter
from backstay.engine.postgres.pooled_engine import PooledEngine
from backstay.testing.servers.postgres import PostgresServer
from backstay.testing.waiting import eventually
from support.pool_state import all_returned, drain_into

pytestmark = pytest.mark.postgres


@pytest.mark.chaos
def test_broken_connections_of_the_pool_are_skipped(pools, admin, namespace):
    pool = pools(size=6, kwargs={"application_name": namespace})
    with sync.Backstay(pool, namespace=namespace) as stay:
        lease = stay.lock("x").acquire(wait=0)
        pool.wait()
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s", (namespace,)
        )
        stay.engine.apply(Ping())  # more broken connections than a batch has attempts
        lease.renew()
        lease.release()
    assert eventually(lambda: all_returned(pool))


@pytest.mark.chaos
@pytest.mark.parametrize("fault", [RuntimeError("a bug"), psycopg.OperationalError("an outage")])
def test_a_connection_with_an_open_transaction_is_not_returned_as_it_is(pools, namespace, monkeypatch, fault):
    pool = pools(size=1)
    with sync.Backstay(pool, namespace=namespace) as stay:
        stay.lock("x").acquire(wait=0).release()

        def fail(self):
            raise fault

        with monkeypatch.context() as patch:
            patch.setattr(batch.Batch, "_commit", fail)
            with pytest.raises(Exception, match=str(fault)):
                stay.lock("x").acquire(wait=0)
        with pool.connection() as connection:
            assert connection.pgconn.transaction_status == TransactionStatus.IDLE
            assert connection.execute("SELECT 1").fetchone() == (1,)
        stay.lock("x").acquire(wait=0).release()


@pytest.mark.chaos
def test_a_connection_known_to_be_broken_is_not_borrowed(pools, admin):
    pool = pools(size=1)
    with pool.connection() as connection:
        pid, socket = connection.info.backend_pid, connection.pgconn.socket
    admin.execute("SELECT pg_terminate_backend(%s)", (pid,))
    end = select.poll()
    end.register(socket, select.POLLRDHUP)
    assert end.poll(10_000)  # the server's FATAL message and the end of the stream have arrived
    adapter = BlockingPoolAdapter(pool)
    session = adapter.borrow(5)
    assert session.execute("SELECT 1").fetchone() == (1,)
    adapter.give_back(session)


def test_a_connection_returned_with_an_open_transaction_or_pipeline_is_replaced(pools):
    pool = pools(size=1)
    adapter = BlockingPoolAdapter(pool)
    for fault in ("BEGIN", "pipeline"):
        session = adapter.borrow(5)
        pid = session.info.backend_pid
        if fault == "BEGIN":
            session.execute("BEGIN")
        else:
            session.pgconn.enter_pipeline_mode()
        adapter.give_back(session)
        with pool.connection() as connection:
            assert connection.info.backend_pid != pid
            assert connection.pgconn.pipeline_status == PipelineStatus.OFF


def test_a_pool_check_may_leave_a_transaction_open(pools, namespace):
    pool = pools(size=1, check=lambda connection: connection.execute("SELECT 1"))
    with sync.Backstay(pool, namespace=namespace) as stay:
        lease = stay.lock("x").acquire(wait=0)
        assert stay.lock("x").try_acquire() is None
        lease.release()


@pytest.mark.timed
@pytest.mark.chaos
def test_a_connection_to_a_stopped_server_is_replaced(namespace):
    with PostgresServer() as server, ConnectionPool(server.url, min_size=2, open=True, timeout=1) as pool:
        engine = PooledEngine(
            Address(parse(server.url).parameters, timeout=1), BlockingPoolAdapter(pool), namespace=namespace
        )
        engine.apply(Ping())
        server.pause()
        began = steady()
        with pytest.raises(EngineError):
            engine.apply(Ping())
        assert steady() - began < 4
        assert pool.get_stats()["pool_available"] == 1  # the pool is replacing the other one
        server.resume()
        assert eventually(lambda: all_returned(pool))
        engine.apply(Ping())
        engine.close_blocking()
        with ExitStack() as stack:
            assert [c.execute("SELECT 1").fetchone() for c in drain_into(stack, pool)] == [(1,), (1,)]


FORK = """
import os, sys, warnings
warnings.simplefilter("error")
from psycopg_pool import ConnectionPool
from backstay.sync import Backstay

with ConnectionPool(sys.argv[1], min_size=2, open=True) as pool:
    stay = Backstay(pool, namespace=sys.argv[2]).open()
    lease = stay.lock("fork").acquire(wait=0)
    before = pool.get_stats()["requests_num"]
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            assert lease.is_lost
            assert stay.lock("fork").try_acquire() is None
            stay.lock("child").acquire(wait=0).release()
            assert pool.get_stats()["requests_num"] == before, "the parent's connections are not ours"
            stay.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    lease.renew()
    assert not lease.release().idempotent
    stay.close()
    with pool.connection() as connection:
        connection.execute("SELECT 1")
print("fine")
"""


def test_a_forked_child_leaves_the_pool_to_its_parent(backstay_postgres, namespace):
    done = subprocess.run(
        [sys.executable, "-c", FORK, backstay_postgres.url, namespace],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ,
    )
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr
