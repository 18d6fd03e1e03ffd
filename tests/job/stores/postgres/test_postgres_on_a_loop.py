"""What an event loop asks of the job tables is carried out on its own thread, and by another where that will not do."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager

import psycopg
import pytest

from backstay.engine.base import Ping
from backstay.engine.postgres.address import parse
from backstay.engine.postgres.engine import PostgresEngine
from backstay.engine.postgres.pipeline.pipeline import PipelineConnection
from backstay.errors import Closed, OutcomeUnknown
from backstay.job.ids import Ids
from backstay.job.model import Claim, ExchangeCommand, Finish, NewJob
from backstay.job.run_model import NewRun
from backstay.job.stores.postgres.store import PostgresStore
from backstay.testing.proxy import FaultProxy
from backstay.testing.waiting import soon
from support.event_loop import on_a_loop

pytestmark = pytest.mark.postgres

SECOND = 1_000_000
IDS = Ids()


def job(**fields):
    return NewJob(id=IDS.new(0), type="work", **fields)


@pytest.fixture
def store(namespace):
    return PostgresStore(namespace, namespace)


@pytest.fixture
def opened(backstay_postgres, namespace, store, at_threads):
    """An engine, on whichever loop runs, with its connections open."""

    @asynccontextmanager
    async def opened(options="", by_way_of=str):
        engine = PostgresEngine(parse(by_way_of(backstay_postgres.url) + options), namespace=namespace)
        engine.correct_clock(await engine.submit(Ping()))
        await engine.submit(store.enqueue(0, [job()]))
        await step(engine, store, want=1)
        at_threads.clear()
        yield engine
        await engine.close()

    return opened


@pytest.fixture
def at_threads(monkeypatch):
    """Names of the threads on which rounds were carried out, but for those of a loop."""
    seen = []
    carry_out = PipelineConnection._send_round_trip

    def counted(self, session, procedures, **options):
        seen.append(threading.current_thread().name)
        carry_out(self, session, procedures, **options)

    monkeypatch.setattr(PipelineConnection, "_send_round_trip", counted)
    return seen


async def step(engine, store, *, lane=0, **given):
    return await engine.submit(store.exchange(command(engine, lane=lane, **given)))


SEQ = iter(range(1, 1_000_000))


def command(engine, *, lane=0, finishes=(), want=0):
    return ExchangeCommand(
        shard=0,
        worker="w",
        incarnation="i",
        channel=lane,
        seq=next(SEQ),
        finishes=tuple(finishes),
        claim=Claim(want=want, lease=30 * SECOND),
        not_after=engine.now() + 30 * SECOND,
    )


def ends(jobs):
    return [Finish(job=job.id, fence=job.fence, kind="complete") for job in jobs]


@on_a_loop
async def test_exchanges_and_enqueues_need_no_other_thread(opened, store, at_threads):
    async with opened() as engine:
        await engine.submit(store.enqueue(0, [job() for _ in range(30)]))
        reply = await step(engine, store, want=30)
        told = await step(engine, store, finishes=ends(reply.jobs))
        assert (len(reply.jobs), set(told.verdicts)) == (30, {"ok"})
        assert at_threads == []


@on_a_loop
async def test_commands_submitted_during_a_round_trip_form_the_next_batch(opened, store, at_threads):
    async with opened() as engine:
        made = await asyncio.gather(*[_later(n, engine.submit, store.enqueue(0, [job()])) for n in range(40)])
        assert {one.state for (one,) in made} == {"pending"}
        assert at_threads == []


def _said(things):
    async def said():
        return things

    return said


async def _later(turns, call, *args):
    for _ in range(turns):
        await asyncio.sleep(0)
    return await call(*args)


@on_a_loop
async def test_a_transaction_of_several_round_trips_runs_on_a_thread(opened, store, at_threads):
    async with opened() as engine:
        run = IDS.new(0)
        await engine.submit(store.start_run(NewRun(id=run, workflow="w", jobs=(job(run=run),))))
        assert at_threads
        assert "MainThread" not in at_threads


@on_a_loop
async def test_a_request_larger_than_one_write_runs_on_a_thread(opened, store):
    async with opened() as engine:
        args = bytes(200_000)
        jobs = [job(args=args) for _ in range(200)]
        made = await engine.submit(store.enqueue(0, jobs))
        assert {one.state for one in made} == {"pending"}


@on_a_loop
async def test_a_blocked_loop_does_not_block_commands_of_other_threads(opened, store):
    """The loop does not read the reply of its exchange; a thread sends another exchange for the same channel."""
    async with opened() as engine:
        await engine.submit(store.enqueue(0, [job()]))
        under_way = engine.submit(store.exchange(command(engine, want=1)))
        answers = []
        other = threading.Thread(target=lambda: answers.append(engine.apply(store.exchange(command(engine, want=1)))))
        other.start()
        await asyncio.sleep(0)  # the step leaves
        other.join(5)  # and from here on the loop does nothing
        assert len(answers) == 1
        assert not under_way.done()
        reply = await under_way
        assert len(reply.jobs) + len(answers[0].jobs) == 1


@on_a_loop
async def test_a_connection_that_broke_while_idle_is_replaced(opened, store, backstay_postgres):
    async with opened() as engine:
        with psycopg.connect(backstay_postgres.url, autocommit=True) as admin:
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND"
                " pid <> pg_backend_pid()"
            )
        await asyncio.sleep(0.05)
        (made,) = await engine.submit(store.enqueue(0, [job()]))
        assert made.state == "pending"
        assert len((await step(engine, store, want=1)).jobs) == 1


@on_a_loop
async def test_a_connection_that_breaks_under_a_commit_leaves_its_outcome_unknown(opened, store, backstay_postgres):
    async with opened() as engine:
        with psycopg.connect(backstay_postgres.url) as admin:
            admin.execute("LOCK TABLE backstay_job IN ACCESS EXCLUSIVE MODE")
            asked = engine.submit(store.enqueue(0, [job()]))
            await asyncio.sleep(0.05)
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE NOT granted")
            with pytest.raises(OutcomeUnknown):
                await asked


@on_a_loop
async def test_a_statement_past_its_lock_timeout_is_retried(opened, store, backstay_postgres, at_threads):
    async with opened() as engine:
        with psycopg.connect(backstay_postgres.url) as admin:
            admin.execute("LOCK TABLE backstay_job IN ACCESS EXCLUSIVE MODE")
            asked = engine.submit(store.enqueue(0, [job()]))
            assert await soon(_said(at_threads))  # the first try has failed
            admin.rollback()
            (made,) = await asked
        assert made.state == "pending"


@on_a_loop
async def test_a_missing_reply_times_out(opened, store, backstay_postgres):
    with FaultProxy(backstay_postgres.port) as proxy:
        async with opened("?timeout=1", proxy.instead_of) as engine:
            proxy.once("drop", b"COMMIT")
            new = job()
            with pytest.raises(OutcomeUnknown):
                await engine.submit(store.enqueue(0, [new]))
            (known,) = await engine.submit(store.enqueue(0, [new]))
            assert known.id == new.id


@on_a_loop
async def test_closing_waits_for_running_commands(opened, store):
    async with opened() as engine:
        asked = engine.submit(store.enqueue(0, [job()]))
        await asyncio.sleep(0)
    (made,) = await asked
    assert made.state == "pending"
    with pytest.raises(Closed):
        engine.submit(store.enqueue(0, [job()]))


def test_a_loop_that_ends_during_a_command_leaves_nothing_stuck(backstay_postgres, namespace, store):
    engine = PostgresEngine(parse(backstay_postgres.url), namespace=namespace)
    new = job()

    async def leave() -> None:
        engine.correct_clock(await engine.submit(Ping()))
        await step(engine, store)
        engine.submit(store.exchange(command(engine)))
        await engine.submit(store.enqueue(0, [job()]))
        engine.submit(store.enqueue(0, [new]))
        await asyncio.sleep(0)

    asyncio.run(leave())
    reply = engine.apply(store.exchange(command(engine, want=5)))
    assert len(reply.jobs) >= 1
    engine.close_blocking()
