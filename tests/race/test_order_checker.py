"""What the checker takes for a broken order, and what it must not: every claim is shown both."""

import pytest

from backstay.gate.machine import LAPSED, LIFE, OFFER
from backstay.testing.histories.order import Grant, Loss, Snapshot, Waiting
from backstay.testing.histories.order import out_of_order as find_violations

#: The time of the first snapshot; the next one is a hundredth of a second later by default.
T0 = 1_000_000_000
LATER = T0 + 10_000
#: Of every lease here.
TTL = 1_500_000


def waits(who, entered, *, asked=None, offer=0):
    """A waiter that entered, and last asked, this long before the first look."""
    return Waiting(who, T0 - entered, T0 - (entered if asked is None else asked), offer)


def look(*queue, at=T0, holders=("h",)):
    return Snapshot("x", at, holders, queue)


def served(who, at, asked=1.0):
    return Grant(who, at, asked)


def out_of_order(looks, grants, permits=1, losses=(), ttl=TTL):
    return find_violations(looks, grants, permits, losses, ttl)


A, B, C = waits("a", 3000), waits("b", 2000), waits("c", 1000)


def test_a_queue_served_in_order_is_fine():
    looks = [look(A, B), look(B, at=LATER, holders=("a",)), look(at=LATER + 10, holders=("b",))]
    assert out_of_order(looks, [served("a", T0 + 5), served("b", LATER + 5)]) == []


def test_a_waiter_that_was_overtaken_is_found():
    looks = [look(A, B), look(A, at=LATER, holders=("b",))]
    assert out_of_order(looks, [served("b", T0 + 5)]) == ["b was served past a, which waited"]


def test_a_newcomer_served_ahead_of_the_queue_is_found():
    looks = [look(A), look(A, at=LATER, holders=("c",))]
    assert out_of_order(looks, [served("c", T0 + 5)]) == ["c was served past a, which waited"]


def test_an_order_reversed_between_two_snapshots_is_found():
    looks = [look(A, B), look(at=LATER, holders=())]
    assert out_of_order(looks, [served("a", T0 + 3), served("b", T0 + 5)]) == []
    assert out_of_order(looks, [served("b", T0 + 3), served("a", T0 + 5)]) == ["b was served past a, which waited"]


def test_waiters_offered_permits_together_may_confirm_in_any_order():
    looks = [look(A, B, holders=("h", "i")), look(at=LATER, holders=("a", "b"))]
    assert out_of_order(looks, [served("b", T0 + 3), served("a", T0 + 5)], permits=2) == []


def test_with_several_permits_an_offered_waiter_may_confirm_later_than_the_next():
    offered = A._replace(offer=T0 + 2 + OFFER)
    looks = [look(A, B, holders=("h", "i")), look(offered, at=LATER, holders=("b",))]
    assert out_of_order(looks, [served("b", T0 + 5)], permits=2) == []
    assert out_of_order(looks, [served("b", T0 + 1)], permits=2) == ["b was served past a, which waited"]


def test_a_queue_out_of_order_is_found():
    (found,) = out_of_order([look(B, A)], [])
    assert "order of arrival" in found


def test_more_offers_than_permits_are_found():
    assert "shows 2 holders" in out_of_order([look(holders=("a", "b"))], [])[0]
    assert "1 holders and 1 offers" in out_of_order([look(A._replace(offer=T0 + 5))], [])[0]


def test_an_unused_permit_is_found():
    assert out_of_order([look(A, holders=())], []) == ["a waits although a place is free"]
    assert out_of_order([look(A)], [], permits=2) == ["a waits although a place is free"]
    assert out_of_order([look(A._replace(offer=T0 + 5), holders=())], []) == []


class TestPassedOver:
    """Only a waiter that let an offer lapse is passed over, and only until it asks again."""

    LONG_AGO = 3 * OFFER
    #: It was offered a place and did not answer.
    slept = waits("a", LONG_AGO, offer=LAPSED)
    #: The place went to the next, whose offer stands.
    favoured = waits("b", 2000, offer=T0 - 500 + OFFER)

    def test_the_next_waiter_is_served_after_an_offer_lapsed(self):
        looks = [look(self.slept, B), look(self.slept, at=LATER, holders=("b",))]
        assert out_of_order(looks, [served("b", T0 + 5)]) == []

    def test_an_offer_made_while_the_first_waiter_slept_stays_valid(self):
        """The sleeper has asked again and waits, but the offer was made before that."""
        back = self.slept._replace(asked=T0 - 100, offer=0)
        looks = [look(back, self.favoured, holders=()), look(back, at=LATER, holders=("b",))]
        assert out_of_order(looks, [served("b", T0 + 5)]) == []

    def test_an_offer_past_a_waiter_that_has_returned_is_found(self):
        back = self.slept._replace(asked=T0 - 900, offer=0)
        assert out_of_order([look(back, self.favoured, holders=())], []) == [
            "b was offered a place past a, which waited"
        ]

    def test_an_offer_is_valid_for_its_own_waiter_only(self):
        back = self.slept._replace(asked=T0 - 100, offer=0)
        looks = [look(back, self.favoured, C, holders=()), look(back, self.favoured, at=LATER, holders=())]
        assert out_of_order(looks, [served("c", T0 + 5)]) == ["c was served past a, which waited"]

    def test_an_expired_offer_excuses_no_overtaking(self):
        soon = self.favoured._replace(offer=T0 + 3)
        back = self.slept._replace(asked=T0 - 100, offer=0)
        looks = [look(back, soon, holders=()), look(back, at=LATER, holders=("b",))]
        assert out_of_order(looks, [served("b", T0 + 2)]) == []
        assert out_of_order(looks, [served("b", T0 + 3)]) == ["b was served past a, which waited"]

    def test_a_waiter_that_asks_again_between_two_snapshots_keeps_its_turn(self):
        """Too little time has passed for an offer to lapse, so it was awake throughout."""
        again = A._replace(asked=T0 + 2)
        looks = [look(A, B), look(again, at=LATER, holders=("b",))]
        assert out_of_order(looks, [served("b", T0 + 5)]) == ["b was served past a, which waited"]

    def test_an_offer_may_lapse_unseen_between_distant_snapshots(self):
        far = T0 + OFFER + 1000
        again = A._replace(asked=far - 100)
        looks = [look(A, B), look(again, at=far, holders=("b",))]
        assert out_of_order(looks, [served("b", T0 + OFFER + 500)]) == []
        assert out_of_order(looks, [served("b", T0 + OFFER - 1)]) == ["b was served past a, which waited"]
        looks = [look(A, B), look(A, at=far, holders=("b",))]
        assert out_of_order(looks, [served("b", T0 + OFFER + 500)]) == ["b was served past a, which waited"]

    def test_a_waiter_served_late_may_have_let_an_offer_lapse(self):
        looks = [look(A, B), look(at=T0 + 2 * OFFER, holders=())]
        grants = [served("b", T0 + OFFER), served("a", T0 + OFFER + 500)]
        assert out_of_order(looks, grants, ttl=LIFE) == []
        grants = [served("b", T0 + OFFER - 1), served("a", T0 + OFFER + 500)]
        assert out_of_order(looks, grants, ttl=LIFE) == ["b was served past a, which waited"]

    def test_passing_over_a_waiter_that_has_just_asked_is_found(self):
        hasty = self.slept._replace(asked=T0 - OFFER + 1)
        assert out_of_order([look(hasty)], []) == ["a is passed over although it has just asked"]
        assert out_of_order([look(hasty, at=T0 + 1)], []) == []

    def test_passing_over_a_waiter_without_an_offer_is_found(self):
        """It only waited for its turn; the machine must not treat it as a waiter that let an offer lapse."""
        awake = self.slept._replace(offer=0)
        looks = [look(awake), look(self.slept, at=LATER)]
        assert out_of_order(looks, []) == ["a is passed over without an offer"]
        assert out_of_order([look(awake), look(self.slept, at=T0 + OFFER)], []) == []

    @pytest.mark.parametrize("after", [0, LAPSED, T0 + OFFER])
    def test_an_offer_stands_until_its_end(self, after):
        offered = waits("a", self.LONG_AGO, offer=LATER + 1)
        changed = offered._replace(offer=after)
        holders = () if after > 0 else ("h",)
        assert out_of_order([look(offered, holders=()), look(offered, at=LATER, holders=())], []) == []
        found = out_of_order([look(offered, holders=()), look(changed, at=LATER, holders=holders)], [])
        assert "a was deprived of an offer before its end" in found
        ended = offered._replace(offer=LATER)
        assert out_of_order([look(ended, holders=()), look(changed, at=LATER, holders=holders)], []) == []


class TestRanks:
    """An attempt enters the queue once: a queue that resets ranks looks ordered at every moment, but is unfair."""

    def test_a_waiter_moved_to_the_tail_is_found(self):
        again = A._replace(entered=T0 + 5, asked=T0 + 5)
        (found,) = out_of_order([look(A, B), look(B, again, at=LATER)], [])
        assert "a lost its rank" in found

    def test_a_waiter_moved_to_the_tail_between_snapshots_is_found(self):
        again = A._replace(entered=LATER + 5, asked=LATER + 5)
        (found,) = out_of_order([look(A), look(at=LATER), look(again, at=LATER + 10)], [])
        assert "a lost its rank" in found

    def test_a_waiter_that_stops_asking_loses_its_rank(self):
        end = A.asked + LIFE
        for entered, lost in ((end - 1, True), (end, False)):
            again = A._replace(entered=entered, asked=entered)
            assert bool(out_of_order([look(A), look(again, at=end + 5)], [], ttl=2 * LIFE)) is lost

    def test_a_waiter_with_a_lost_grant_may_enter_anew_after_the_lease_ends(self):
        """Its reply was lost, so no event records it; but a lease lives for its TTL."""
        for entered, lost in ((T0 + TTL - 1, True), (T0 + TTL, False)):
            again = A._replace(entered=entered, asked=entered)
            assert bool(out_of_order([look(A), look(again, at=entered + 5)], [])) is lost

    def test_the_grant_that_a_waiter_receives_may_be_its_second(self):
        looks = [look(A, B), look(at=T0 + OFFER, holders=())]
        second = served("a", T0 + TTL + 500)
        assert out_of_order(looks, [served("b", T0 + TTL), second]) == []
        assert out_of_order(looks, [served("b", T0 + TTL - 1), second]) == ["b was served past a, which waited"]

    def test_amnesia_excuses_only_ranks_from_before_it(self):
        again = A._replace(entered=T0 + 5, asked=T0 + 5)
        looks = [look(A, B), look(B, again, at=LATER)]
        assert out_of_order(looks, [], losses=[Loss(2.0, T0 + 3)]) == []
        assert out_of_order(looks, [], losses=[Loss(2.0, T0 + 6)])
        assert out_of_order(looks, [], losses=[Loss(0.5, T0 - 1)])

    def test_the_new_master_may_hold_an_older_rank(self):
        """Its owner had entered anew since, and the dead master had not replicated that."""
        older = A._replace(entered=A.entered - TTL, asked=A.asked - TTL)
        looks = [look(A), look(older, at=LATER)]
        assert out_of_order(looks, [], losses=[Loss(2.0, T0 + 3)]) == []
        assert "a lost its rank" in out_of_order(looks, [])[0]


class TestFailovers:
    """The new master continues from an earlier state. A waiter that kept its rank there keeps its turn."""

    LOST = Loss(2.0, T0 + 100)
    looks = (look(A, B), look(A, at=LATER, holders=("b",)))

    def wrong(self, *grants, looks=looks):
        return out_of_order(looks, grants, losses=[self.LOST])

    def test_grants_of_the_dead_master_are_excused(self):
        """The dead master may have served the first waiter too; the new master knows of neither grant."""
        assert self.wrong(served("b", T0 + 50)) == []
        assert self.wrong(served("c", T0 + 50)) == []

    def test_grants_of_the_new_master_are_not_excused(self):
        assert self.wrong(served("b", T0 + 200)) == ["b was served past a, which waited"]

    def test_a_newcomer_at_the_new_master_is_behind_all_kept_ranks(self):
        assert self.wrong(served("c", T0 + 200, asked=2.1)) == ["c was served past a, which waited"]

    def test_a_waiter_may_rank_ahead_of_the_last_snapshot_after_a_failover(self):
        """The dead master had served it and the grant was lost: at the new master it still waits, in front."""
        assert self.wrong(served("c", T0 + 200, asked=1.9)) == []

    def test_an_offer_of_the_dead_master_may_still_be_valid(self):
        before = look(A._replace(asked=T0 - 50), B._replace(offer=T0 - 100 + OFFER), holders=())
        after = look(A._replace(asked=T0 - 50), at=LATER, holders=("b",))
        assert self.wrong(served("b", T0 + 200), looks=(before, after)) == []

    def test_a_waiter_may_have_lapsed_at_the_new_master(self):
        after = look(A._replace(asked=T0 + 300), at=LATER, holders=("b",))
        assert self.wrong(served("b", T0 + 200), looks=(look(A, B), after)) == []

    def test_a_waiter_that_re_enters_after_a_failover_ranks_last(self):
        after = look(A._replace(entered=T0 + 300, asked=T0 + 300), at=LATER, holders=("b",))
        assert self.wrong(served("b", T0 + 200), looks=(look(A, B), after)) == []

    def test_an_out_of_order_offer_of_the_new_master_is_found(self):
        b = B._replace(asked=T0 - 50, offer=T0 + 200 + OFFER)
        assert self.wrong(looks=(look(A, B), look(A, b, at=LATER, holders=()))) != []

    def test_snapshots_on_one_side_of_a_failover_get_no_excuse(self):
        grants = [served("b", T0 + 5)]
        assert out_of_order(self.looks, grants, losses=[Loss(0.5, T0 - 1)]) != []
        assert out_of_order(self.looks, grants, losses=[Loss(3.0, LATER)]) != []


def test_snapshots_may_arrive_in_any_order():
    """After a failover the observer sees states older than those that it saw before."""
    looks = [look(A, at=LATER, holders=("b",)), look(A, B)]
    assert out_of_order(looks, [served("b", T0 + 5)]) == ["b was served past a, which waited"]
