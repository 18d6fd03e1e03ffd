"""The keeper renews leases in batches, retries until their deadline and drops expired work."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from backstay.engine.base import Apply, Op, steady
from backstay.errors import CorruptRecord, EngineRefused, EngineUnavailable, LeaseLost, OutcomeUnknown
from backstay.gate.commands import Renew
from backstay.gate.machine import GATE
from backstay.runtime.lease import BaseLease, RenewalResult
from backstay.runtime.lease_keeper import DeferredCommand, Keeper
from backstay.telemetry import Telemetry
from backstay.testing.waiting import WITHIN, eventually


class FakeEngine:
    """Return the configured reply to every renewal and record the batches."""

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
        return RenewalResult(lost=reply) if isinstance(reply, str) else RenewalResult(reply)


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


def test_leases_that_are_nearly_due_are_renewed_in_the_same_call(engine, keeper):
    due, soon, young = lease("due", age=10.1), lease("soon", age=6.0), lease("young", age=1.0)
    for item in (due, soon, young):
        keeper._leases[item] = None
    keeper.tick()
    assert [op.name for op in engine.batches[0]] == ["due", "soon"]


def test_the_keeper_makes_no_call_when_no_lease_is_due(engine, keeper):
    keeper._leases[lease(age=1.0)] = None
    wake_at = keeper.tick()
    assert engine.batches == []
    assert 8 < wake_at - steady() < 10


def test_a_failed_renewal_is_retried_and_the_lease_is_kept(engine, keeper):
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
    calls: list[str] = []
    item.watcher = lambda: calls.append("watcher")
    item.on_end(lambda: calls.append("end"))
    keeper._leases[item] = None
    engine.answer = "it has another holder"
    keeper.tick()
    assert item.is_lost
    assert calls == ["watcher", "end"]
    assert "another holder" in str(item.loss())


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


def test_the_keeper_thread_renews_and_stops_on_close(engine, keeper):
    item = lease(ttl=0.3)
    keeper.add(item)
    assert engine.asked.wait(WITHIN)
    assert eventually(lambda: len(engine.batches) >= 3)
    keeper.discard(item)
    keeper.close()
    keeper.close()
    assert not [t for t in threading.enumerate() if t.name == "backstay-keeper"]


@pytest.mark.parametrize("error", [EngineUnavailable("away"), OutcomeUnknown("lost"), EngineRefused("no rights")])
def test_a_command_that_failed_is_sent_later(engine, keeper, error):
    engine.answer = error
    op = lease().renewal(0, 1.0)
    keeper.send_later(op, steady() + 60)
    assert eventually(lambda: len(engine.batches) >= 2)
    engine.answer = 1
    assert eventually(lambda: not keeper._pending)
    assert {batch[0].command.ticket for batch in engine.batches} == {op.command.ticket}


@pytest.fixture
def dropped():
    """The commands that the keeper of `reporting_keeper` has given up, each with the reason."""
    return []


@pytest.fixture
def reporting_keeper(engine, dropped):
    telemetry = Telemetry()
    telemetry.subscribe(lambda event: event.kind == "keeper.gave_up" and dropped.append(event.facts))
    keeper = Keeper(engine, telemetry)
    yield keeper
    keeper.close()


def test_a_pending_command_past_its_deadline_is_dropped(engine, reporting_keeper, dropped):
    engine.answer = EngineUnavailable("away")
    reporting_keeper.send_later(lease().renewal(0, 1.0), steady() - 1)
    assert eventually(lambda: dropped)
    assert not reporting_keeper._pending
    assert dropped == [{"room": "gate", "name": "x", "command": "Renew", "why": "EngineUnavailable"}]


def test_a_pending_command_with_a_permanent_error_is_dropped(engine, reporting_keeper, dropped):
    engine.answer = CorruptRecord("damaged")
    reporting_keeper.send_later(lease().renewal(0, 1.0), steady() + 60)
    assert eventually(lambda: dropped)
    assert [fact["why"] for fact in dropped] == ["CorruptRecord"]


def test_commands_left_at_close_are_reported(engine, reporting_keeper, dropped):
    engine.answer = EngineUnavailable("away")
    reporting_keeper.send_later(lease().renewal(0, 1.0), steady() + 60)
    reporting_keeper.close()
    assert [fact["why"] for fact in dropped] == ["closed"]


def test_the_lease_of_a_deferred_command_is_renewed_until_the_command_arrives(engine, keeper, monkeypatch):
    """The last command is a renewal under another name, so that it can be told from those of the lease."""
    held, last = lease("held", ttl=0.3), lease("last").renewal(0, 1.0)
    answers = {"held": 1, "last": EngineUnavailable("away")}
    sent = []

    def apply_many(ops, timeout=None):
        sent.extend(op.name for op in ops)
        return [answers[op.name] for op in ops]

    monkeypatch.setattr(engine, "apply_many", apply_many)
    keeper.send_later(last, steady() + 60, held)
    assert eventually(lambda: sent.count("held") >= 3)
    assert held.state == "live"
    answers["last"] = 1
    assert eventually(lambda: held.state == "released")
    assert held not in keeper._leases


def test_a_task_is_retried_until_it_is_done(keeper, monkeypatch):
    monkeypatch.setattr("backstay.runtime.lease_keeper.TASK_PAUSE", 0.01)
    attempts = []

    def task(timeout):
        attempts.append(timeout)
        if len(attempts) == 1:
            raise ValueError("a mistake of its own")
        return len(attempts) == 3

    keeper.run_until_done("x", task)
    keeper.run_until_done("x", lambda _: pytest.fail("it is under way already"))
    assert eventually(lambda: len(attempts) == 3)
    assert eventually(lambda: not keeper._tasks)


def test_the_timeout_of_a_task_delays_no_renewal(keeper):
    keeper._leases[lease(ttl=0.9)] = None  # due in 0.3 s
    given = []
    keeper._tasks = {"x": lambda timeout: given.append(timeout) or True}
    keeper._run_tasks()
    assert given[0] <= 0.15


def test_close_runs_each_pending_task_once_more(keeper):
    attempts = []
    keeper.run_until_done("x", attempts.append)
    keeper.close()
    assert len(attempts) == 1


def test_close_resends_a_command_whose_outcome_is_unknown(engine, keeper, monkeypatch):
    replies = [OutcomeUnknown("no reply came"), 1, 1]
    monkeypatch.setattr(FakeEngine, "answer", property(lambda _: replies.pop(0), lambda *_: None), raising=False)
    keeper._pending = [DeferredCommand(lease().renewal(0, 1.0), steady() + 60)]
    keeper.close()
    assert (len(engine.batches), keeper._pending) == (2, [])


def test_a_telemetry_subscriber_gets_renewals_and_losses(engine):
    telemetry = Telemetry()
    received: list[str] = []
    end = telemetry.subscribe(lambda event: received.append(event.kind))
    keeper = Keeper(engine, telemetry)
    keeper._leases[lease(age=10.1)] = None
    keeper.tick()
    keeper._leases[lease("old", age=31)] = None
    keeper.tick()
    end()
    keeper._leases[lease("older", age=31)] = None
    keeper.tick()
    assert received == ["lease.renewed", "lease.lost"]
    assert telemetry.counts["lease.lost"] == 2
