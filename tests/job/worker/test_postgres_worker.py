"""How a worker talks to PostgreSQL: ends and claims apart while there is much of both; hints at the first try only."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from backstay.errors import JobFailed, OutcomeUnknown
from backstay.job.api.context import continue_chain
from backstay.job.ids import Ids
from backstay.job.model import Claim, ExchangeReply, NewJob
from backstay.job.stores.postgres.store import PostgresStore
from backstay.job.worker.channel import Identity, WorkerChannel
from backstay.testing.waiting import soon
from support.app import open_app, working
from support.event_loop import on_a_loop

JOBS, SLOTS = 600, 40


async def reached(claim):
    async def there():
        return claim()

    assert await soon(there, 30)


@pytest.fixture
def steps(monkeypatch):
    """Every step of every worker: how many ends, how many wanted."""
    seen = []
    step = PostgresStore.exchange

    def noted(self, command):
        seen.append((len(command.finishes), command.claim.want))
        return step(self, command)

    monkeypatch.setattr(PostgresStore, "exchange", noted)
    return seen


@pytest.mark.postgres
@on_a_loop
async def test_a_busy_worker_finishes_on_one_channel_and_claims_on_the_other(backstay_postgres, namespace, steps):
    stay = open_app(backstay_postgres.url, namespace)
    done = 0

    @stay.job()
    async def quick() -> None:
        nonlocal done
        done += 1

    async with stay:
        await quick.enqueue_many([()] * JOBS)
        async with working(stay, concurrency=SLOTS, prefetch=False):
            await reached(lambda: done == JOBS)
    assert all(want <= SLOTS for _, want in steps)
    assert sum(ends for ends, _ in steps) == JOBS
    assert any(ends and not want for ends, want in steps)
    assert any(want == SLOTS // 2 and not ends for ends, want in steps), "while some run, as many are asked for"


@pytest.mark.postgres
@on_a_loop
async def test_a_worker_with_few_finishes_claims_in_the_same_exchange(backstay_postgres, namespace, steps):
    """Two transactions where one will do would be one too many."""
    stay = open_app(backstay_postgres.url, namespace)
    gates, begun = asyncio.Semaphore(0), 0

    @stay.job()
    async def slow() -> None:
        nonlocal begun
        begun += 1
        await gates.acquire()

    async with stay:
        await slow.enqueue_many([()] * 30)
        async with working(stay, concurrency=20):
            await reached(lambda: begun == 20)
            steps.clear()
            for place in range(1, 6):
                gates.release()
                await reached(lambda: sum(ends for ends, _ in steps) == place and begun == 20 + place)  # noqa: B023 - now
            assert all(want for ends, want in steps if ends)
            for _ in range(30):
                gates.release()


@on_a_loop
async def test_a_resent_claim_names_no_hint():
    """Its counter may have been taken from by the copy that was lost: asked again, it would deny."""
    sent = []

    async def apply(command):
        sent.append(command)
        if len(sent) < 3:
            raise OutcomeUnknown("no answer")
        return ExchangeReply(now=1)

    core = SimpleNamespace(
        engine=SimpleNamespace(now=lambda: 1),
        port=SimpleNamespace(apply=apply),
        telemetry=SimpleNamespace(emit=lambda *_, **__: None),
    )
    lane = WorkerChannel(core, SimpleNamespace(exchange=lambda command: command), Identity("w"), 0, 0)
    await lane.exchange([], Claim(want=3, hints=("one",)))
    assert [command.claim.hints for command in sent] == [("one",), (), ()]
    assert {(command.seq, command.claim.want) for command in sent} == {(1, 3)}


@pytest.mark.postgres
@on_a_loop
async def test_a_finish_that_the_server_cannot_store_fails_only_its_own_job(backstay_postgres, namespace):
    """Sent again and again, it would keep both lanes of every worker that ever takes the job."""
    stay = open_app(backstay_postgres.url, namespace)

    @stay.job(retries=0)
    async def poison() -> None:
        continue_chain(NewJob(id=Ids().new(0), type="next", labels=("a\0b",)))

    @stay.job()
    async def other() -> str:
        return "fine"

    async with stay, working(stay):
        for _ in range(3):
            await poison.enqueue()
        handle = await poison.enqueue()
        with pytest.raises(JobFailed, match="its outcome could not be stored"):
            await handle.result(timeout=20)
        assert await (await other.enqueue()).result(timeout=20) == "fine"
