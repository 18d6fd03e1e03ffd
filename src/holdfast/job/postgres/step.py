"""A worker's step. What is plain is one round trip: the transaction, its COMMIT included, leaves in one write.

What hangs together with other jobs (blockers, unique and concurrency keys, rates, the next of a chain) is left alone by
that, and done in a transaction of its own right after it, still under the same seq. The row of the lane is written
first and held to the end, so a copy of a step that comes late, or again, finds the seq used and does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.engine.base import Micros, Wake
from holdfast.job.model import Claimed, StepCommand, StepReply, Verdict
from holdfast.job.postgres.ending import Ends
from holdfast.job.postgres.enqueue import Enqueueing
from holdfast.job.postgres.finish import STATES, Finishing, columns
from holdfast.job.postgres.limited import Limited, reach_of
from holdfast.job.postgres.pace import Pace
from holdfast.job.postgres.reap import CAUSE, REAPED, reap_late
from holdfast.job.postgres.rows import CARE, Part, ask, claimed, inside, turn_of, whole
from holdfast.job.postgres.texts import Numbers, Texts

#: A step reaps and makes due at most this many.
DUE = 1000
#: Candidates beyond those wanted, where several lanes are in reach: others may be taking the first ones.
SPARE = 16
#: The same once that was not enough.
CROWD = 1000


class Steps:
    """All steps of a store in this process."""

    def __init__(self, space: str, prefix: str, enqueueing: Enqueueing) -> None:
        self._space = space
        self._prefix = prefix
        self._enqueueing = enqueueing
        self._pace = Pace()

    def step(self, command: StepCommand, now: Micros | None, wakes: list[Wake]) -> Part:
        """The verb: what `Store.step` says."""
        return (yield from Step(self._space, self._prefix, self._enqueueing, self._pace, command, now, wakes).run())


class Step:
    """One of them."""

    def __init__(
        self,
        space: str,
        prefix: str,
        enqueueing: Enqueueing,
        pace: Pace,
        command: StepCommand,
        now: Micros | None,
        wakes: list[Wake],
    ) -> None:
        self._space = space
        self._pace = pace
        self._command = command
        self._who = (f"{command.worker}\x00{command.incarnation}", command.lane)
        self._test_now = now
        self._ends = Ends(space, prefix, now, wakes)
        self._finishing = Finishing(self._ends, enqueueing)
        self._lane = {
            "space": space,
            "worker": command.worker,
            "incarnation": command.incarnation,
            "lane": command.lane,
            "now": now,
        }
        self._turn = turn_of(command.incarnation, command.lane, command.seq)
        self._finished: set[int] = set()
        self._jobs: list[Claimed] = []
        self._waited: list[str] = []
        self._next_in: Micros | None = None
        #: µs until a rate has room for what was wanted.
        self._limited_until: Micros | None = None
        #: Leases that ran out and are to be seen to with care: how many; and whether there may be more of any kind.
        self._late = 0
        self._more_late = False
        self._now = 0

    def run(self) -> Part:
        command = self._command
        want = command.claim.want
        limited = self._pace.is_limited(self._who)
        statements = self._plain(limited)
        names = [name for name, _ in statements]
        answers = dict(zip(names, (yield whole(*statements)), strict=True))
        ((self._now, mine),) = answers["turn"]
        if not mine:
            return (yield from self._once_more())
        self._heard(answers)
        crowded = False
        held_back = bool(want) and not limited and "claim" not in answers
        if want and "claim" in answers:
            met, crowded = bool(answers["claim"][0][1]), bool(answers["claim"][0][21])
            self._pace.met_limits(self._who, met)
            limited = met
        left = [place for place, _ in enumerate(command.finishes, 1) if place not in self._finished]
        short = want > len(self._jobs)
        if (
            left
            or self._late
            or self._more_late
            or held_back
            or crowded
            or (short and (limited or "reap" not in answers))
        ):
            yield from self._carefully(left, limited, look="reap" not in answers)
        self._pace.looked(self._who, full=bool(want) and len(self._jobs) >= want)
        self._ends.tell()
        return (yield from self._reply())

    def _plain(self, limited: bool) -> list[tuple[str, dict[str, Any]]]:
        """The statements of the round trip that most steps are."""
        command, claim = self._command, self._command.claim
        memory = 2 * claim.lease
        made: list[tuple[str, dict[str, Any]]] = [
            (
                "turn",
                {
                    **self._lane,
                    "seq": command.seq,
                    "want": claim.want,
                    "memory": memory,
                    "not_after": command.not_after,
                },
            )
        ]
        look = self._test_now is not None or self._pace.looks(self._who)
        if look:
            made += self._look()
        plain = [f if f.kind in STATES and f.next is None else None for f in command.finishes]
        if any(plain):
            made.append(("finish", {**self._lane, "care": CARE, **columns(plain)}))
        # What a finish makes pending is there to be claimed: those that need care come first, in a round of their own.
        if claim.want and not limited and all(plain):
            # The ends of leases lie behind all that were given and finished lately: who is busy does not look there.
            idle = self._test_now is not None or not self._pace.is_busy(self._who)
            after = {"look": idle, "expected": len(plain), "reaped": look}
            made.append(("claim", {**self._claim_values(claim.want), **after}))
        if not claim.want:
            made.append(self._next())
        return made

    def _look(self) -> list[tuple[str, dict[str, Any]]]:
        """After leases that ran out, and what is due."""
        return [
            ("reap", {**self._lane, **CAUSE, "limit": REAPED}),
            ("due", {**self._lane, "limit": DUE}),
        ]

    def _next(self) -> tuple[str, dict[str, Any]]:
        return ("next_due", {"space": self._space, "now": self._test_now})

    def _comes_next(self, rows: list[Any]) -> None:
        waits = [wait for wait in (rows[0][0], self._limited_until) if wait is not None]
        self._next_in = min(waits, default=None)

    def _claim_values(self, want: int) -> dict[str, Any]:
        claim = self._command.claim
        own = {"turn": self._turn, "lease": claim.lease, "want": want, "spare": SPARE}
        return {**self._lane, **own, **reach_of(claim)}

    def _seen(self, reaped: Sequence[Any], due: Sequence[Any]) -> None:
        for id_, type_, _, pending in reaped:
            if pending:
                self._ends.lost(id_)
                self._ends.ready[id_] = type_
            else:
                self._late += 1
        self._more_late = self._more_late or len(reaped) >= REAPED
        self._ends.ready.update(due)

    def _heard(self, answers: dict[str, Any]) -> None:
        self._seen(answers.get("reap", ()), answers.get("due", ()))
        for place, id_, chain, flags in answers.get("finish", ()):
            self._finished.add(place)
            self._ends.announce(id_, chain, flags)
        if rows := answers.get("next_due"):
            self._comes_next(rows)
        if rows := answers.get("claim"):
            self._next_in = rows[0][2]
            self._took(self._in_order(rows))

    def _in_order(self, rows: list[Any]) -> list[Any]:
        groups = {
            queue: place for place, group in reversed(list(enumerate(self._command.claim.queues))) for queue in group
        }
        return sorted((row for row in rows if row[3] is not None), key=lambda row: (groups[row[6]], row[20], row[3]))

    def _took(self, rows: list[Any]) -> None:
        jobs, waited = claimed(rows)
        self._jobs += jobs
        self._waited += waited

    def _carefully(self, left: Sequence[int], limited: bool, *, look: bool) -> Part:
        """What the plain part left alone, in a transaction of its own. `look`: it has not looked after leases."""
        command = self._command
        rows = yield from ask("turn_lock", self._lane)
        if not rows or rows[0][1] != command.seq:  # somebody sent a later one: nobody waits for this any more
            yield whole()
            return
        if look:
            reaped, due = yield inside(*self._look())
            self._seen(reaped, due)
        yield from reap_late(self._ends, self._late)
        counted = yield from self._finishing.finish([(place, command.finishes[place - 1]) for place in left])
        if counted:
            self._finished.update(counted)
            yield inside(("turn_memo", {**self._lane, "finished": Numbers(counted)}))
        want = command.claim.want - len(self._jobs)
        if want > 0:
            values = self._claim_values(want)
            if not limited:
                rows = yield from ask(
                    "claim", {**values, "look": False, "expected": -1, "reaped": False, "spare": CROWD}
                )
                self._took(self._in_order(rows))
                limited = bool(rows[0][1])
                self._pace.met_limits(self._who, limited)
            if limited:
                yield from self._claim_limited(values, want)
        (rows,) = yield whole(self._next())
        self._comes_next(rows)

    def _claim_limited(self, values: dict[str, Any], want: int) -> Part:
        limits = Limited(self._space, self._command.claim, values, self._test_now)
        rows = yield from limits.claim(want)
        self._took(rows)
        self._pace.met_limits(self._who, limits.met)
        self._limited_until = limits.next_in if len(rows) < want else None

    def _once_more(self) -> Part:
        """The seq was used before, or the step comes too late."""
        command = self._command
        if self._now > command.not_after:
            return StepReply(now=self._now, expired=True)
        rows = yield from ask("turn_lock", self._lane)
        if not rows or rows[0][1] != command.seq:
            yield whole()
            return StepReply(now=self._now, stale=bool(rows))
        self._finished.update(rows[0][2])
        left = [place for place, _ in enumerate(command.finishes, 1) if place not in self._finished]
        counted = yield from self._finishing.finish([(place, command.finishes[place - 1]) for place in left])
        statements: list[tuple[str, dict[str, Any]]] = []
        if counted:
            self._finished.update(counted)
            statements.append(("turn_memo", {**self._lane, "finished": Numbers(counted)}))
        values = {**self._lane, "turn": self._turn, "lease": command.claim.lease}
        *_, held, rows = yield whole(*statements, ("turn_jobs", values), self._next())
        self._comes_next(rows)
        self._took(self._in_order(held))
        self._ends.tell()
        return (yield from self._reply())

    def _reply(self) -> Part:
        command = self._command
        jobs = self._jobs
        if self._waited:
            (rows,) = yield whole(("claim_upstream", {"space": self._space, "ids": Texts(self._waited)}))
            upstream: dict[str, dict[str, bytes | None]] = {}
            for job, chain, result in rows:
                upstream.setdefault(job, {})[chain] = result
            jobs = [msgspec.structs.replace(j, upstream=upstream[j.id]) if j.id in upstream else j for j in jobs]
        next_in = self._next_in
        if jobs:  # their own leases end, too
            next_in = command.claim.lease if next_in is None else min(next_in, command.claim.lease)
        verdicts: tuple[Verdict, ...] = tuple(
            "ok" if place in self._finished else "stale" for place, _ in enumerate(command.finishes, 1)
        )
        return StepReply(
            now=self._now,
            verdicts=verdicts,
            jobs=tuple(jobs),
            next_in=None if next_in is None else max(0, next_in),
            ready=self._ends.counts(but=(job.id for job in jobs)) if self._ends.ready else {},
        )
