"""Hints that a worker hears in the midst of something else: what they speak of begins as soon as there is a place."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from on_a_loop import on_a_loop
from workshop import POSTGRES, REDIS, reaches, shop, url_of, working

from backstay import Backstay
from backstay.engine.base import steady
from backstay.job.worker import producer
from backstay.job.worker.channel import Lane
from backstay.job.worker.execution.attempt import Attempt
from backstay.job.worker.lease_renewer import Tending
from backstay.job.worker.notifications import Hearing
from backstay.job.worker.producer import Dispatch
from backstay.job.worker.slots import Slots
from backstay.job.worker.waiting_claim import Standing
from backstay.runtime.keeper import RETRY_AT_MOST
from backstay.telemetry import Telemetry
from backstay.testing.waiting import WITHIN, soon


@pytest.fixture(autouse=True)
def hints_alone(monkeypatch):
    """Whoever waits for the next poll waits for too long, and nobody is handed a job by the one who enqueues it."""
    monkeypatch.setattr(producer, "POLL", 600.0)
    monkeypatch.setattr(Standing, "stand", lambda self: None)


@pytest.fixture(params=[REDIS, POSTGRES])
def url(request):
    return url_of(request.param, request)


class Ears:
    """What a worker hears; it is kept from it while it is deaf."""

    def __init__(self, monkeypatch):
        self.heard, self.deaf, self.called = [], False, Dispatch.called

        def hear(dispatcher, hint):
            self.heard.append((dispatcher, hint))
            if not self.deaf:
                self.called(dispatcher, hint)

        monkeypatch.setattr(Dispatch, "called", hear)

    async def open(self, stay, worker):
        """It listens, and has found nothing."""

        async def there():
            await stay.hub.publish_scheduled("hold", 1)
            return self.heard

        assert await soon(there, WITHIN)
        await reached(lambda: worker._dispatch.is_dry)
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
async def test_a_hint_that_is_heard_together_with_an_end_fills_all_places(url, namespace, monkeypatch):
    """The claim that goes along with the end names no announcement, and what it leaves is asked for, too."""
    stay, ears = shop(url, namespace), Ears(monkeypatch)
    hold, gates = holding(stay)
    finish = Dispatch.finish

    def with_hints(self, attempt):
        finish(self, attempt)
        while ears.heard:
            ears.called(*ears.heard.pop())

    async with stay, working(stay, concurrency=4, lease=600) as worker:
        await ears.open(stay, worker)
        for n in range(2):
            await reaches(stay, await hold.enqueue(n), "running")
        await reached(lambda: worker._dispatch.is_dry)
        ears.deaf = True
        ears.heard.clear()
        monkeypatch.setattr(Dispatch, "finish", with_hints)
        await hold.enqueue_many([(n,) for n in range(2, 5)])
        await reached(lambda: ears.heard)
        gates[0].set()
        try:
            await reached(lambda: len(gates) == 5)
        finally:
            for gate in gates.values():
                gate.set()


@on_a_loop
async def test_a_hint_beyond_those_that_a_claim_can_name_is_not_forgotten(url, namespace, monkeypatch):
    stay, ears = shop(url, namespace), Ears(monkeypatch)
    hold, gates = holding(stay)

    async with stay, working(stay, concurrency=4, lease=600) as worker:
        await ears.open(stay, worker)
        ears.deaf = True
        await hold.enqueue(0)
        await reached(lambda: ears.heard)
        used = await stay.hub.publish_scheduled("hold", 1)
        await stay.hub.take_hint(used)
        dispatcher = worker._dispatch
        dispatcher._stirred = True  # all of them are heard in one turn
        for _ in range(producer.MOST):
            ears.called(dispatcher, used)
        ears.called(*ears.heard[0])
        dispatcher._go()
        try:
            await reached(lambda: 0 in gates)
        finally:
            for gate in gates.values():
                gate.set()


@pytest.mark.postgres
@on_a_loop
async def test_a_hint_that_is_heard_while_all_places_are_asked_for_is_not_taken_for_another(
    backstay_postgres, namespace, monkeypatch
):
    stay, ears = shop(backstay_postgres.url, namespace), Ears(monkeypatch)
    hold, gates = holding(stay)
    step, replies = Lane.step, []

    async def held_up(lane, finishes, claim):
        answer = await step(lane, finishes, claim)
        if len(replies) < 2:
            replies.append(asyncio.Event())
            await replies[-1].wait()
        return answer

    async with stay, working(stay, concurrency=2, lease=600) as worker:
        await ears.open(stay, worker)
        monkeypatch.setattr(Lane, "step", held_up)
        worker._dispatch.look()  # finds nothing, and hears of that last
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
async def test_a_job_that_begins_while_it_is_heard_to_be_wanted_back_is_asked_after():
    """The hub hears on a thread of its own."""
    wanted = []

    class Held(dict):
        def __contains__(self, job_id):
            known = super().__contains__(job_id)
            self[job_id] = object()  # it begins, right behind the question
            hearing.early([SimpleNamespace(id=job_id)])
            return known

    async with Backstay("memory://") as stay:
        slots = Slots(1)
        slots.held = Held()
        hearing = Hearing(stay._core, slots, None, None, wanted.append)
        hearing._wanted("a job")
    assert wanted == ["a job"]


def test_what_is_wanted_while_a_renewal_is_under_way_is_asked_for_by_the_next():
    """Its answer may be from before somebody cancelled the job."""
    asked = []

    class Engine:
        def apply_many(self, ops, timeout):
            asked.append(len(ops))
            if len(asked) == 1:
                tending.hurry("a job")
            return [["ok"]]

        def now(self):
            return 0

    core = SimpleNamespace(
        engine=Engine(), keeper=SimpleNamespace(wake=lambda at: None), telemetry=Telemetry(), port=None
    )
    slots = Slots(1)
    tending = Tending(core, Mock(), slots, "worker", lease=600, grace=1, lost=asked.append, cancelled=asked.append)
    now = steady()
    attempt = slots.held["a job"] = Attempt(Mock(id="a job", fence=1), Mock(), 0, 600, now)
    tending.hurry("a job")
    assert tending.tend(now) <= now + RETRY_AT_MOST
    tending.tend(steady())
    assert asked == [1, 1]
    assert attempt.renew_at > now
