"""What a worker believes of one shard: what is to be told there, how many jobs may be there, when to look again."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backstay.job.worker.channel import Lane
    from backstay.job.worker.execution.attempt import Attempt

#: Everything there is.
MANY = float("inf")
#: One step finishes at most this many, and carries about so many bytes of results.
LARGEST, LARGEST_BYTES = 1000, 4 * 1024 * 1024
#: What becomes due is looked for this much later, at random, so that a fleet does not come as one.
JITTER = 0.01
#: Looks in vain, in a row, from which on the next one waits twice as long, and the last one that does.
PATIENT, MOST_PATIENT = 2, 8


class Shard:
    """What the worker believes of one shard."""

    __slots__ = (
        "expect",
        "heard",
        "hinted",
        "hints",
        "lanes",
        "last_tries",
        "look_at",
        "number",
        "of_runs",
        "out",
        "suspects",
        "vain",
    )

    def __init__(self, number: int, lanes: list[Lane]) -> None:
        self.number = number
        self.lanes = lanes
        #: Attempts that have ended and are to be told.
        self.out: list[Attempt] = []
        #: Those of a step that the store refused: each goes alone, to find out whose fault it is.
        self.suspects: list[Attempt] = []
        #: How many jobs may be there, and whether only hints say so.
        self.expect: float = MANY
        self.hinted = False
        #: Announcements whose counters the next claim takes from, if it comes for nothing else.
        self.hints: list[str] = []
        #: A hint came while somebody was looking: look once more.
        self.heard = False
        self.look_at = 0.0
        #: What came last is of a run.
        self.of_runs = False
        #: Among what came last, some are at their last attempt.
        self.last_tries = False
        #: How often in a row it was looked at in vain although something was said to be due.
        self.vain = 0

    @property
    def is_quiet(self) -> bool:
        return not self.out and not self.suspects and not any(lane.busy for lane in self.lanes)

    def due_in(self, next_in: int | None, jobs: int) -> float:
        """A look found `jobs`, and was told when something is due (µs). Answers how many seconds to wait for that: more
        and more where it is said to be due now, and is not to be had.
        """
        if jobs or next_in is None or next_in > JITTER * 1_000_000:
            self.vain = 0
        else:
            self.vain = min(self.vain + 1, MOST_PATIENT)
        if next_in is None:
            return MANY
        return next_in / 1_000_000 + random.uniform(0.001, JITTER) * (1 << max(0, self.vain - PATIENT))

    def batch(self) -> list[Attempt]:
        """What goes with one step: taken from the front of `out`."""
        out = self.out
        end, size = 0, 0
        for attempt in out[:LARGEST]:
            if attempt.finish is not None:
                size += len(attempt.finish.result)
            if size > LARGEST_BYTES and end:
                break
            end += 1
        batch = out[:end]
        del out[:end]
        return batch
