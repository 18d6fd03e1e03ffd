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
from backstay.runtime.keeper import RETRY_AT_MOST
from backstay.telemetry import Telemetry
from backstay.testing.waiting import WITHIN, soon
from support.app import POSTGRES, REDIS, open_app, reaches, url_of, working
from support.event_loop import on_a_loop


@pytest.fixture(autouse=True)
def hints_alone(monkeypatch):
    """Disable polling and direct handoff, so that only hints wake the worker."""
    monkeypatch.setattr(producer, "POLL", 600.0)
    monkeypatch.setattr(WaitingClaim, "spec", lambda self: None)


@pytest.fixture(params=[REDIS, POSTGRES])
def url(request):
    return url_of(request.param, request)


class Ears:
    """Records a worker's announcements and holds them back while `deaf` is set."""

    def __init__(self, monkeypatch):
        self.heard, self.deaf, self.on_announcement = [], False, Producer.on_announcement

        def hear(producer_, hint):
            self.heard.append((producer_, hint))
            if not self.deaf:
                self.on_announcement(producer_, hint)

        monkeypatch.setattr(Producer, "on_announcement", hear)

    async def open(self, stay, worker):
        """It listens, and has found nothing."""

        async def there():
            await stay.hub.publish_scheduled("hold", 1)
            return self.heard

        assert await soon(there, WITHIN)
        await reached(lambda: worker._producer.is_exhausted)
        self.heard.clear()


def holding(stay):
    """A job that runs until it is let go, and who runs."""
    gates = {}

    @stay.job()
    async def hold(n: int) -> None:
        gates[n] = asyncio.Event()
        await gates[n].wait()

    return hold, gates


async def reached(claim):
    async def there():
        return claim()

    assert await soon(there, WITHIN)


@on_a_loop
async def test_a_hint_received_together_with_a_finish_fills_all_slots(url, namespace, monkeypatch):
    """The claim sent with the finish names no hint; the jobs that it leaves are claimed, too."""
    stay, ears = open_app(url, namespace), Ears(monkeypatch)
    hold, gates = holding(stay)
    finish = Producer.finish

    def with_hints(self, attempt):
        finish(self, attempt)
        while ears.heard:
            ears.on_announcement(*ears.heard.pop())

    async with stay, working(stay, concurrency=4, lease=600) as worker:
        await ears.open(stay, worker)
        for n in range(2):
            await reaches(stay, await hold.enqueue(n), "running")
        await reached(lambda: worker._producer.is_exhausted)
        ears.deaf = True
        ears.heard.clear()
        monkeypatch.setattr(Producer, "finish", with_hints)
        await hold.enqueue_many([(n,) for n in range(2, 5)])
        await reached(lambda: ears.heard)
        gates[0].set()
        try:
            await reached(lambda: len(gates) == 5)
        finally:
            for gate in gates.values():
                gate.set()


@on_a_loop
async def test_a_hint_beyond_the_limit_of_one_claim_is_kept_for_the_next(url, namespace, monkeypatch):
    stay, ears = open_app(url, namespace), Ears(monkeypatch)
    hold, gates = holding(stay)

    async with stay, working(stay, concurrency=4, lease=600) as worker:
        await ears.open(stay, worker)
        ears.deaf = True
        await hold.enqueue(0)
        await reached(lambda: ears.heard)
        used = await stay.hub.publish_scheduled("hold", 1)
        await stay.hub.take_hint(used)
        producer_ = worker._producer
        producer_._flush_scheduled = True  # all of them are processed in one turn of the loop
        for _ in range(producer.MOST):
            ears.on_announcement(producer_, used)
        ears.on_announcement(*ears.heard[0])
        producer_._flush()
        try:
            await reached(lambda: 0 in gates)
        finally:
            for gate in gates.values():
                gate.set()


@pytest.mark.postgres
@on_a_loop
async def test_a_hint_received_while_all_slots_are_being_claimed_is_kept(backstay_postgres, namespace, monkeypatch):
    stay, ears = open_app(backstay_postgres.url, namespace), Ears(monkeypatch)
    hold, gates = holding(stay)
    step, replies = WorkerChannel.exchange, []

    async def held_up(lane, finishes, claim):
        answer = await step(lane, finishes, claim)
        if len(replies) < 2:
            replies.append(asyncio.Event())
            await replies[-1].wait()
        return answer

    async with stay, working(stay, concurrency=2, lease=600) as worker:
        await ears.open(stay, worker)
        monkeypatch.setattr(WorkerChannel, "exchange", held_up)
        worker._producer.poll_all()  # finds nothing, and gets that reply last
        await reached(lambda: len(replies) == 1)
        await hold.enqueue(1)
        await reached(lambda: len(replies) == 2)
        ears.heard.clear()
        await hold.enqueue(2)
        await reached(lambda: ears.heard)
        replies[1].set()
        await reached(lambda: 1 in gates)
        replies[0].set()
        try:
            await reached(lambda: 2 in gates)
        finally:
            for gate in gates.values():
                gate.set()


@on_a_loop
async def test_a_cancellation_received_while_its_job_starts_is_not_lost():
    """The hub receives messages on its own thread."""
    wanted = []

    class Held(dict):
        def __contains__(self, job_id):
            known = super().__contains__(job_id)
            self[job_id] = object()  # it begins, right behind the question
            listener.on_started([SimpleNamespace(id=job_id)])
            return known

    async with Backstay("memory://") as stay:
        slots = Slots(1)
        slots.leased = Held()
        listener = NotificationListener(stay._core, slots, None, None, wanted.append)
        listener._on_ownership_lost("a job")
    assert wanted == ["a job"]


def test_a_renewal_requested_during_a_renewal_is_sent_by_the_next():
    """The reply of the running renewal may predate the cancellation."""
    asked = []

    class Engine:
        def apply_many(self, ops, timeout):
            asked.append(len(ops))
            if len(asked) == 1:
                renewer.renew_now("a job")
            return [["ok"]]

        def now(self):
            return 0

    core = SimpleNamespace(
        engine=Engine(), keeper=SimpleNamespace(wake=lambda at: None), telemetry=Telemetry(), port=None
    )
    slots = Slots(1)
    renewer = LeaseRenewer(
        core, Mock(), slots, "worker", lease=600, grace=1, on_lost=asked.append, on_cancelled=asked.append
    )
    now = steady()
    attempt = slots.leased["a job"] = Attempt(Mock(id="a job", fence=1), Mock(), 0, 600, now)
    renewer.renew_now("a job")
    assert renewer.renew_due(now) <= now + RETRY_AT_MOST
    renewer.renew_due(steady())
    assert asked == [1, 1]
    assert attempt.renew_at > now
