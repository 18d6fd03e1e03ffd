"""A worker's step. What is plain is one round trip: the transaction, its COMMIT included, leaves in one write.

What hangs together with other jobs (blockers, unique and concurrency keys, rates, the next of a chain) is left alone by
that, and done in a transaction of its own right after it, still under the same seq. The row of the lane is written
first and held to the end, so a copy of a step that comes late, or again, finds the seq used and does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from backstay.engine.base import Micros, Wake
from backstay.engine.postgres.pipeline.pipeline import RoundTrip
from backstay.job.exchange import ExchangeCommand, ExchangeReply
from backstay.job.stores.postgres import cascade
from backstay.job.stores.postgres.claim_heuristics import ClaimHeuristics
from backstay.job.stores.postgres.ctid_cache import CtidCache
from backstay.job.stores.postgres.enqueue import Enqueueing
from backstay.job.stores.postgres.exchange_state import ExchangeState, Named
from backstay.job.stores.postgres.finish import columns, is_plain
from backstay.job.stores.postgres.limited import Limited
from backstay.job.stores.postgres.reap import due_late, reap_late
from backstay.job.stores.postgres.rows import CARE, Part, ask, claimed, inside, whole
from backstay.job.stores.postgres.statements import Numbers, RowLocations

#: Candidates beyond those wanted, where `SPARE` was not enough.
CROWD = 1000


class Exchanges:
    """All steps of a store in this process."""

    def __init__(self, space: str, prefix: str, enqueueing: Enqueueing) -> None:
        self._space = space
        self._prefix = prefix
        self._enqueueing = enqueueing
        self._heuristics = ClaimHeuristics()
        self.ctid_cache = CtidCache()

    def exchange(self, command: ExchangeCommand, now: Micros | None, wakes: list[Wake]) -> Part:
        """The verb: what `Store.exchange` says."""
        shared = self._enqueueing, self._heuristics, self.ctid_cache
        return (yield from Exchange(self._space, self._prefix, *shared, command, now, wakes).run())


class Exchange(ExchangeState):
    """One of them."""

    def run(self) -> Part:
        # Where there are runs, most of it takes care: one transaction for all of it, then.
        mine = yield from (self._together() if self._heuristics.has_runs(self._who) else self._apart())
        self._heuristics.answered(self._who)
        if not mine:
            return (yield from self._once_more())
        want = self._command.claim.want
        self._heuristics.met_runs(self._who, self._met_runs or bool(self._ends.transitions))
        self._heuristics.looked(self._who, full=len(self._jobs) >= want if want else None)
        self._ends.publish_wakes()
        return (yield from self._reply())

    def _apart(self) -> Part:
        """What is plain, and then, in a transaction of its own, what is not. Returns whether it is this step's turn."""
        command = self._command
        want = command.claim.want
        limited = self._heuristics.is_limited(self._who)
        usual = self._is_usual(limited)
        answers = yield from self._ask(self._claim_plain() if usual else self._plain(limited), whole)
        if answers is None:
            return False
        crowded = False
        held_back = bool(want) and not limited and not usual and "claim" not in answers
        if usual:
            crowded = not answers["claim_plain"][0][23]
            self._heuristics.met_single(self._who, not crowded)
            if "claim_floor" in answers:
                self._heuristics.found_floor(self._who)
        elif want and "claim" in answers:
            met, crowded, runs, single = (bool(answers["claim"][0][column]) for column in (1, 22, 23, 26))
            self._heuristics.met_limits(self._who, met)
            self._heuristics.met_single(self._who, single)
            limited = met
            crowded = crowded or runs
        left = self._left()
        short = want > len(self._jobs)
        if (
            left
            or self._late
            or self._late_due
            or self._more_late
            or held_back
            or crowded
            or (short and (limited or not (self._hints or "reap" in answers)))
        ):
            yield from self._carefully(left, limited, look="reap" not in answers, begun=False)
        return True

    def _together(self) -> Part:
        """Where there are runs: in one write what goes well (cascade.py), and then, in a transaction of its own, what
        does not; or all of it with care.
        """
        limited = self._heuristics.is_limited(self._who)
        look = self._looks()
        # What may have been undone because it takes care is not begun in the same way again.
        if limited or self._heuristics.is_unanswered(self._who) or not cascade.end_well(self._command.finishes):
            answers = yield from self._ask([self._begin(), *(self._look() if look else ())], inside)
            if answers is not None:
                yield from self._carefully(self._left(), limited, look=not look, begun=True)
            return answers is not None
        self._heuristics.asks(self._who)
        self._is_counted = True
        answers = yield from self._ask(self._in_one_write(look), whole)
        self._is_counted = False
        if answers is None:
            return False
        self._met_runs = cascade.came_of(self._ends, answers)
        crowded = False
        if rows := answers.get("claim") or answers.get("claim_run"):
            limited, crowded, single = (bool(rows[0][column]) for column in (1, 22, 26))
            self._heuristics.met_limits(self._who, limited)
            self._heuristics.met_single(self._who, single)
        left = self._left()
        if left or limited or crowded or self._late or self._late_due or self._more_late:
            yield from self._carefully(left, limited, look=not look, begun=False)
        return True

    def _in_one_write(self, look: bool) -> list[Named]:
        command, claim = self._command, self._command.claim
        made = [self._begin(), *(self._look() if look else ())]
        made += cascade.finishing(self._lane, command.finishes, reaped=look)
        idle = self._test_now is not None or not self._heuristics.is_busy(self._who)
        if claim.want:
            quick = {"look": idle, "expected": len(command.finishes), "reaped": look, "runs": True, "quick": True}
            name = "claim_run" if self._heuristics.is_single(self._who) else "claim"
            made.append((name, {**self._claim_values(claim.want), **quick, "lazy": False}))
            made.append(self._just_came())
        elif look or idle:
            made.append(self._next())
        return made + cascade.counting(self._lane)

    def _ask(self, statements: list[Named], how: Callable[..., RoundTrip]) -> Part:
        """The first round: answers by name; None where it is not this step's turn."""
        names = [name for name, _ in statements]
        answers = dict(zip(names, (yield how(*statements)._replace(ahead=self._takes())), strict=True))
        self._now, mine, self._denied = answers[names[0]][0][:3]
        if not mine:
            return None
        self._heard(answers, how)
        return answers

    def _plain(self, limited: bool) -> list[Named]:
        """The statements of the round trip that most steps are."""
        command, claim = self._command, self._command.claim
        made = [self._begin()]
        look = self._looks()
        if look:
            made += self._look()
        plain = [f if is_plain(f) else None for f in command.finishes]
        if any(plain):
            values = {**self._lane, "care": CARE, **columns(plain)}
            places = self._ctid_cache.take([finish.job for finish in command.finishes])
            if places is None or not all(plain):
                made.append(("finish", values))
            else:
                made.append(("finish_here", {**values, "places": RowLocations(places)}))
        # What a finish makes pending is there to be claimed: those that need care come first, in a round of their own.
        if claim.want and not limited and all(plain):
            # The ends of leases lie behind all that were given and finished lately: who is busy does not look there.
            idle = self._test_now is not None or not self._heuristics.is_busy(self._who)
            after = {"look": idle, "expected": len(plain), "reaped": look, "runs": False, "quick": False}
            after["lazy"] = not plain  # what has ended must last; what was handed out may be handed out again
            made.append(("claim", {**self._claim_values(claim.want), **after}))
        # Who is busy comes to look soon enough, and without looking at the ends of leases behind all those of late.
        if not claim.want and (look or not self._heuristics.is_busy(self._who)):
            made.append(self._next())
        return made

    def _is_usual(self, limited: bool) -> bool:
        """Whether it only claims, is not to look after anything else, and there was a single lane in reach."""
        if not self._command.claim.want or self._command.finishes or limited or self._looks():
            return False
        return self._heuristics.is_single(self._who)

    def _carefully(self, left: Sequence[int], limited: bool, *, look: bool, begun: bool) -> Part:
        """What the plain part left alone, in a transaction of its own, or the one that was `begun`. `look`: nobody has
        looked after leases yet.
        """
        command = self._command
        if not begun:
            rows = yield from ask("turn_lock", self._lane)
            if not rows or rows[0][1] != command.seq:  # somebody sent a later one: nobody waits for this any more
                yield whole()
                return
        if look:
            reaped, due = yield inside(*self._look())
            self._seen(reaped, due)
        yield from reap_late(self._ends, self._late)
        yield from due_late(self._ends, self._late_due)
        counted = yield from self._finishing.finish([(place, command.finishes[place - 1]) for place in left])
        memo: list[Named] = []
        if counted:
            self._finished.update(counted)
            memo = [("turn_memo", {**self._lane, "finished": Numbers(counted)})]
        want = command.claim.want - len(self._jobs)
        if want > 0:
            values = self._claim_values(want)
            if not limited:
                careful = {"look": False, "expected": -1, "reaped": False, "runs": True, "quick": False, "lazy": False}
                *_, rows = yield inside(*memo, ("claim", {**values, **careful, "spare": CROWD}))
                memo = []
                self._took(self._in_order(rows))
                self._passed_over(rows)
                limited = bool(rows[0][1])
                self._heuristics.met_limits(self._who, limited)
            if limited:
                yield from self._claim_limited(values, want)
        yield from self._close(memo)

    def _close(self, last: list[Named]) -> Part:
        """The end of the transaction."""
        closing = [*last, *(yield from self._ends.settle()), self._next()]
        if self._waited:
            *_, rows, self._upstream = yield whole(*closing, self._came())
        else:
            *_, rows = yield whole(*closing)
        self._comes_next(rows)

    def _claim_limited(self, values: dict[str, Any], want: int) -> Part:
        limits = Limited(self._space, self._command.claim, values, self._test_now)
        rows = yield from limits.claim(want)
        self._took(rows)
        self._heuristics.met_limits(self._who, limits.met)
        self._limited_until = limits.next_in if len(rows) < want else None

    def _once_more(self) -> Part:
        """The seq was used before, or the step comes too late."""
        command = self._command
        if self._now > command.not_after:
            return ExchangeReply(now=self._now, expired=True)
        if self._denied:
            return ExchangeReply(now=self._now, denied=True)
        rows = yield from ask("turn_lock", self._lane)
        if not rows or rows[0][1] != command.seq:
            yield whole()
            return ExchangeReply(now=self._now, stale=bool(rows))
        self._finished.update(rows[0][2])
        left = self._left()
        counted = yield from self._finishing.finish([(place, command.finishes[place - 1]) for place in left])
        statements: list[Named] = []
        if counted:
            self._finished.update(counted)
            statements.append(("turn_memo", {**self._lane, "finished": Numbers(counted)}))
        values = {**self._lane, "turn": self._turn, "lease": command.claim.lease}
        statements += yield from self._ends.settle()
        *_, held, rows = yield whole(*statements, ("turn_jobs", values), self._next())
        self._comes_next(rows)
        jobs, self._waited = claimed(self._in_order(held))
        self._jobs += jobs
        self._ends.publish_wakes()
        return (yield from self._reply())
