"""A worker is woken by announcements of programs that count jobs by type: their payload is the type alone."""

from __future__ import annotations

import pytest

from backstay import Backstay
from backstay.job.worker import producer
from backstay.job.worker.waiting_claim import WaitingClaim
from backstay.testing.waiting import WITHIN, soon
from support.app import POSTGRES, REDIS, open_app, url_of, wait_until, working
from support.event_loop import on_a_loop


@pytest.fixture(autouse=True)
def hints_alone(monkeypatch):
    """Disable polling and direct handoff, so that only hints wake the worker."""
    monkeypatch.setattr(producer, "POLL", 600.0)
    monkeypatch.setattr(WaitingClaim, "spec", lambda self: None)


@pytest.fixture(params=["sqlite", REDIS, POSTGRES])
def url(request):
    return url_of(request.param, request)


@on_a_loop
async def test_an_announcement_without_a_hint_id_wakes_a_worker(url, namespace):
    stay = open_app(url, namespace)
    silent = Backstay(url, namespace=namespace, hub_prefix=f"elsewhere-{namespace}")  # its announcements are not heard
    ran = []

    @stay.job(name="mail:send")
    async def send() -> None:
        ran.append("mail:send")

    async def announce_and_look():
        await stay.hub.publish("sched", "mail:send")
        return ran

    async with stay, silent, working(stay, lease=600) as worker:
        await wait_until(lambda: worker._producer is not None and worker._producer.is_exhausted)
        await silent.jobs.enqueue("mail:send", {})
        assert await soon(announce_and_look, WITHIN)
