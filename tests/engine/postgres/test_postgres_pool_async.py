"""A user's AsyncConnectionPool, used from a thread on the pool's event loop; a blocked loop loses no lease."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager

import psycopg
import pytest
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from backstay import Backstay, ConfigError, EngineUnavailable, sync
from backstay.engine.postgres.connection.pool_adapter import AsyncPoolAdapter, ConnectionRequest, LoopBusy
from backstay.engine.postgres.pooled_engine import PooledEngine
from backstay.testing.waiting import WITHIN, soon
from support.exercise import exercise_async, exercise_blocking
from support.pool_state import all_returned

pytestmark = pytest.mark.postgres


@pytest.fixture
def open_pool(backstay_postgres):
    """Open pools: `async with open_pool(size=1) as pool`."""

    @asynccontextmanager
    async def make(conninfo=backstay_postgres.url, *, size=2, **options):
        options = {"timeout": 5, **options}
        async with AsyncConnectionPool(conninfo, min_size=size, max_size=size, open=False, **options) as pool:
            yield pool

    return make


async def drain_into(stack, pool):
    return [await stack.enter_async_context(pool.connection()) for _ in range(pool.max_size)]


@pytest.mark.parametrize("size", [1, 4])
def test_the_async_api_works_through_a_pool_and_leaves_it_open(open_pool, size, namespace):
    async def main():
        async with open_pool(size=size) as pool:
            await pool.wait()
            before = pool.get_stats().get("requests_num", 0)
            await exercise_async(lambda: Backstay(pool, namespace=namespace))
            assert pool.get_stats()["requests_num"] > before
            assert all_returned(pool)  # at once, since `close` waits for all connections
            assert not pool.closed
            async with pool.connection() as connection:
                assert await (await connection.execute("SELECT 1")).fetchone() == (1,)

    asyncio.run(main())


class Slow(AsyncConnectionPool):
    async def putconn(self, conn):
        await asyncio.sleep(0.2)
        await super().putconn(conn)


def test_close_waits_until_every_connection_is_returned(backstay_postgres, namespace):
    async def main():
        async with Slow(backstay_postgres.url, min_size=2, open=False) as pool:
            async with Backstay(pool, namespace=namespace) as stay:
                await stay.locks.inspect("x")
                assert not all_returned(pool)
            assert all_returned(pool)

    asyncio.run(main())


def test_the_blocking_api_opens_its_own_connections(open_pool, namespace):
    async def main():
        async with open_pool() as pool:
            await pool.wait()
            before = pool.get_stats().get("requests_num", 0)
            await asyncio.to_thread(exercise_blocking, lambda: sync.Backstay(pool, namespace=namespace))
            assert pool.get_stats().get("requests_num", 0) == before

    asyncio.run(main())


@pytest.mark.parametrize("autocommit", [False, True])
def test_a_connection_is_returned_with_its_settings_unchanged(open_pool, autocommit, namespace):
    async def settings(connection):
        names = ("lock_timeout", "idle_in_transaction_session_timeout", "enable_seqscan", "search_path")
        found = {name: await (await connection.execute(f"SHOW {name}")).fetchone() for name in names}
        prepared = await connection.execute("SELECT name FROM pg_prepared_statements")
        found["prepared"] = await prepared.fetchall()
        await connection.commit()
        return found

    async def main():
        async with open_pool(size=1, kwargs={"row_factory": dict_row, "autocommit": autocommit}) as pool:
            async with pool.connection() as connection:
                await connection.execute("SET lock_timeout = '7s'")
                await connection.execute("SELECT 41", prepare=True)
                await connection.commit()
                before, pid = await settings(connection), connection.info.backend_pid
            async with Backstay(pool, namespace=namespace) as stay:
                for _ in range(12):
                    await (await stay.lock("x").acquire(wait=0)).release()
            async with pool.connection() as connection:
                assert connection.info.backend_pid == pid
                assert await settings(connection) == before
                assert connection.autocommit is autocommit
                assert connection.pgconn.transaction_status == TransactionStatus.IDLE
                assert connection.pgconn.pipeline_status == PipelineStatus.OFF
                assert await (await connection.execute("SELECT 1 AS one")).fetchone() == {"one": 1}

    asyncio.run(main())


@pytest.mark.timed
def test_leases_are_renewed_while_the_loop_is_blocked(open_pool, namespace):
    async def main():
        async with open_pool() as pool, Backstay(pool, namespace=namespace) as stay:
            lease = await stay.lock("x", ttl=1.5).acquire(wait=0)
            time.sleep(3)  # noqa: ASYNC251 - the test blocks the loop on purpose
            lease.check()
            assert (await stay.locks.inspect("x")).holders[0].lock_id == lease.id
            assert not (await lease.release()).idempotent

    asyncio.run(main())


@pytest.mark.timed
def test_leases_are_renewed_while_the_pool_is_exhausted(open_pool, namespace):
    async def main():
        async with open_pool(timeout=0.2) as pool, Backstay(pool, namespace=namespace) as stay:
            lease = await stay.lock("x", ttl=3).acquire(wait=0)
            began = lease.expires_at

            async def outlived():
                return lease.is_lost or (lease.expires_at - began).total_seconds() > 3

            async with AsyncExitStack() as stack:
                await drain_into(stack, pool)
                assert await soon(outlived)
                assert not lease.is_lost
            assert not (await lease.release()).idempotent

    asyncio.run(main())


def test_an_exhausted_pool_raises_engine_unavailable_in_time(open_pool, namespace):
    async def main():
        async with open_pool(timeout=0.2, name="web") as pool, Backstay(pool, namespace=namespace) as stay:
            async with AsyncExitStack() as stack:
                await drain_into(stack, pool)
                with pytest.raises(EngineUnavailable, match=r"pool 'web' \(max_size=2\) had no connection free"):
                    await stay.lock("x").acquire(wait=0)
            await (await stay.lock("x").acquire(wait=0)).release()
            await stay.close()
            assert all_returned(pool)

    asyncio.run(main())


def test_a_call_cancelled_while_the_pool_is_exhausted_leaks_nothing(open_pool, namespace):
    async def main():
        async with open_pool(timeout=5) as pool, Backstay(pool, namespace=namespace) as stay:
            async with AsyncExitStack() as stack:
                await drain_into(stack, pool)
                task = asyncio.create_task(stay.lock("x").acquire(wait=WITHIN))

                async def waited_for():
                    return pool.get_stats()["requests_waiting"]

                assert await soon(waited_for)
                task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

            async def free():
                return not (await stay.locks.inspect("x")).holders and not (await stay.locks.inspect("x")).queue

            assert await soon(free)
            await stay.close()
            assert all_returned(pool)

    asyncio.run(main())


def test_a_blocking_function_called_on_the_event_loop_does_not_deadlock(open_pool, namespace):
    async def main():
        async with open_pool() as pool, Backstay(pool, namespace=namespace) as stay:

            @stay.locked("report")
            def report():
                return "done"

            assert report() == "done"
            assert await asyncio.to_thread(report) == "done"
            await stay.close()
            assert all_returned(pool)

    asyncio.run(main())


def test_a_connection_for_a_withdrawn_request_is_returned(open_pool):
    async def main():
        async with open_pool(size=1) as pool:
            adapter = AsyncPoolAdapter(pool)
            adapter.loop = asyncio.get_running_loop()
            async with AsyncExitStack() as stack:
                await drain_into(stack, pool)
                request = ConnectionRequest(5)
                giving = asyncio.create_task(adapter._serve(request))
                assert await asyncio.to_thread(request.started.wait, 5)
                assert request.withdraw()
            await giving
            assert all_returned(pool)
            with pytest.raises(LoopBusy):
                request.result()

    asyncio.run(main())


def test_a_request_withdrawn_after_fulfilment_keeps_its_connection():
    request = ConnectionRequest(5)
    assert request.fulfil("a connection")
    assert not request.withdraw()
    assert request.result() == "a connection"


def test_a_pool_closed_by_its_owner_is_an_error_with_advice(open_pool, backstay_postgres, namespace):
    async def main():
        async with open_pool(name="web") as pool:
            stay = Backstay(pool, namespace=namespace)
            async with stay.lock("x", ttl=30):
                await pool.close()
                with pytest.raises(EngineUnavailable, match="pool 'web' was closed by its owner"):
                    await stay.locks.inspect("x")
            async with Backstay(backstay_postgres.url, namespace=namespace) as other:
                await (await other.lock("x").acquire(wait=WITHIN)).release()
            await stay.close()
            with pytest.raises(ConfigError, match="pool 'web' is closed"):
                Backstay(pool)

    asyncio.run(main())


def test_a_pool_may_be_opened_later(backstay_postgres, namespace):
    pool = AsyncConnectionPool(backstay_postgres.url, min_size=1, open=False)
    stay = Backstay(pool, namespace=namespace)  # at import time, before a loop runs

    async def main():
        async with pool, stay, stay.lock("x"):
            assert isinstance(stay.engine, PooledEngine)

    asyncio.run(main())


def test_connection_parameters_may_come_from_an_async_function(open_pool, backstay_postgres, namespace):
    asked = []

    async def conninfo():
        asked.append(asyncio.get_running_loop())
        return backstay_postgres.url

    async def main():
        async with open_pool(conninfo, size=1) as pool:
            await pool.wait()
            with pytest.raises(ConfigError, match="async function"):
                sync.Backstay(pool)
            before = len(asked)
            async with Backstay(pool, namespace=namespace) as stay, stay.hub.listen("news") as messages:
                await stay.hub.publish("news", "x")
                message = await messages.next(timeout=WITHIN)
                assert message is not None
            assert len(asked) > before
            assert set(asked) == {asyncio.get_running_loop()}

    asyncio.run(main())


@pytest.mark.chaos
def test_broken_connections_of_the_pool_are_skipped(open_pool, admin, namespace):
    async def main():
        kwargs = {"application_name": namespace}
        async with open_pool(size=6, kwargs=kwargs) as pool, Backstay(pool, namespace=namespace) as stay:
            lease = await stay.lock("x").acquire(wait=0)
            await pool.wait()
            terminate = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
            admin.execute(terminate, (namespace,))
            await lease.renew()
            await lease.release()

    asyncio.run(main())


def test_a_pool_carries_the_hints_of_another_engine(open_pool, namespace, tmp_path):
    url = f"sqlite:///{tmp_path / 'state.db'}"

    async def main():
        async with (
            open_pool() as pool,
            Backstay(url, namespace=namespace, hub=pool) as one,
            Backstay(url, namespace=namespace, hub=pool) as two,
        ):
            async with one.hub.listen("news") as messages:
                await two.hub.publish("news", "x")
                message = await messages.next(timeout=WITHIN)
            assert message is not None
            held = await one.lock("x").acquire(wait=0)
            waiter = asyncio.create_task(two.lock("x").acquire(wait=WITHIN))

            async def queued():
                return (await one.locks.inspect("x")).queue

            assert await soon(queued)
            await held.release()
            await (await asyncio.wait_for(waiter, WITHIN)).release()
            await one.close()
            await two.close()
            assert all_returned(pool)

    asyncio.run(main())


class Signed(psycopg.AsyncConnection):
    @classmethod
    async def connect(cls, *args, **kwargs):
        return await super().connect(*args, **kwargs)


def test_a_setting_that_cannot_be_used_is_named_in_the_error(backstay_postgres):
    pool = AsyncConnectionPool(backstay_postgres.url, connection_class=Signed, open=False)
    for kind in (Backstay, sync.Backstay):
        with pytest.raises(ConfigError, match="connection_class Signed"):
            kind(pool)
