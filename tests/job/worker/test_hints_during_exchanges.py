"""Hints that a worker receives during another operation: their jobs begin as soon as a slot is free."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from backstay import Backstay
from backstay.engine.base import steady
from backstay.job.worker import producer
from backstay.job.worker.channel import WorkerChannel
from backstay.job.worker.execution.attempt import Attempt
from backstay.job.worker.lease_renewer import LeaseRenewer
from backstay.job.worker.notifications import NotificationListener
from backstay.job.worker.producer import Producer
from backstay.job.worker.slots import Slots
from backstay.job.worker.waiting_claim import WaitingClaim
from backstay.runtime.lease_keeper import RETRY_AT_MOST
from backstay.telemetry import Telemetry
from backstay.testing.waiting import WITHIN, soon
from support.app import POSTGRES, REDIS, open_app, url_of, wait_for_state, wait_until, working
from support.event_loop import on_a_loop


@pytest.fixture(autouse=True)
def hints_alone(monkeypatch):
    """Disable polling and direct handoff, so that only hints wake the worker."""
    monkeypatch.setattr(producer, "POLL", 600.0)
    monkeypatch.setattr(WaitingClaim, "spec", lambda self: None)


@pytest.fixture(params=[REDIS, POSTGRES])
def url(request):
    return url_of(request.param, request)


class Announcements:
    """Records the announcements that workers receive, and withholds them from the workers while `withhold` is set."""

    def __init__(self, monkeypatch):
        self.received, self.withhold, self.on_announcement = [], False, Producer.on_announcement

        def receive(producer_, hint):
            self.received.append((producer_, hint))
            if not self.withhold:
                self.on_announcement(producer_, hint)

        monkeypatch.setattr(Producer, "on_announcement", receive)

    async def open(self, stay, worker):
        """Wait until the worker receives announcements and its claims have found no job."""

        async def is_received():
            await stay.hub.publish_scheduled("hold", 1)
            return self.received

        assert await soon(is_received, WITHIN)
        await wait_until(lambda: worker._producer.is_exhausted)
        self.received.clear()


def define_hold(stay):
    """Define a job that runs until its event is set. Returns it, and the events of the running jobs by argument."""
    gates = {}

    @stay.job()
    async def hold(n: int) -> None:
        gates[n] = asyncio.Event()
        await gates[n].wait()

    return hold, gates


@on_a_loop
async def test_a_hint_received_together_with_a_finish_fills_all_slots(url, namespace, monkeypatch):
    """The claim in the exchange of the finish names no hint; the jobs that it did not get are claimed, too."""
    stay, announcements = open_app(url, namespace), Announcements(monkeypatch)
    hold, gates = define_hold(stay)
    finish = Producer.finish

    def with_hints(self, attempt):
        finish(self, attempt)
        while announcements.received:
            announcements.on_announcement(*announcements.received.pop())

    async with stay, working(stay, concurrency=4, lease=600) as worker:
        await announcements.open(stay, worker)
        for n in range(2):
            await wait_for_state(stay, await hold.enqueue(n), "running")
        await wait_until(lambda: worker._producer.is_exhausted)
        announcements.withhold = True
        announcements.received.clear()
        monkeypatch.setattr(Producer, "finish", with_hints)
        await hold.enqueue_many([(n,) for n in range(2, 5)])
        await wait_until(lambda: announcements.received)
        gates[0].set()
        try:
            await wait_until(lambda: len(gates) == 5)
        finally:
            for gate in gates.values():
                gate.set()


@on_a_loop
async def test_a_hint_beyond_the_limit_of_one_claim_is_kept_for_the_next(url, namespace, monkeypatch):
    stay, announcements = open_app(url, namespace), Announcements(monkeypatch)
    hold, gates = define_hold(stay)

    async with stay, working(stay, concurrency=4, lease=600) as worker:
        await announcements.open(stay, worker)
        announcements.withhold = True
        await hold.enqueue(0)
        await wait_until(lambda: announcements.received)
        used = await stay.hub.publish_scheduled("hold", 1)
        await stay.hub.take_hint(used)
        producer_ = worker._producer
        producer_._flush_scheduled = True  # so all hints are processed in one flush
        for _ in range(producer.MOST):
            announcements.on_announcement(producer_, used)
        announcements.on_announcement(*announcements.received[0])
        producer_._flush()
        try:
            await wait_until(lambda: 0 in gates)
        finally:
            for gate in gates.values():
                gate.set()


@pytest.mark.postgres
@on_a_loop
async def test_a_hint_received_while_all_slots_are_being_claimed_is_kept(backstay_postgres, namespace, monkeypatch):
    stay, announcements = open_app(backstay_postgres.url, namespace), Announcements(monkeypatch)
    hold, gates = define_hold(stay)
    exchange, replies = WorkerChannel.exchange, []

    async def delay_reply(channel, finishes, claim):
        reply = await exchange(channel, finishes, claim)
        if len(replies) < 2:
            replies.append(asyncio.Event())
            await replies[-1].wait()
        return reply

    async with stay, working(stay, concurrency=2, lease=600) as worker:
        await announcements.open(stay, worker)
        monkeypatch.setattr(WorkerChannel, "exchange", delay_reply)
        worker._producer.poll_all()  # finds no job, and gets that reply last
        await wait_until(lambda: len(replies) == 1)
        await hold.enqueue(1)
        await wait_until(lambda: len(replies) == 2)
        announcements.received.clear()
        await hold.enqueue(2)
        await wait_until(lambda: announcements.received)
        replies[1].set()
        await wait_until(lambda: 1 in gates)
        replies[0].set()
        try:
            await wait_until(lambda: 2 in gates)
        finally:
            for gate in gates.values():
                gate.set()


@on_a_loop
async def test_a_cancellation_received_while_its_job_starts_is_not_lost():
    """The hub receives messages on its own thread."""
    renewed = []

    class Leased(dict):
        def __contains__(self, job_id):
            known = super().__contains__(job_id)
            self[job_id] = object()  # the job starts right after the check
            listener.on_started([SimpleNamespace(id=job_id)])
            return known

    async with Backstay("memory://") as stay:
        slots = Slots(1)
        slots.leased = Leased()
        listener = NotificationListener(stay._core, slots, None, None, renewed.append)
        listener._on_ownership_lost("a job")
    assert renewed == ["a job"]


def test_a_renewal_requested_during_a_renewal_is_sent_by_the_next():
    """The reply of the running renewal may predate the cancellation."""
    calls = []

    class Engine:
        def apply_many(self, ops, timeout):
            calls.append(len(ops))
            if len(calls) == 1:
                renewer.renew_now("a job")
            return [["ok"]]

        def now(self):
            return 0

    core = SimpleNamespace(
        engine=Engine(), keeper=SimpleNamespace(wake=lambda at: None), telemetry=Telemetry(), port=None
    )
    slots = Slots(1)
    renewer = LeaseRenewer(
        core, Mock(), slots, "worker", lease=600, grace=1, on_lost=calls.append, on_cancelled=calls.append
    )
    now = steady()
    attempt = slots.leased["a job"] = Attempt(Mock(id="a job", fence=1), Mock(), 0, 600, now)
    renewer.renew_now("a job")
    assert renewer.renew_due(now) <= now + RETRY_AT_MOST
    renewer.renew_due(steady())
    assert calls == [1, 1]
    assert attempt.renew_at > now
