"""When an SQL engine sweeps, which means: deletes expired rows.

A sweep is done in steps, each bounded in rows, on the commit thread. The steps follow the rows: a process that writes
more also deletes more, so tables do not grow, however many names are created. While nothing has expired, a process only
looks now and then. The first look follows the first write, so that short-lived processes sweep, too.
"""

from __future__ import annotations

from backstay.engine.base import steady

#: One step deletes at most this many rows per table, which bounds how long it delays operations.
STEP_ROWS = 1000
#: While there are expired rows, a step is due after this many operations. An operation creates at most one row in most
#: cases, so a step deletes twice as many rows as were created since the last one.
STEP_EVERY = 500
#: While there are none, the process looks for them after this many operations or seconds, whichever comes first.
LOOK_EVERY, LOOK_AFTER = 2000, 5.0
#: Seconds between two looks of a process that writes nothing.
IDLE_LOOK = 60.0
#: The shortest pause (seconds) between two steps, and the pause as a multiple of the time that the last step took: a
#: process whose operations are few spends at most a quarter of its time on sweeping.
SHORTEST_PAUSE, PAUSE_FACTOR = 0.02, 3.0
#: Seconds until the next attempt after a step that failed, because the database is busy, full or unreachable.
AFTER_FAILURE = 5.0


class SweepSchedule:
    """Decides when the next step of a sweep is due. Not thread-safe: it belongs to one commit thread."""

    def __init__(self) -> None:
        self._operations = 0
        self._has_more = False
        self._step_at = 0.0
        self._idle_at = steady() + IDLE_LOOK

    def count(self, operations: int) -> None:
        """Record that a batch with this many operations was committed, some of which may have created rows."""
        self._operations += operations

    def is_due(self) -> bool:
        return self._operations >= (STEP_EVERY if self._has_more else LOOK_EVERY) or self.pause() == 0

    def pause(self) -> float:
        """Return the seconds until the next step is due if no operation is committed before; 0: it is due."""
        return max(0.0, (self._step_at if self._operations or self._has_more else self._idle_at) - steady())

    def record(self, *, took: float, has_more: bool) -> None:
        """Record a step: the seconds it took, and whether it may have left expired rows."""
        # A batch may have more than STEP_EVERY operations: then another step is due at once.
        self._operations = max(0, self._operations - STEP_EVERY) if has_more else 0
        self._has_more = has_more
        now = steady()
        self._step_at = now + (max(SHORTEST_PAUSE, took * PAUSE_FACTOR) if has_more else LOOK_AFTER)
        self._idle_at = now + IDLE_LOOK

    def record_failure(self) -> None:
        """Record that a step failed: expired rows may be left."""
        self._operations, self._has_more = 0, True
        self._step_at = steady() + AFTER_FAILURE
        self._idle_at = steady() + IDLE_LOOK
