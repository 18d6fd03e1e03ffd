"""What a process remembers of its workers between two steps: hints about what the next one need not look at."""

from __future__ import annotations

from backstay.engine.base import steady

#: Seconds between two looks at leases and due times while every claim is served in full: nobody is idle then.
BUSY_LOOK = 0.02
#: Seconds for which claims begin at their lane's floor, until the next looks for what lies below.
FLOOR = 0.25
#: So many lanes are remembered.
MOST = 1000

#: A worker with its incarnation, and its lane.
Who = tuple[str, int]


class ClaimHeuristics:
    """Which workers are busy, and what their lanes met. Forgetting any of it costs a look, no more."""

    def __init__(self) -> None:
        #: When (steady) each busy worker is to look after leases again, whichever of its lanes comes first.
        self._looked: dict[str, float] = {}
        #: Lanes that met rates or concurrency keys with their last claim; that had to do with runs; that found a single
        #: lane of jobs in reach.
        self._limited: set[Who] = set()
        self._runs: set[Who] = set()
        self._single: set[Who] = set()
        #: Until when (steady) the floors that a lane's claims begin at are good.
        self._floors: dict[Who, float] = {}
        #: Lanes whose last step in one write was not answered: it may have been undone.
        self._unanswered: set[Who] = set()

    def looks(self, who: Who) -> bool:
        return steady() >= self._looked.get(who[0], 0.0)

    def is_busy(self, who: Who) -> bool:
        """Whether its worker's last claim was served in full."""
        return who[0] in self._looked

    def looked(self, who: Who, full: bool | None) -> None:
        """It looked, if it was to. `full`: whether its claim was served so; None: it asked for nothing."""
        worker = who[0]
        if len(self._looked) > MOST:
            self._looked.clear()
        if full is False:
            self._looked.pop(worker, None)
            self._floors.pop(who, None)
        elif self.looks(who) and (full or worker in self._looked):
            self._looked[worker] = steady() + BUSY_LOOK

    def has_floor(self, who: Who) -> bool:
        return steady() < self._floors.get(who, 0.0)

    def found_floor(self, who: Who) -> None:
        if len(self._floors) > MOST:
            self._floors.clear()
        self._floors[who] = steady() + FLOOR

    def is_single(self, who: Who) -> bool:
        return who in self._single

    def met_single(self, who: Who, met: bool) -> None:
        if met:
            self._single.add(who)
        else:
            self._single.discard(who)

    def is_limited(self, who: Who) -> bool:
        return who in self._limited

    def met_limits(self, who: Who, met: bool) -> None:
        if met:
            self._limited.add(who)
        else:
            self._limited.discard(who)

    def has_runs(self, who: Who) -> bool:
        return who in self._runs

    def met_runs(self, who: Who, met: bool) -> None:
        if met:
            self._runs.add(who)
        else:
            self._runs.discard(who)

    def is_unanswered(self, who: Who) -> bool:
        return who in self._unanswered

    def asks(self, who: Who) -> None:
        if len(self._unanswered) > MOST:
            self._unanswered.clear()
        self._unanswered.add(who)

    def answered(self, who: Who) -> None:
        self._unanswered.discard(who)
