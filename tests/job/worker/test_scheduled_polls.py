"""When a worker polls a shard whose last claim skipped a job that another transaction had locked."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from backstay import Backstay
from backstay.engine.base import steady
from backstay.job.exchange import ExchangeReply
from backstay.job.worker import producer
from backstay.job.worker.channel import WorkerChannel, WorkerIdentity
from backstay.job.worker.producer import Producer
from backstay.job.worker.shard_state import MOST_PATIENT
from backstay.job.worker.slots import QueueOrder, Slots
from support.app import wait_until
from support.event_loop import on_a_loop

#: Replies to a claim that found no job: because none is pending, or because the pending ones were locked.
NO_JOB, LOCKED = ExchangeReply(now=1, next_in=None), ExchangeReply(now=1, next_in=0)


@pytest.fixture
def exchanges(monkeypatch):
    """The exchanges that the worker has sent, as futures of their replies. The worker polls for no other reason."""
    monkeypatch.setattr(producer, "POLL", 600.0)
    sent = []

    async def exchange(self, finishes, claim):
        sent.append(asyncio.get_running_loop().create_future())
        return await sent[-1], 0.0

    monkeypatch.setattr(WorkerChannel, "exchange", exchange)
    return sent


@contextlib.asynccontextmanager
async def open_producer(channels):
    """Open a producer with one shard and so many channels to it."""
    async with Backstay("memory://") as stay:
        store = SimpleNamespace(shards=1, channels_per_shard=channels, splits_claim_and_ack=False)
        made = Producer(
            stay._core,
            store,
            WorkerIdentity("w"),
            Slots(4),
            QueueOrder("default"),
            labels=(),
            lease=600,
            prefetcher=Mock(),
            start=Mock(),
            on_acknowledged=Mock(),
        )
        try:
            yield made
        finally:
            await made.close()


@pytest.fixture
def no_timer(monkeypatch):
    """Polls are scheduled, but not started."""
    monkeypatch.setattr(Producer, "_arm_timer", lambda self, at: None)


async def wait_idle(made):
    await wait_until(lambda: not any(channel.busy for channel in made.shards[0].channels))


@on_a_loop
async def test_the_reply_to_one_channel_does_not_postpone_the_poll_that_another_has_scheduled(exchanges, no_timer):
    async with open_producer(channels=2) as made:
        made.begin()
        await wait_until(lambda: len(exchanges) == 2)
        exchanges[0].set_result(LOCKED)
        await wait_until(lambda: not made.shards[0].channels[0].busy)
        exchanges[1].set_result(NO_JOB)
        await wait_idle(made)
        assert made.shards[0].poll_at < steady() + 1


@on_a_loop
async def test_a_claim_for_an_announcement_does_not_postpone_a_scheduled_poll(exchanges, no_timer):
    async with open_producer(channels=1) as made:
        made.begin()
        await wait_until(lambda: len(exchanges) == 1)
        exchanges[0].set_result(LOCKED)
        await wait_idle(made)
        made.on_announcement("a hint")
        await wait_until(lambda: len(exchanges) == 2)
        exchanges[1].set_result(NO_JOB)
        await wait_idle(made)
        assert made.shards[0].poll_at < steady() + 1


@on_a_loop
async def test_a_poll_replaces_those_that_were_scheduled_before_it(exchanges, no_timer):
    async with open_producer(channels=1) as made:
        made.begin()
        await wait_until(lambda: len(exchanges) == 1)
        exchanges[0].set_result(LOCKED)
        await wait_idle(made)
        made.poll_all()
        await wait_until(lambda: len(exchanges) == 2)
        exchanges[1].set_result(NO_JOB)
        await wait_idle(made)
        assert made.shards[0].poll_at > steady() + 60


@on_a_loop
async def test_a_worker_that_ends_with_its_jobs_waits_for_a_locked_one(exchanges):
    ended = []
    async with open_producer(channels=1) as made:
        made.on_exhausted = lambda: ended.append(len(exchanges))
        made.begin()
        await wait_until(lambda: len(exchanges) == 1)
        exchanges[0].set_result(LOCKED)
        await wait_until(lambda: len(exchanges) == 2)
        exchanges[1].set_result(NO_JOB)
        await wait_until(lambda: ended)
    assert ended == [2]


@on_a_loop
async def test_a_worker_that_ends_with_its_jobs_does_not_wait_for_a_locked_one_forever(exchanges):
    ended = []
    async with open_producer(channels=1) as made:
        made.on_exhausted = lambda: ended.append(len(exchanges))
        made.begin()
        for nth in range(MOST_PATIENT):
            await wait_until(lambda nth=nth: len(exchanges) > nth)
            exchanges[nth].set_result(LOCKED)
        await wait_until(lambda: ended)
    assert ended == [MOST_PATIENT]
