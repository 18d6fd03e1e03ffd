"""Warn while the engine's clock is behind a time that it has already shown.

Leases and due times are stored as times of the engine's clock. If that clock is set back, those from before the step do
not end until the clock has caught up. The SQLite engine has no such gap: its time continues at the monotonic clock's
pace.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from backstay.engine.base import Micros, steady

if TYPE_CHECKING:
    from backstay.telemetry import Telemetry

log = logging.getLogger("backstay")

#: A smaller difference (µs) is no step: the replies to two channels arrive in any order, and after a failover the clock
#: is another server's.
TOLERANCE = 1_000_000
#: Seconds between two warnings while the clock is behind.
REPEAT = 60.0


class ClockWatch:
    """Compares the times in the replies of one shard. Used on the event loop only."""

    def __init__(self, telemetry: Telemetry, shard: int) -> None:
        self._telemetry = telemetry
        self._shard = shard
        self._latest: Micros = 0
        #: When (monotonic clock) the next warning is due; None while the clock is not behind.
        self._warn_at: float | None = None

    def observe(self, now: Micros) -> None:
        """Take the engine's time from a reply."""
        behind = self._latest - now
        if behind > TOLERANCE:
            self._warn(behind / 1_000_000)
        elif behind <= 0:
            self._latest = now
            if self._warn_at is not None:
                self._warn_at = None
                log.warning("the engine's clock has caught up: leases end and scheduled jobs start in time again")

    def _warn(self, behind: float) -> None:
        if self._warn_at is not None and steady() < self._warn_at:
            return
        self._warn_at = steady() + REPEAT
        self._telemetry.emit("worker.clock_behind", shard=self._shard, seconds=behind)
        log.warning(
            "the engine's clock was set back: it is %.0f s behind a time that it has shown before. Until it has caught"
            " up, the leases of dead workers do not end, and jobs scheduled before the step do not start",
            behind,
        )
