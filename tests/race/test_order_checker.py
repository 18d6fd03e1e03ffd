"""The order checker finds each way of serving a queue out of order, and accepts similar histories that are in order."""

import pytest

from backstay.gate.machine import LAPSED, LIFE, OFFER
from backstay.testing.histories import order
from backstay.testing.histories.order import QueuedWaiter, RecordedGrant, Snapshot, StateLoss

#: The time of the first snapshot; the next one is a hundredth of a second later by default.
T0 = 1_000_000_000
LATER = T0 + 10_000
#: The TTL of every lease here, in µs.
TTL = 1_500_000


def waits(who, entered, *, asked=None, offer=0):
    """Return a waiter that entered the queue, and last polled, this many µs before the first snapshot."""
    return QueuedWaiter(who, T0 - entered, T0 - (entered if asked is None else asked), offer)


def snapshot(*queue, at=T0, holders=("h",)):
    return Snapshot("x", at, holders, queue)


def served(who, at, asked=1.0):
    return RecordedGrant(who, at, asked)


def violations(snapshots, grants, permits=1, losses=(), ttl=TTL):
    return order.find_violations(snapshots, grants, permits, losses, ttl)


A, B, C = waits("a", 3000), waits("b", 2000), waits("c", 1000)


def test_a_queue_served_in_order_is_fine():
    snapshots = [snapshot(A, B), snapshot(B, at=LATER, holders=("a",)), snapshot(at=LATER + 10, holders=("b",))]
    assert violations(snapshots, [served("a", T0 + 5), served("b", LATER + 5)]) == []


def test_a_waiter_that_was_overtaken_is_found():
    snapshots = [snapshot(A, B), snapshot(A, at=LATER, holders=("b",))]
    assert violations(snapshots, [served("b", T0 + 5)]) == ["b was served past a, which waited"]


def test_a_newcomer_served_ahead_of_the_queue_is_found():
    snapshots = [snapshot(A), snapshot(A, at=LATER, holders=("c",))]
    assert violations(snapshots, [served("c", T0 + 5)]) == ["c was served past a, which waited"]


def test_an_order_reversed_between_two_snapshots_is_found():
    snapshots = [snapshot(A, B), snapshot(at=LATER, holders=())]
    assert violations(snapshots, [served("a", T0 + 3), served("b", T0 + 5)]) == []
    assert violations(snapshots, [served("b", T0 + 3), served("a", T0 + 5)]) == ["b was served past a, which waited"]


def test_waiters_offered_permits_together_may_confirm_in_any_order():
    snapshots = [snapshot(A, B, holders=("h", "i")), snapshot(at=LATER, holders=("a", "b"))]
    assert violations(snapshots, [served("b", T0 + 3), served("a", T0 + 5)], permits=2) == []


def test_with_several_permits_an_offered_waiter_may_confirm_later_than_the_next():
    offered = A._replace(offer=T0 + 2 + OFFER)
    snapshots = [snapshot(A, B, holders=("h", "i")), snapshot(offered, at=LATER, holders=("b",))]
    assert violations(snapshots, [served("b", T0 + 5)], permits=2) == []
    assert violations(snapshots, [served("b", T0 + 1)], permits=2) == ["b was served past a, which waited"]


def test_a_queue_out_of_order_is_found():
    (found,) = violations([snapshot(B, A)], [])
    assert "order of arrival" in found


def test_more_offers_than_permits_are_found():
    assert "shows 2 holders" in violations([snapshot(holders=("a", "b"))], [])[0]
    assert "1 holders and 1 offers" in violations([snapshot(A._replace(offer=T0 + 5))], [])[0]


def test_an_unused_permit_is_found():
    assert violations([snapshot(A, holders=())], []) == ["a waits although a place is free"]
    assert violations([snapshot(A)], [], permits=2) == ["a waits although a place is free"]
    assert violations([snapshot(A._replace(offer=T0 + 5), holders=())], []) == []


class TestPassedOver:
    """Only a waiter that let an offer lapse is passed over, and only until it polls again."""

    LONG_AGO = 3 * OFFER
    #: A waiter that did not confirm its offer.
    slept = waits("a", LONG_AGO, offer=LAPSED)
    #: The waiter behind it, which got the next offer; that offer is valid.
    favoured = waits("b", 2000, offer=T0 - 500 + OFFER)

    def test_the_next_waiter_is_served_after_an_offer_lapsed(self):
        snapshots = [snapshot(self.slept, B), snapshot(self.slept, at=LATER, holders=("b",))]
        assert violations(snapshots, [served("b", T0 + 5)]) == []

    def test_an_offer_made_while_the_first_waiter_slept_stays_valid(self):
        """The first waiter polls again, but the offer to the second was made before that."""
        back = self.slept._replace(asked=T0 - 100, offer=0)
        snapshots = [snapshot(back, self.favoured, holders=()), snapshot(back, at=LATER, holders=("b",))]
        assert violations(snapshots, [served("b", T0 + 5)]) == []

    def test_an_offer_past_a_waiter_that_has_returned_is_found(self):
        back = self.slept._replace(asked=T0 - 900, offer=0)
        assert violations([snapshot(back, self.favoured, holders=())], []) == [
            "b was offered a place past a, which waited"
        ]

    def test_an_offer_is_valid_for_its_own_waiter_only(self):
        back = self.slept._replace(asked=T0 - 100, offer=0)
        snapshots = [snapshot(back, self.favoured, C, holders=()), snapshot(back, self.favoured, at=LATER, holders=())]
        assert violations(snapshots, [served("c", T0 + 5)]) == ["c was served past a, which waited"]

    def test_an_expired_offer_excuses_no_overtaking(self):
        soon = self.favoured._replace(offer=T0 + 3)
        back = self.slept._replace(asked=T0 - 100, offer=0)
        snapshots = [snapshot(back, soon, holders=()), snapshot(back, at=LATER, holders=("b",))]
        assert violations(snapshots, [served("b", T0 + 2)]) == []
        assert violations(snapshots, [served("b", T0 + 3)]) == ["b was served past a, which waited"]

    def test_a_waiter_that_asks_again_between_two_snapshots_keeps_its_turn(self):
        """Too little time has passed for an offer to lapse, so the waiter cannot have missed one."""
        again = A._replace(asked=T0 + 2)
        snapshots = [snapshot(A, B), snapshot(again, at=LATER, holders=("b",))]
        assert violations(snapshots, [served("b", T0 + 5)]) == ["b was served past a, which waited"]

    def test_an_offer_may_lapse_unseen_between_distant_snapshots(self):
        far = T0 + OFFER + 1000
        again = A._replace(asked=far - 100)
        snapshots = [snapshot(A, B), snapshot(again, at=far, holders=("b",))]
        assert violations(snapshots, [served("b", T0 + OFFER + 500)]) == []
        assert violations(snapshots, [served("b", T0 + OFFER - 1)]) == ["b was served past a, which waited"]
        snapshots = [snapshot(A, B), snapshot(A, at=far, holders=("b",))]
        assert violations(snapshots, [served("b", T0 + OFFER + 500)]) == ["b was served past a, which waited"]

    def test_a_waiter_served_late_may_have_let_an_offer_lapse(self):
        snapshots = [snapshot(A, B), snapshot(at=T0 + 2 * OFFER, holders=())]
        grants = [served("b", T0 + OFFER), served("a", T0 + OFFER + 500)]
        assert violations(snapshots, grants, ttl=LIFE) == []
        grants = [served("b", T0 + OFFER - 1), served("a", T0 + OFFER + 500)]
        assert violations(snapshots, grants, ttl=LIFE) == ["b was served past a, which waited"]

    def test_passing_over_a_waiter_that_has_just_asked_is_found(self):
        just_asked = self.slept._replace(asked=T0 - OFFER + 1)
        assert violations([snapshot(just_asked)], []) == ["a is passed over although it has just asked"]
        assert violations([snapshot(just_asked, at=T0 + 1)], []) == []

    def test_passing_over_a_waiter_without_an_offer_is_found(self):
        """The waiter had no offer, so the machine must not treat it as one that let an offer lapse."""
        awake = self.slept._replace(offer=0)
        snapshots = [snapshot(awake), snapshot(self.slept, at=LATER)]
        assert violations(snapshots, []) == ["a is passed over without an offer"]
        assert violations([snapshot(awake), snapshot(self.slept, at=T0 + OFFER)], []) == []

    @pytest.mark.parametrize("after", [0, LAPSED, T0 + OFFER])
    def test_an_offer_is_valid_until_its_end(self, after):
        offered = waits("a", self.LONG_AGO, offer=LATER + 1)
        changed = offered._replace(offer=after)
        holders = () if after > 0 else ("h",)
        assert violations([snapshot(offered, holders=()), snapshot(offered, at=LATER, holders=())], []) == []
        found = violations([snapshot(offered, holders=()), snapshot(changed, at=LATER, holders=holders)], [])
        assert "a was deprived of an offer before its end" in found
        ended = offered._replace(offer=LATER)
        assert violations([snapshot(ended, holders=()), snapshot(changed, at=LATER, holders=holders)], []) == []


class TestRanks:
    """An attempt enters the queue once. A queue that resets ranks is in order in every snapshot, but unfair."""

    def test_a_waiter_moved_to_the_tail_is_found(self):
        again = A._replace(entered=T0 + 5, asked=T0 + 5)
        (found,) = violations([snapshot(A, B), snapshot(B, again, at=LATER)], [])
        assert "a lost its rank" in found

    def test_a_waiter_moved_to_the_tail_between_snapshots_is_found(self):
        again = A._replace(entered=LATER + 5, asked=LATER + 5)
        (found,) = violations([snapshot(A), snapshot(at=LATER), snapshot(again, at=LATER + 10)], [])
        assert "a lost its rank" in found

    def test_a_waiter_that_stops_asking_loses_its_rank(self):
        end = A.asked + LIFE
        for entered, lost in ((end - 1, True), (end, False)):
            again = A._replace(entered=entered, asked=entered)
            assert bool(violations([snapshot(A), snapshot(again, at=end + 5)], [], ttl=2 * LIFE)) is lost

    def test_a_waiter_with_a_lost_grant_may_enter_anew_after_the_lease_ends(self):
        """The reply was lost, so no event records the grant; but the lease lasts for its TTL."""
        for entered, lost in ((T0 + TTL - 1, True), (T0 + TTL, False)):
            again = A._replace(entered=entered, asked=entered)
            assert bool(violations([snapshot(A), snapshot(again, at=entered + 5)], [])) is lost

    def test_the_grant_that_a_waiter_receives_may_be_its_second(self):
        snapshots = [snapshot(A, B), snapshot(at=T0 + OFFER, holders=())]
        second = served("a", T0 + TTL + 500)
        assert violations(snapshots, [served("b", T0 + TTL), second]) == []
        assert violations(snapshots, [served("b", T0 + TTL - 1), second]) == ["b was served past a, which waited"]

    def test_amnesia_excuses_only_ranks_from_before_it(self):
        again = A._replace(entered=T0 + 5, asked=T0 + 5)
        snapshots = [snapshot(A, B), snapshot(B, again, at=LATER)]
        assert violations(snapshots, [], losses=[StateLoss(2.0, T0 + 3)]) == []
        assert violations(snapshots, [], losses=[StateLoss(2.0, T0 + 6)])
        assert violations(snapshots, [], losses=[StateLoss(0.5, T0 - 1)])

    def test_the_new_master_may_hold_an_older_rank(self):
        """The waiter re-entered the queue at the dead master, which did not replicate that."""
        older = A._replace(entered=A.entered - TTL, asked=A.asked - TTL)
        snapshots = [snapshot(A), snapshot(older, at=LATER)]
        assert violations(snapshots, [], losses=[StateLoss(2.0, T0 + 3)]) == []
        assert "a lost its rank" in violations(snapshots, [])[0]


class TestFailovers:
    """The new master continues from an earlier state. A waiter that kept its rank there keeps its turn."""

    LOST = StateLoss(2.0, T0 + 100)
    snapshots = (snapshot(A, B), snapshot(A, at=LATER, holders=("b",)))

    def violations(self, *grants, snapshots=snapshots):
        return violations(snapshots, grants, losses=[self.LOST])

    def test_grants_of_the_dead_master_are_excused(self):
        """The dead master may also have served the first waiter; the new master has neither grant."""
        assert self.violations(served("b", T0 + 50)) == []
        assert self.violations(served("c", T0 + 50)) == []

    def test_grants_of_the_new_master_are_not_excused(self):
        assert self.violations(served("b", T0 + 200)) == ["b was served past a, which waited"]

    def test_a_newcomer_at_the_new_master_is_behind_all_kept_ranks(self):
        assert self.violations(served("c", T0 + 200, asked=2.1)) == ["c was served past a, which waited"]

    def test_a_waiter_may_rank_ahead_of_the_last_snapshot_after_a_failover(self):
        """The dead master had served the waiter, and the grant was lost: at the new master it still waits, in front."""
        assert self.violations(served("c", T0 + 200, asked=1.9)) == []

    def test_an_offer_of_the_dead_master_may_still_be_valid(self):
        before = snapshot(A._replace(asked=T0 - 50), B._replace(offer=T0 - 100 + OFFER), holders=())
        after = snapshot(A._replace(asked=T0 - 50), at=LATER, holders=("b",))
        assert self.violations(served("b", T0 + 200), snapshots=(before, after)) == []

    def test_a_waiter_may_have_lapsed_at_the_new_master(self):
        after = snapshot(A._replace(asked=T0 + 300), at=LATER, holders=("b",))
        assert self.violations(served("b", T0 + 200), snapshots=(snapshot(A, B), after)) == []

    def test_a_waiter_that_re_enters_after_a_failover_ranks_last(self):
        after = snapshot(A._replace(entered=T0 + 300, asked=T0 + 300), at=LATER, holders=("b",))
        assert self.violations(served("b", T0 + 200), snapshots=(snapshot(A, B), after)) == []

    def test_an_out_of_order_offer_of_the_new_master_is_found(self):
        b = B._replace(asked=T0 - 50, offer=T0 + 200 + OFFER)
        assert self.violations(snapshots=(snapshot(A, B), snapshot(A, b, at=LATER, holders=()))) != []

    def test_snapshots_on_one_side_of_a_failover_get_no_excuse(self):
        grants = [served("b", T0 + 5)]
        assert violations(self.snapshots, grants, losses=[StateLoss(0.5, T0 - 1)]) != []
        assert violations(self.snapshots, grants, losses=[StateLoss(3.0, LATER)]) != []


def test_snapshots_may_arrive_in_any_order():
    """After a failover the observer may see states that are older than earlier snapshots."""
    snapshots = [snapshot(A, at=LATER, holders=("b",)), snapshot(A, B)]
    assert violations(snapshots, [served("b", T0 + 5)]) == ["b was served past a, which waited"]
