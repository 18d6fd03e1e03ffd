"""What the history checker forgives when a replica takes over, and what it never does."""

from __future__ import annotations

from backstay.testing.histories.history import Amnesia, Event, check
from backstay.testing.histories.order import Snapshot, Waiting


def held(name, who, *, fence, start, end, at):
    """A whole attempt: asked, granted, left, released."""
    return [
        Event("asked", name, who, start - 0.1, {}),
        Event("granted", name, who, start, {"fence": fence, "sent": start, "deadline": end + 1, "at": at}),
        Event("leaving", name, who, end, {"deadline": end + 1, "lost": ""}),
        Event("released", name, who, end, {"idempotent": False}),
    ]


def twice(name="x", fences=(10, 20)):
    """Two live holders at once; a failover lies between their grants."""
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
    assert any("given twice" in said for said in check(twice(fences=(10, 10)), amnesia=[Amnesia(2.0, 2)]).violations)
    assert check(twice(fences=(20, 10)), amnesia=[Amnesia(2.0, 2)]).violations


def served_by(at, asked):
    """`quick` is served while `patient`, who came first, stands in the queue before and after."""
    patient, quick = Waiting("patient", 1, 1), Waiting("quick", 2, 2)
    looks = [Snapshot("x", 10, ("holder",), (patient, quick)), Snapshot("x", 30, ("quick",), (patient,))]
    return held("x", "quick", fence=at, start=asked + 0.1, end=asked + 0.2, at=at), looks


def test_an_order_broken_by_the_dead_master_is_excused():
    """It may have served `patient` as well, and its replica knows nothing of either."""
    events, looks = served_by(at=20, asked=2.0)
    assert "served past patient" in check(events, looks).violations[0]
    assert check(events, looks, amnesia=[Amnesia(2.5, 25)]).violations == []
    assert check(events, looks, amnesia=[Amnesia(2.5, 25, frozenset({"y"}))]).violations
    assert check(events, looks, amnesia=[Amnesia(9.0, 90)]).violations


def test_an_order_broken_by_the_new_master_is_not_excused():
    events, looks = served_by(at=28, asked=2.0)
    assert "served past patient" in check(events, looks, amnesia=[Amnesia(2.5, 25)]).violations[0]
