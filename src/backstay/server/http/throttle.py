"""How often somebody may come: the limit's own machine, kept in this process. No engine is asked, so it costs
microseconds and holds while the engine is away; each server process counts for itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from time import time_ns

from backstay.limit.machine import Denied, Hit, Taken, step
from backstay.limit.spec import spec

#: Callers that are remembered; whoever came longest ago is forgotten first.
MOST = 10_000


def _micros() -> int:
    return time_ns() // 1000


class Throttle:
    """One limit for each key."""

    def __init__(self, rate: str, clock: Callable[[], int] = _micros) -> None:
        made = spec("http", (rate,), "gcra", None, "deny")
        self.rate = rate
        self.limit = made.rates[0].limit
        #: A hundredth of the limit is taken at once, and used up without asking again.
        self._portion = max(1, self.limit // 100)
        self._hit = Hit(2**62, made.law, made.rules, self._portion)
        self._clock = clock
        self._taken: OrderedDict[str, Taken] = OrderedDict()
        self._left: dict[str, int] = {}

    def hit(self, key: str) -> float:
        """0.0: come in. Else the seconds after which to come again."""
        if left := self._left.get(key):
            self._left[key] = left - 1
            return 0.0
        done = step(self._taken.get(key), self._hit, self._clock())
        if isinstance(done.reply, Denied):
            return done.reply.retry / 1_000_000
        if done.state is not None:
            self._taken[key] = done.state
            self._taken.move_to_end(key)
            if len(self._taken) > MOST:
                gone, _ = self._taken.popitem(last=False)
                self._left.pop(gone, None)
        self._left[key] = self._portion - 1
        return 0.0
