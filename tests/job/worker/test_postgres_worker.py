"""Exchanges of a worker with PostgreSQL: under load it finishes and claims jobs on separate channels, and a resent
claim names no hint.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from backstay.errors import JobFailed, OutcomeUnknown
from backstay.job.api.context import continue_chain
from backstay.job.exchange import Claim, ExchangeReply
from backstay.job.ids import Ids
from backstay.job.model import NewJob
from backstay.job.stores.postgres.store import PostgresStore
from backstay.job.worker.channel import WorkerChannel, WorkerIdentity
from support.app import open_app, wait_until, working
from support.event_loop import on_a_loop

JOBS, SLOTS = 600, 40


@pytest.fixture
def exchanges(monkeypatch):
    """Record every exchange of every worker: the number of its finishes, and the number of jobs that it claims."""
    recorded = []
    exchange = PostgresStore.exchange

    def record(self, command):
        recorded.append((len(command.finishes), command.claim.want))
        return exchange(self, command)

    monkeypatch.setattr(PostgresStore, "exchange", record)
    return recorded


@pytest.mark.postgres
@on_a_loop
async def test_a_busy_worker_finishes_on_one_channel_and_claims_on_the_other(backstay_postgres, namespace, exchanges):
    stay = open_app(backstay_postgres.url, namespace)
    done = 0

    @stay.job()
    async def quick() -> None:
        nonlocal done
        done += 1

    async with stay:
        await quick.enqueue_many([()] * JOBS)
        async with working(stay, concurrency=SLOTS, prefetch=False):
            await wait_until(lambda: done == JOBS)
    assert all(want <= SLOTS for _, want in exchanges)
    assert sum(finishes for finishes, _ in exchanges) == JOBS
    assert any(finishes and not want for finishes, want in exchanges)
    assert any(want == SLOTS // 2 and not finishes for finishes, want in exchanges), "claims half of the slots"


@pytest.mark.postgres
@on_a_loop
async def test_a_worker_with_few_finishes_claims_in_the_same_exchange(backstay_postgres, namespace, exchanges):
    """One transaction is enough, so it sends no second exchange for the claim."""
    stay = open_app(backstay_postgres.url, namespace)
    gates, started = asyncio.Semaphore(0), 0

    @stay.job()
    async def slow() -> None:
        nonlocal started
        started += 1
        await gates.acquire()

    async with stay:
        await slow.enqueue_many([()] * 30)
        async with working(stay, concurrency=20):
            await wait_until(lambda: started == 20)
            exchanges.clear()
            for nth in range(1, 6):
                gates.release()
                await wait_until(
                    lambda nth=nth: sum(finishes for finishes, _ in exchanges) == nth and started == 20 + nth
                )
            assert all(want for finishes, want in exchanges if finishes)
            for _ in range(30):
                gates.release()


@on_a_loop
async def test_a_resent_claim_names_no_hint():
    """The lost copy may have used up the hint, which would deny the claim."""
    sent = []

    async def apply(command):
        sent.append(command)
        if len(sent) < 3:
            raise OutcomeUnknown("no reply")
        return ExchangeReply(now=1)

    core = SimpleNamespace(
        engine=SimpleNamespace(now=lambda: 1),
        port=SimpleNamespace(apply=apply),
        telemetry=SimpleNamespace(emit=lambda *_, **__: None),
    )
    channel = WorkerChannel(core, SimpleNamespace(exchange=lambda command: command), WorkerIdentity("w"), 0, 0)
    await channel.exchange([], Claim(want=3, hints=("one",)))
    assert [command.claim.hints for command in sent] == [("one",), (), ()]
    assert {(command.seq, command.claim.want) for command in sent} == {(1, 3)}


@pytest.mark.postgres
@on_a_loop
async def test_a_finish_that_the_server_cannot_store_fails_only_its_own_job(backstay_postgres, namespace):
    """Otherwise the worker would send it again and again, and block both of its channels."""
    stay = open_app(backstay_postgres.url, namespace)

    @stay.job(retries=0)
    async def unstorable() -> None:
        continue_chain(NewJob(id=Ids().new(0), type="next", labels=("a\0b",)))

    @stay.job()
    async def other() -> str:
        return "fine"

    async with stay, working(stay):
        for _ in range(3):
            await unstorable.enqueue()
        handle = await unstorable.enqueue()
        with pytest.raises(JobFailed, match="its outcome could not be stored"):
            await handle.result(timeout=20)
        assert await (await other.enqueue()).result(timeout=20) == "fine"
