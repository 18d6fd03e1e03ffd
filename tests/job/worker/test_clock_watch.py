"""A worker warns while the engine's clock is behind a time that it has already shown."""

from __future__ import annotations

import logging

import pytest

from backstay import Backstay
from backstay.job.worker import clock_watch
from backstay.job.worker.clock_watch import REPEAT, ClockWatch
from backstay.telemetry import Telemetry
from backstay.testing.clocked import open_clocked
from support.app import POSTGRES, REDIS, url_of, wait_until, working
from support.event_loop import on_a_loop

SECOND = 1_000_000
NOON = 1_700_000_000 * SECOND


class Watched:
    """A ClockWatch, with the events that it emitted and a monotonic clock that the test sets."""

    def __init__(self, monkeypatch):
        self.passed = 0.0
        self.events = []
        monkeypatch.setattr(clock_watch, "steady", lambda: self.passed)
        telemetry = Telemetry()
        telemetry.subscribe(self.events.append)
        self.observe = ClockWatch(telemetry, 0).observe


@pytest.fixture
def watched(monkeypatch):
    return Watched(monkeypatch)


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_worker_warns_while_the_clock_is_behind(watched, caplog):
    watched.observe(NOON)
    watched.observe(NOON - 300 * SECOND)
    (warning,) = warnings(caplog)
    assert "300 s behind" in warning
    assert [(event.kind, event.facts["seconds"]) for event in watched.events] == [("worker.clock_behind", 300.0)]
    watched.observe(NOON - 299 * SECOND)
    assert len(warnings(caplog)) == 1
    watched.passed += REPEAT + 1
    watched.observe(NOON - 239 * SECOND)
    assert "239 s behind" in warnings(caplog)[-1]
    watched.observe(NOON + 1)
    assert "has caught up" in warnings(caplog)[-1]
    assert len(warnings(caplog)) == 3


def test_replies_out_of_order_and_jumps_forward_cause_no_warning(watched, caplog):
    for now in (NOON, NOON - SECOND // 2, NOON + SECOND, NOON + 3600 * SECOND, NOON + 3600 * SECOND - 10):
        watched.observe(now)
    assert not warnings(caplog)
    assert not watched.events


@pytest.mark.parametrize("kind", [REDIS, POSTGRES])
@on_a_loop
async def test_a_worker_notices_a_server_clock_that_is_set_back(kind, request, namespace):
    now, kinds = [NOON], []
    engine = open_clocked(url_of(kind, request), namespace, lambda: now[0])
    async with Backstay(engine=engine, namespace=namespace) as stay, working(stay) as worker:
        stay.telemetry.subscribe(lambda event: kinds.append(event.kind))
        await wait_until(lambda: worker._producer is not None and worker._producer.is_exhausted)
        now[0] -= 300 * SECOND
        worker._producer.poll_all()
        await wait_until(lambda: "worker.clock_behind" in kinds)
    await engine.close()
