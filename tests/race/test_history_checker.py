"""The history checker finds each kind of violation, and accepts similar histories without one."""

from backstay.testing.histories.history import Amnesia, HistoryEvent, HistoryWriter, check, read
from backstay.testing.histories.order import QueuedWaiter, Snapshot


def asked(who, t, name="x"):
    return HistoryEvent("asked", name, who, t, {})


def granted(who, t, *, fence, until, sent=None, at=None, name="x"):
    facts = {"fence": fence, "sent": t - 0.01 if sent is None else sent, "deadline": until, "at": at or fence}
    return HistoryEvent("granted", name, who, t, facts)


def leaving(who, t, *, until, lost="", name="x"):
    return HistoryEvent("leaving", name, who, t, {"deadline": until, "lost": lost})


def held(who, start, end, *, fence, name="x"):
    """Return the events of an attempt that leaves before its lease ends."""
    until = end + 10
    return [
        asked(who, start - 0.1, name),
        granted(who, start, fence=fence, until=until, name=name),
        leaving(who, end, until=until, name=name),
    ]


def violations(*events, **options):
    return check(sorted(events, key=lambda e: e.t), **options).violations


def test_holders_one_after_another_are_fine():
    assert violations(*held("a", 1, 2, fence=10), *held("b", 2.1, 3, fence=11)) == []


def test_two_live_holders_are_found():
    (found,) = violations(*held("a", 1, 3, fence=10), *held("b", 2, 4, fence=11))
    assert "2 live holders at once" in found


def test_a_hold_nested_in_another_hold_is_found():
    (found,) = violations(*held("a", 1, 9, fence=10), *held("b", 2, 3, fence=11))
    assert "2 live holders at once" in found


def test_two_holders_of_two_names_are_fine():
    assert violations(*held("a", 1, 3, fence=10), *held("b", 2, 4, fence=10, name="y")) == []


def test_a_holder_past_its_deadline_is_not_live():
    stale = [granted("a", 1, fence=10, until=2), leaving("a", 9, until=2, lost="it ran out")]
    assert violations(*stale, *held("b", 2.5, 3, fence=11)) == []


def test_a_renewed_lease_is_live_until_its_last_deadline():
    renewed = [granted("a", 1, fence=10, until=2), leaving("a", 5, until=6)]
    (found,) = violations(*renewed, *held("b", 2.5, 3, fence=11))
    assert "2 live holders at once" in found


def test_a_killed_holder_is_live_until_its_deadline():
    assert violations(granted("a", 1, fence=10, until=5), *held("b", 3, 4, fence=11))
    assert not violations(granted("a", 1, fence=10, until=5), *held("b", 5.1, 6, fence=11))


def test_a_grant_received_after_its_deadline_was_never_live():
    late = granted("a", 3, sent=1, fence=10, until=2)
    assert violations(late, *held("b", 2.5, 4, fence=11)) == []


def test_permits_are_counted():
    holds = [*held("a", 1, 9, fence=1), *held("b", 2, 9, fence=2), *held("c", 3, 9, fence=3)]
    assert violations(*holds, permits={"x": 3}) == []
    (found,) = violations(*holds, permits={"x": 2})
    assert "3 live holders at once, 2 allowed" in found


def test_a_repeated_fence_is_found():
    (found,) = violations(*held("a", 1, 2, fence=10), *held("b", 3, 4, fence=10))
    assert "fence 10 was given twice" in found


def test_a_fence_that_goes_back_is_found():
    (found,) = violations(*held("a", 1, 2, fence=11), *held("b", 3, 4, fence=10))
    assert "its fence is greater" in found


def test_a_fence_that_goes_back_in_the_engines_time_is_found():
    """Also when the two requests overlap, so that no client can know their order."""
    grants = [granted("a", 5, sent=1, fence=11, at=100, until=2), granted("b", 3, fence=10, at=101, until=4)]
    (found,) = violations(*grants)
    assert "granted before a smaller one" in found


def test_a_fence_that_goes_back_far_apart_is_found():
    found = violations(*held("a", 1, 2, fence=20), *held("b", 3, 4, fence=30), *held("c", 5, 6, fence=10))
    assert len(found) == 2


def test_fences_of_overlapping_grants_are_not_compared():
    """A paused process received the older grant late; the fences were granted in order."""
    paused = granted("a", 5, sent=1, fence=10, until=2)
    assert violations(paused, *held("b", 3, 4, fence=11)) == []


def test_one_attempt_granted_twice_is_found():
    found = violations(granted("a", 1, fence=1, until=1.5), granted("a", 2, fence=2, until=2.5))
    assert any("granted twice" in v for v in found)


def test_a_lease_lost_before_its_time_is_found():
    early = [granted("a", 1, fence=10, until=9), leaving("a", 2, until=9, lost="the engine no longer knows it")]
    (found,) = violations(*early)
    assert "early" in found


def test_not_owner_before_the_deadline_is_found():
    refusal = HistoryEvent("not_owner", "x", "a", 2, {"deadline": 9, "says": "LOGIC ERROR"})
    (found,) = violations(granted("a", 1, fence=10, until=9), refusal)
    assert "released in time and got NotOwner" in found


def test_not_owner_after_the_deadline_is_fine():
    refusal = HistoryEvent("not_owner", "x", "a", 10, {"deadline": 9, "says": "LOGIC ERROR"})
    assert violations(granted("a", 1, fence=10, until=9), refusal) == []


def test_an_overlap_observed_by_a_contender_is_found():
    assert violations(HistoryEvent("stray", "x", "a", 1, {"what": "a bug"})) == ["x: a: a bug"]
    overlap = [granted("a", 1, fence=1, until=9), HistoryEvent("overlap", "x", "a", 3, {"what": "b wrote beside a"})]
    assert violations(*overlap) == ["x: a: b wrote beside a"]
    assert violations(*overlap, amnesia=[Amnesia(2, at=1)]) == []


def test_amnesia_excuses_only_holders_granted_before_it():
    over = [*held("a", 1, 5, fence=10), *held("b", 3, 4, fence=20)]
    assert violations(*over, amnesia=[Amnesia(2, at=15)]) == []
    assert violations(*over, amnesia=[Amnesia(0.5, at=5)])
    lost = [granted("a", 1, fence=10, until=9), leaving("a", 3, until=9, lost="the engine no longer knows it")]
    assert violations(*lost, amnesia=[Amnesia(2, at=15)]) == []
    assert violations(*lost, amnesia=[Amnesia(4, at=15)])
    assert violations(*held("a", 1, 2, fence=11), *held("b", 3, 4, fence=10), amnesia=[Amnesia(2.5, at=10)])


def test_a_grant_made_before_the_amnesia_may_be_reported_after_it():
    late = granted("a", 3, sent=1, fence=10, until=9)
    over = [late, *held("b", 2.5, 4, fence=20)]
    assert violations(*over)
    assert violations(*over, amnesia=[Amnesia(2, at=15)]) == []


def test_a_queue_served_out_of_order_is_found():
    """`test_order_checker.py` tests the rules of the order in detail."""
    first, second = QueuedWaiter("a", 1, 1), QueuedWaiter("b", 2, 2)
    snapshots = [Snapshot("x", 100, ("h",), (first, second)), Snapshot("x", 110, ("b",), (first,))]
    grant = granted("b", 1, fence=105, until=2)
    assert violations(grant, snapshots=snapshots) == ["x: b was served past a, which waited"]
    assert violations(granted("b", 1, fence=105, until=2, name="y"), snapshots=snapshots) == []


def test_an_engine_that_shows_two_holders_is_found():
    snapshots = [Snapshot("x", 1, (), ()), Snapshot("x", 2, ("a", "b"), ())]
    (found,) = violations(snapshots=snapshots)
    assert "the engine itself shows 2 holders" in found
    assert violations(snapshots=snapshots, permits={"x": 2}) == []


def test_a_lock_that_is_held_again_after_its_release_is_found():
    """A late copy of an acquire would take the lock again for an attempt that has released it."""
    released = HistoryEvent("released", "x", "a", 2, {"idempotent": False})
    before, after = (Snapshot("x", n, ("a",), (), t=t) for n, t in ((1, 1.5), (2, 2.5)))
    attempt = held("a", 1, 1.9, fence=1)
    assert violations(*attempt, released, snapshots=[before]) == []
    (found,) = violations(*attempt, released, snapshots=[before, after])
    assert "a had released and came back" in found
    assert violations(*attempt, released, snapshots=[before, after], amnesia=[Amnesia(2.2, at=2)]) == []
    queued = Snapshot("x", 2, ("b",), (QueuedWaiter("a", 1, 1),), t=2.5)
    assert violations(*attempt, released, snapshots=[queued])


def test_a_line_truncated_by_a_kill_is_skipped(tmp_path):
    diary = HistoryWriter(tmp_path, "p1")
    diary.note("asked", "x", "a")
    diary.note("granted", "x", "a", fence=1, sent=0.0, deadline=1.0, at=1)
    diary.close()
    with (tmp_path / "p1.history").open("a") as file:
        file.write('["leaving", "x", "a", 1')
    assert [event.kind for event in read(tmp_path)] == ["asked", "granted"]


def test_the_report_counts_the_events():
    events = [*held("a", 1, 2, fence=10), asked("b", 1), HistoryEvent("refused", "x", "b", 4, {"why": "LockTimeout"})]
    report = check(sorted(events, key=lambda e: e.t))
    assert (report.asked, report.grants, report.refused, report.longest_wait) == (2, 1, 1, 3)
