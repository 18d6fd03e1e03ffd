"""The keeper: renewals in batches, retries until the real end, and nothing for ever."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from backstay.engine.base import Apply, Op, steady
from backstay.errors import EngineUnavailable, LeaseLost, OutcomeUnknown
from backstay.gate.machine import GATE, Renew
from backstay.runtime.keeper import Keeper
from backstay.runtime.lease import BaseLease
from backstay.telemetry import Telemetry
from backstay.testing.waiting import WITHIN, eventually


class FakeEngine:
    """Answers renewals as it is told, and remembers the batches."""

    def __init__(self) -> None:
        self.batches: list[list[Op[Any]]] = []
        self.answer: Any = 1
        self.asked = threading.Event()

    def now(self) -> int:
        return 0

    def apply_many(self, ops, timeout=None):
        self.batches.append(list(ops))
        self.asked.set()
        return [self.answer for _ in ops]


class FakeLease(BaseLease):
    def renewal(self, not_after, ttl):
        return Apply(GATE, self.name, Renew(not_after, self.id, self.fence, int(ttl * 1_000_000)))

    def judge(self, reply):
        return (0, reply) if isinstance(reply, str) else (reply, "")


def lease(name: str = "x", *, ttl: float = 30.0, age: float = 0.0, renews: bool = True, max_hold: float = 3600.0):
    return FakeLease(name, f"id-{name}", 1, ttl, 0, 1, steady() - age, renews, max_hold)


@pytest.fixture
def engine():
    return FakeEngine()


@pytest.fixture
def keeper(engine):
    keeper = Keeper(engine, Telemetry())
    yield keeper
    keeper.close()


def test_a_thousand_leases_are_renewed_in_one_call(engine, keeper):
    leases = [lease(f"n{i}", age=10.5) for i in range(1000)]
    for item in leases:
        keeper._leases[item] = None
    keeper.tick()
    assert [len(batch) for batch in engine.batches] == [1000]
    assert all(item.remaining() > 29 for item in leases)


def test_leases_that_are_nearly_due_go_along(engine, keeper):
    due, soon, young = lease("due", age=10.1), lease("soon", age=6.0), lease("young", age=1.0)
    for item in (due, soon, young):
        keeper._leases[item] = None
    keeper.tick()
    assert [op.name for op in engine.batches[0]] == ["due", "soon"]


def test_nothing_due_means_no_call(engine, keeper):
    keeper._leases[lease(age=1.0)] = None
    wake_at = keeper.tick()
    assert engine.batches == []
    assert 8 < wake_at - steady() < 10


def test_a_failed_call_is_tried_again_and_the_lease_lives_on(engine, keeper):
    item = lease(age=10.1)
    keeper._leases[item] = None
    engine.answer = EngineUnavailable("away")
    wake_at = keeper.tick()
    assert not item.is_lost
    assert 0 < wake_at - steady() <= 1.0
    item.due = steady()
    engine.answer = 1
    keeper.tick()
    assert item.remaining() > 29


def test_a_lease_that_could_not_be_renewed_in_time_is_lost(engine, keeper):
    item = lease(age=29.9)
    keeper._leases[item] = None
    keeper.tick()
    assert item.is_lost
    assert engine.batches == []
    with pytest.raises(LeaseLost, match="before it could be renewed"):
        item.check()


def test_a_lease_that_the_engine_does_not_know_is_lost_with_the_reason(engine, keeper):
    item = lease(age=10.1)
    told: list[str] = []
    item.watcher = lambda: told.append("watcher")
    item.on_end(lambda: told.append("end"))
    keeper._leases[item] = None
    engine.answer = "it is held by somebody else"
    keeper.tick()
    assert item.is_lost
    assert told == ["watcher", "end"]
    assert "somebody else" in str(item.loss())


def test_max_hold_shortens_the_last_renewal_and_ends_renewing(engine, keeper):
    item = lease(age=10.1, max_hold=20.0)
    keeper._leases[item] = None
    keeper.tick()
    (op,) = engine.batches[0]
    assert 9_000_000 < op.command.ttl < 10_000_000
    assert item.due == float("inf")
    assert item.remaining() < 10


def test_a_lease_without_renewal_is_only_watched(engine, keeper):
    item = lease(age=20.0, renews=False)
    keeper._leases[item] = None
    keeper.tick()
    assert engine.batches == []
    assert not item.is_lost


def test_the_thread_renews_by_itself_and_stops_when_told(engine, keeper):
    item = lease(ttl=0.3)
    keeper.add(item)
    assert engine.asked.wait(WITHIN)
    assert eventually(lambda: len(engine.batches) >= 3)
    keeper.discard(item)
    keeper.close()
    keeper.close()
    assert not [t for t in threading.enumerate() if t.name == "backstay-keeper"]


def test_what_could_not_be_said_is_said_later(engine, keeper):
    engine.answer = EngineUnavailable("away")
    op = lease().renewal(0, 1.0)
    keeper.later(op, steady() + 60)
    assert eventually(lambda: len(engine.batches) >= 2)
    engine.answer = 1
    assert eventually(lambda: not keeper._later)
    assert {batch[0].command.ticket for batch in engine.batches} == {op.command.ticket}


def test_what_nobody_can_use_any_more_is_dropped(engine, keeper):
    engine.answer = EngineUnavailable("away")
    keeper.later(lease().renewal(0, 1.0), steady() - 1)
    assert eventually(lambda: engine.batches and not keeper._later)


def test_an_errand_is_attempted_until_it_is_done_whatever_goes_wrong(keeper, monkeypatch):
    monkeypatch.setattr("backstay.runtime.keeper.ERRAND_PAUSE", 0.01)
    attempts = []

    def errand(timeout):
        attempts.append(timeout)
        if len(attempts) == 1:
            raise ValueError("a mistake of its own")
        return len(attempts) == 3

    keeper.errand("x", errand)
    keeper.errand("x", lambda _: pytest.fail("it is under way already"))
    assert eventually(lambda: len(attempts) == 3)
    assert eventually(lambda: not keeper._errands)


def test_an_errand_takes_no_longer_than_leases_can_wait(keeper):
    keeper._leases[lease(ttl=0.9)] = None  # due in 0.3 s
    given = []
    keeper._errands = {"x": lambda timeout: given.append(timeout) or True}
    keeper._run_errands()
    assert given[0] <= 0.15


def test_closing_attempts_what_is_left_once_more(keeper):
    attempts = []
    keeper.errand("x", attempts.append)
    keeper.close()
    assert len(attempts) == 1


def test_closing_says_again_what_a_silent_connection_has_swallowed(engine, keeper, monkeypatch):
    answers = [OutcomeUnknown("no reply came"), 1, 1]
    monkeypatch.setattr(FakeEngine, "answer", property(lambda _: answers.pop(0), lambda *_: None), raising=False)
    keeper._later = [(lease().renewal(0, 1.0), steady() + 60)]
    keeper.close()
    assert (len(engine.batches), keeper._later) == (2, [])


def test_a_subscriber_hears_of_renewals_and_losses(engine):
    telemetry = Telemetry()
    heard: list[str] = []
    end = telemetry.subscribe(lambda event: heard.append(event.kind))
    keeper = Keeper(engine, telemetry)
    keeper._leases[lease(age=10.1)] = None
    keeper.tick()
    keeper._leases[lease("old", age=31)] = None
    keeper.tick()
    end()
    keeper._leases[lease("older", age=31)] = None
    keeper.tick()
    assert heard == ["lease.renewed", "lease.lost"]
    assert telemetry.counts["lease.lost"] == 2
