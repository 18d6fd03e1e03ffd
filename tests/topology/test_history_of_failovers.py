"""What the history checker forgives when a replica takes over, and what it never does."""

from __future__ import annotations

from holdfast.testing.history import Amnesia, Event, Snapshot, check


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


def test_a_grant_that_a_failover_forgot_may_be_given_again():
    assert check(twice(), amnesia=[Amnesia(2.0, 2)]).violations == []


def test_only_the_names_of_the_node_that_died_are_forgiven():
    assert check(twice(), amnesia=[Amnesia(2.0, 2, frozenset({"x"}))]).violations == []
    assert "2 live holders" in check(twice(), amnesia=[Amnesia(2.0, 2, frozenset({"y"}))]).violations[0]


def test_what_is_granted_after_the_failover_is_not_forgiven():
    assert "2 live holders" in check(twice(), amnesia=[Amnesia(0.5, 0)]).violations[0]


def test_a_failover_never_excuses_a_fence():
    assert any("given twice" in said for said in check(twice(fences=(10, 10)), amnesia=[Amnesia(2.0, 2)]).violations)
    assert check(twice(fences=(20, 10)), amnesia=[Amnesia(2.0, 2)]).violations


def test_the_order_of_a_queue_is_forgiven_across_a_failover_and_only_there():
    waited = (("patient", 1), ("quick", 2))
    looks = [Snapshot("x", 10, ("holder",), waited), Snapshot("x", 30, (), waited[:1])]
    served = held("x", "quick", fence=9, start=2.0, end=2.1, at=20)
    assert "served past patient" in check(served, looks).violations[0]
    assert check(served, looks, amnesia=[Amnesia(2.5, 25)]).violations == []
    assert check(served, looks, amnesia=[Amnesia(2.5, 25, frozenset({"y"}))]).violations
    assert check(served, looks, amnesia=[Amnesia(9.0, 90)]).violations
