"""What a process remembers of its workers' lanes between two steps: hints about what the next one need not look at."""

from __future__ import annotations

from holdfast.engine.base import steady

#: Seconds between two looks at leases and due times while every claim is served in full: nobody is idle then.
BUSY_LOOK = 0.02
#: So many lanes are remembered.
MOST = 1000

#: A worker with its incarnation, and its lane.
Who = tuple[str, int]


class Pace:
    """Which lanes are busy, and which met limits. Forgetting any of it costs a look, no more."""

    def __init__(self) -> None:
        #: When (steady) each busy lane of each worker is to look after leases again.
        self._looked: dict[Who, float] = {}
        #: Workers that met rates or concurrency keys with their last claim; that had to do with runs.
        self._limited: set[Who] = set()
        self._runs: set[Who] = set()

    def looks(self, who: Who) -> bool:
        return steady() >= self._looked.get(who, 0.0)

    def is_busy(self, who: Who) -> bool:
        """Whether its last claim was served in full."""
        return who in self._looked

    def looked(self, who: Who, full: bool) -> None:
        if len(self._looked) > MOST:
            self._looked.clear()
        if not full:
            self._looked.pop(who, None)
        elif self.looks(who):
            self._looked[who] = steady() + BUSY_LOOK

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
