"""The state of one exchange under way, and the statements that all of its paths share (`exchange.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from backstay.engine.base import Micros, Wake
from backstay.engine.postgres.connection.wire import Statement
from backstay.engine.postgres.pipeline.pipeline import RoundTrip
from backstay.hub.protocol import hint_key
from backstay.job.exchange import Claimed, ExchangeCommand, ExchangeReply, Verdict
from backstay.job.stores.postgres.claim_heuristics import ClaimHeuristics
from backstay.job.stores.postgres.ctid_cache import CtidCache
from backstay.job.stores.postgres.ending import Ends
from backstay.job.stores.postgres.enqueue import Enqueueing
from backstay.job.stores.postgres.finish import Finishing
from backstay.job.stores.postgres.limited import reach_of
from backstay.job.stores.postgres.reap import CAUSE, REAPED
from backstay.job.stores.postgres.rows import CHAIN_WATCHED, IN_RUN, WATCHED, Part, claimed, turn_of, whole
from backstay.job.stores.postgres.statements import Texts, statement

Named = tuple[str, dict[str, Any]]

#: A step reaps and makes due at most this many.
DUE = 1000
#: Candidates beyond those wanted, where several lanes are in reach: others may be taking the first ones.
SPARE = 16


class ExchangeState:
    """One step, for whoever carries it out."""

    def __init__(
        self,
        space: str,
        prefix: str,
        enqueueing: Enqueueing,
        heuristics: ClaimHeuristics,
        ctid_cache: CtidCache,
        command: ExchangeCommand,
        now: Micros | None,
        wakes: list[Wake],
    ) -> None:
        self._space = space
        self._prefix = prefix
        self._heuristics = heuristics
        self._ctid_cache = ctid_cache
        self._command = command
        self._who = (f"{command.worker}\x00{command.incarnation}", command.channel)
        self._test_now = now
        #: The announcements that it comes for, and nothing else.
        self._hints = command.claim.hints if command.claim.want and not command.finishes else ()
        self._ends = Ends(space, prefix, now, wakes)
        self._finishing = Finishing(self._ends, enqueueing)
        self._lane = {
            "space": space,
            "worker": command.worker,
            "incarnation": command.incarnation,
            "lane": command.channel,
            "now": now,
        }
        self._turn = turn_of(command.incarnation, command.channel, command.seq)
        self._finished: set[int] = set()
        self._jobs: list[Claimed] = []
        #: Those of them that waited for others, with the chains of their own runs.
        self._waited: dict[str, tuple[str, ...]] = {}
        #: What claim_upstream.sql answered; None: it was not asked yet.
        self._upstream: list[Any] | None = None
        self._next_in: Micros | None = None
        #: µs until a rate has room for what was wanted; 0: somebody else held it.
        self._limited_until: Micros | None = None
        #: Leases that ran out and are to be seen to with care: how many; and whether there may be more of any kind.
        self._late = 0
        self._late_due = 0
        self._more_late = False
        self._now = 0
        #: It came for announcements, and they are used up.
        self._denied = False
        #: What is handed out now is counted by the server (cascade.py).
        self._is_counted = False
        #: Runs had to do with that.
        self._met_runs = False

    def _left(self) -> list[int]:
        """The places of finishes that have not been counted."""
        finished = self._finished
        return [place for place in range(1, len(self._command.finishes) + 1) if place not in finished]

    def _begin(self) -> Named:
        command, claim = self._command, self._command.claim
        memory = 2 * claim.lease
        own = {"seq": command.seq, "memory": memory, "not_after": command.not_after, "hinted": bool(self._hints)}
        return ("turn", {**self._lane, **own})

    def _takes(self) -> list[Statement]:
        """From the counters of the announcements that it comes for, until it has what it wants."""
        own = {**self._lane, "seq": self._command.seq, "n": self._command.claim.want}
        return [
            (statement("take_hint"), {**own, "hint": hint_key(self._prefix, hint), "more": place > 0})
            for place, hint in enumerate(self._hints)
        ]

    def _looks(self) -> bool:
        """Whether leases and due times are looked after, too: not by who comes for announcements, and is in a hurry."""
        return self._test_now is not None or (self._heuristics.looks(self._who) and not self._hints)

    def _look(self) -> list[Named]:
        """After leases that ran out, and what is due."""
        return [
            ("reap", {**self._lane, **CAUSE, "limit": REAPED}),
            ("due", {**self._lane, "limit": DUE}),
        ]

    def _next(self) -> Named:
        return ("next_due", {"space": self._space, "now": self._test_now})

    def _comes_next(self, rows: list[Any]) -> None:
        waits = [wait for wait in (rows[0][0], self._limited_until) if wait is not None]
        self._next_in = min(waits, default=None)

    def _claim_values(self, want: int) -> dict[str, Any]:
        claim = self._command.claim
        own = {"turn": self._turn, "lease": claim.lease, "want": want, "spare": SPARE, "hinted": bool(self._hints)}
        return {**self._lane, **own, **reach_of(claim)}

    def _claim_plain(self) -> list[Named]:
        """The whole of a step that only claims, in the usual case. A busy worker looks below floors now and then."""
        values = {**self._begin()[1], **self._claim_values(self._command.claim.want)}
        busy = self._heuristics.is_busy(self._who) and not self._hints
        above = busy and self._heuristics.has_floor(self._who)
        made: list[Named] = [
            ("claim_plain", {**values, "above": above, "look": not self._heuristics.is_busy(self._who)})
        ]
        if busy and not above:
            made.append(("claim_floor", {"space": self._space, "now": self._test_now, "queues": values["queues"]}))
        return made

    def _seen(self, reaped: Sequence[Any], due: Sequence[Any]) -> None:
        for id_, type_, _, pending in reaped:
            if pending:
                self._ends.lost(id_)
                self._ends.ready[id_] = type_
            else:
                self._late += 1
        self._more_late = self._more_late or len(reaped) >= REAPED
        for id_, type_, pending in due:
            if pending:
                self._ends.ready[id_] = type_
            else:
                self._late_due += 1

    def _heard(self, answers: dict[str, Any], how: Callable[..., RoundTrip]) -> None:
        self._seen(answers.get("reap", ()), answers.get("due", ()))
        for place, id_, chain, flags in answers.get("finish") or answers.get("finish_here") or ():
            self._finished.add(place)
            if flags & (WATCHED | CHAIN_WATCHED):
                self._ends.announce(id_, chain, flags)
        self._finished.update(row[0] for row in answers.get("finish_runs", ()))
        if rows := answers.get("next_due"):
            self._comes_next(rows)
        if rows := answers.get("claim_plain"):
            self._next_in = rows[0][24]
            self._took(rows[1:], 25)
        self._upstream = answers.get("claim_upstream")
        if how is whole and (rows := answers.get("claim") or answers.get("claim_run")):
            self._next_in = rows[0][2]
            self._took(self._in_order(rows), 27)

    def _in_order(self, rows: list[Any]) -> list[Any]:
        groups = {
            queue: place for place, group in reversed(list(enumerate(self._command.claim.queues))) for queue in group
        }
        return sorted((row for row in rows if row[3] is not None), key=lambda row: (groups[row[6]], row[20], row[3]))

    def _took(self, rows: list[Any], place: int = 0) -> None:
        """`place`: the column that says where a row lies, if there is one."""
        jobs, waited = claimed(rows, self._now + self._command.claim.lease)
        if place:
            self._ctid_cache.met((row[3], row[place]) for row in rows)
        for row in rows:
            if row[19] & IN_RUN and not self._is_counted:
                self._ends.moved(row[19], row[14], row[3], "pending", "running", row[9], worker=self._command.worker)
        self._jobs += jobs
        self._waited |= waited

    def _passed_over(self, rows: list[Any]) -> None:
        """Whether this claim found something that somebody else held: then it is worth another look."""
        self._limited_until = 0 if rows[0][2] == 0 else self._limited_until

    def _just_came(self) -> Named:
        """What came of those that the jobs waited for which claim.sql hands out in the same write."""
        return ("claim_upstream", {"space": self._space, "ids": None, "chains": None})

    def _came(self) -> Named:
        """What came of those that the claimed jobs waited for."""
        chains = list({chain: None for chains in self._waited.values() for chain in chains})
        return ("claim_upstream", {"space": self._space, "ids": Texts(list(self._waited)), "chains": Texts(chains)})

    def _reply(self) -> Part:
        command = self._command
        jobs = self._jobs
        if self._waited:
            if self._upstream is None:
                (self._upstream,) = yield whole(self._came())
            upstream: dict[str, dict[str, bytes | None]] = {}
            for job, chain, result in self._upstream:
                upstream.setdefault(job, {})[chain] = result
            known = upstream.get("", {})
            for job, own in self._waited.items():
                if own:  # of these, what it heard of an end that was no success counts, whatever came of it since
                    upstream[job] = {chain: known[chain] for chain in own} | upstream.get(job, {})
            jobs = [msgspec.structs.replace(j, upstream=upstream[j.id]) if j.id in upstream else j for j in jobs]
        next_in = self._next_in
        if jobs:  # their own leases end, too
            next_in = command.claim.lease if next_in is None else min(next_in, command.claim.lease)
        finished = self._finished
        verdicts: tuple[Verdict, ...] = tuple(
            ["ok" if place in finished else "stale" for place in range(1, len(command.finishes) + 1)]
        )
        return ExchangeReply(
            now=self._now,
            verdicts=verdicts,
            jobs=tuple(jobs),
            next_in=None if next_in is None else max(0, next_in),
            ready=self._ends.counts(but=(job.id for job in jobs)) if self._ends.ready else {},
        )
