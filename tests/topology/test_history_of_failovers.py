"""The history checker excuses grants that a failover lost, and no other violations."""

from __future__ import annotations

from backstay.testing.histories.history import Amnesia, HistoryEvent, check
from backstay.testing.histories.order import QueuedWaiter, Snapshot


def held(name, who, *, fence, start, end, at):
    """Return the events of one attempt: asked, granted, leaving, released."""
    return [
        HistoryEvent("asked", name, who, start - 0.1, {}),
        HistoryEvent("granted", name, who, start, {"fence": fence, "sent": start, "deadline": end + 1, "at": at}),
        HistoryEvent("leaving", name, who, end, {"deadline": end + 1, "lost": ""}),
        HistoryEvent("released", name, who, end, {"idempotent": False}),
    ]


def twice(name="x", fences=(10, 20)):
    """Return a history with two live holders at once; the tests assume a failover between the two grants."""
    return [
        *held(name, "first", fence=fences[0], start=1.0, end=4.0, at=1),
        *held(name, "second", fence=fences[1], start=3.0, end=5.0, at=3),
    ]


def test_a_grant_lost_in_a_failover_may_be_repeated():
    assert check(twice(), amnesia=[Amnesia(2.0, 2)]).violations == []


def test_only_names_of_the_dead_node_are_excused():
    assert check(twice(), amnesia=[Amnesia(2.0, 2, frozenset({"x"}))]).violations == []
    assert "2 live holders" in check(twice(), amnesia=[Amnesia(2.0, 2, frozenset({"y"}))]).violations[0]


def test_a_grant_after_the_failover_is_not_excused():
    assert "2 live holders" in check(twice(), amnesia=[Amnesia(0.5, 0)]).violations[0]


def test_a_failover_never_excuses_a_fence():
    assert any(
        "given twice" in violation for violation in check(twice(fences=(10, 10)), amnesia=[Amnesia(2.0, 2)]).violations
    )
    assert check(twice(fences=(20, 10)), amnesia=[Amnesia(2.0, 2)]).violations


def served_by(at, asked):
    """Return a history in which `newcomer` is served while `waiter`, which came first, waits before and after."""
    waiter, newcomer = QueuedWaiter("waiter", 1, 1), QueuedWaiter("newcomer", 2, 2)
    snapshots = [Snapshot("x", 10, ("holder",), (waiter, newcomer)), Snapshot("x", 30, ("newcomer",), (waiter,))]
    return held("x", "newcomer", fence=at, start=asked + 0.1, end=asked + 0.2, at=at), snapshots


def test_an_order_broken_by_the_dead_master_is_excused():
    """The dead master may have served `waiter`, too; its replica has neither grant."""
    events, snapshots = served_by(at=20, asked=2.0)
    assert "served past waiter" in check(events, snapshots).violations[0]
    assert check(events, snapshots, amnesia=[Amnesia(2.5, 25)]).violations == []
    assert check(events, snapshots, amnesia=[Amnesia(2.5, 25, frozenset({"y"}))]).violations
    assert check(events, snapshots, amnesia=[Amnesia(9.0, 90)]).violations


def test_an_order_broken_by_the_new_master_is_not_excused():
    events, snapshots = served_by(at=28, asked=2.0)
    assert "served past waiter" in check(events, snapshots, amnesia=[Amnesia(2.5, 25)]).violations[0]
