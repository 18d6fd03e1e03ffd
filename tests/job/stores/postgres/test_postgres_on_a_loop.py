"""Operations of an event loop on PostgreSQL run on the loop's own thread, unless they need several round trips or a
large request: those run on another thread.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager

import psycopg
import pytest
from postgres_store_client import job, plan_run

from backstay.engine.base import Ping
from backstay.engine.postgres.address import parse
from backstay.engine.postgres.engine import PostgresEngine
from backstay.engine.postgres.pipeline.pipeline import PipelineConnection
from backstay.errors import Closed, OutcomeUnknown
from backstay.testing.proxy import FaultProxy
from backstay.testing.waiting import soon
from support.event_loop import on_a_loop
from support.store_client import StoreClient, finish

pytestmark = pytest.mark.postgres


class LoopClient(StoreClient):
    """A client that submits its operations on the running event loop."""

    async def submit(self, verb, *args):
        return await self.engine.submit(getattr(self.store, verb)(*args))


@pytest.fixture
def opened(backstay_postgres, namespace, store, thread_names):
    """Open a client on the running event loop, with its connections open."""

    @asynccontextmanager
    async def opened(options="", through=str):
        engine = PostgresEngine(parse(through(backstay_postgres.url) + options), namespace=namespace)
        engine.correct_clock(await engine.submit(Ping()))
        client = LoopClient(engine, store, want=0)
        await client.submit("enqueue", 0, [job()])
        await client.submit("exchange", client.command(want=1))
        thread_names.clear()
        yield client
        await engine.close()

    return opened


@pytest.fixture
def thread_names(monkeypatch):
    """The names of the threads that send round trips; those that an event loop sends itself are not recorded."""
    names = []
    send = PipelineConnection._send_round_trip

    def record(self, session, procedures, **options):
        names.append(threading.current_thread().name)
        send(self, session, procedures, **options)

    monkeypatch.setattr(PipelineConnection, "_send_round_trip", record)
    return names


@on_a_loop
async def test_exchanges_and_enqueues_need_no_other_thread(opened, thread_names):
    async with opened() as client:
        await client.submit("enqueue", 0, [job() for _ in range(30)])
        claimed = await client.submit("exchange", client.command(want=30))
        finished = await client.submit("exchange", client.command(map(finish, claimed.jobs)))
        assert (len(claimed.jobs), set(finished.verdicts)) == (30, {"ok"})
        assert thread_names == []


@on_a_loop
async def test_commands_submitted_during_a_round_trip_form_the_next_batch(opened, thread_names):
    async with opened() as client:
        made = await asyncio.gather(*[after_turns(n, client.submit("enqueue", 0, [job()])) for n in range(40)])
        assert {one.state for (one,) in made} == {"pending"}
        assert thread_names == []


async def after_turns(turns, coroutine):
    """Await a coroutine after the given number of turns of the event loop."""
    for _ in range(turns):
        await asyncio.sleep(0)
    return await coroutine


@on_a_loop
async def test_a_transaction_of_several_round_trips_runs_on_a_thread(opened, thread_names):
    async with opened() as client:
        await client.submit("start_run", plan_run(()))
        assert thread_names
        assert "MainThread" not in thread_names


@on_a_loop
async def test_a_request_larger_than_one_write_runs_on_a_thread(opened):
    async with opened() as client:
        args = bytes(200_000)
        jobs = [job(args=args) for _ in range(200)]
        made = await client.submit("enqueue", 0, jobs)
        assert {one.state for one in made} == {"pending"}


@on_a_loop
async def test_a_blocked_loop_does_not_block_commands_of_other_threads(opened):
    """The loop does not read the reply of its exchange; a thread sends another exchange for the same channel."""
    async with opened() as client:
        await client.submit("enqueue", 0, [job()])
        in_flight = client.engine.submit(client.store.exchange(client.command(want=1)))
        replies = []
        other = threading.Thread(target=lambda: replies.append(client.exchange(want=1)))
        other.start()
        await asyncio.sleep(0)  # the loop sends its exchange
        other.join(5)  # blocks the loop
        assert len(replies) == 1
        assert not in_flight.done()
        reply = await in_flight
        assert len(reply.jobs) + len(replies[0].jobs) == 1


@on_a_loop
async def test_a_connection_that_broke_while_idle_is_replaced(opened, backstay_postgres):
    async with opened() as client:
        with psycopg.connect(backstay_postgres.url, autocommit=True) as admin:
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND"
                " pid <> pg_backend_pid()"
            )
        await asyncio.sleep(0.05)
        (made,) = await client.submit("enqueue", 0, [job()])
        assert made.state == "pending"
        assert len((await client.submit("exchange", client.command(want=1))).jobs) == 1


@on_a_loop
async def test_a_connection_that_breaks_under_a_commit_leaves_its_outcome_unknown(opened, backstay_postgres):
    async with opened() as client:
        with psycopg.connect(backstay_postgres.url) as admin:
            admin.execute("LOCK TABLE backstay_job IN ACCESS EXCLUSIVE MODE")
            pending = client.engine.submit(client.store.enqueue(0, [job()]))
            await asyncio.sleep(0.05)
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE NOT granted")
            with pytest.raises(OutcomeUnknown):
                await pending


@on_a_loop
async def test_a_statement_past_its_lock_timeout_is_retried(opened, backstay_postgres, thread_names):
    async with opened() as client:
        with psycopg.connect(backstay_postgres.url) as admin:
            admin.execute("LOCK TABLE backstay_job IN ACCESS EXCLUSIVE MODE")
            pending = client.engine.submit(client.store.enqueue(0, [job()]))

            async def is_retried():
                return thread_names

            assert await soon(is_retried)  # the retry runs on a thread
            admin.rollback()
            (made,) = await pending
        assert made.state == "pending"


@on_a_loop
async def test_a_missing_reply_times_out(opened, backstay_postgres):
    with FaultProxy(backstay_postgres.port) as proxy:
        async with opened("?timeout=1", proxy.instead_of) as client:
            proxy.once("drop", b"COMMIT")
            new = job()
            with pytest.raises(OutcomeUnknown):
                await client.submit("enqueue", 0, [new])
            (known,) = await client.submit("enqueue", 0, [new])
            assert known.id == new.id


@on_a_loop
async def test_closing_waits_for_running_commands(opened):
    async with opened() as client:
        pending = client.engine.submit(client.store.enqueue(0, [job()]))
        await asyncio.sleep(0)
    (made,) = await pending
    assert made.state == "pending"
    with pytest.raises(Closed):
        client.engine.submit(client.store.enqueue(0, [job()]))


def test_a_loop_that_ends_during_a_command_leaves_nothing_stuck(backstay_postgres, namespace, store):
    engine = PostgresEngine(parse(backstay_postgres.url), namespace=namespace)
    client = LoopClient(engine, store, want=0)

    async def end_during_commands() -> None:
        engine.correct_clock(await engine.submit(Ping()))
        await client.submit("exchange", client.command())
        engine.submit(store.exchange(client.command()))
        await client.submit("enqueue", 0, [job()])
        engine.submit(store.enqueue(0, [job()]))
        await asyncio.sleep(0)

    asyncio.run(end_during_commands())
    assert len(client.claim(5)) >= 1
    engine.close_blocking()
