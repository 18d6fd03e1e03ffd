"""A worker's slots (how many jobs it runs at once) and the order in which it claims from its queues."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, cast

from backstay.engine.jitter import RANDOM
from backstay.errors import ConfigError
from backstay.job.exchange import Claimed
from backstay.job.reserved import INTERNAL
from backstay.job.worker.execution.attempt import Attempt
from backstay.runtime import validation

LARGEST_WEIGHT = 1_000_000


class PrefetchedBatch(NamedTuple):
    """Claimed jobs that wait for free slots. `sent`, `came`: when (monotonic clock) the claim was sent and answered."""

    jobs: Sequence[Claimed]
    shard: int
    sent: float
    came: float


class Slots:
    """Slot counters: `busy` slots run handlers, `requested` slots are reserved by claims under way. The worker claims
    only for free slots, because a job must not wait in a busy worker while an idle one could run it. While busy slots
    become free within milliseconds, it also claims for those (`prefetch.py`).
    """

    __slots__ = ("busy", "ended", "leased", "prefetch", "prefetched", "requested", "size", "superseded")

    def __init__(self, size: int) -> None:
        self.size = validation.check_count(size, "concurrency")
        self.busy = 0
        #: How many handlers have ended so far.
        self.ended = 0
        self.requested = 0
        #: How many jobs may be claimed beyond the number of slots.
        self.prefetch = 0
        #: The prefetched jobs, in claim order.
        self.prefetched: deque[PrefetchedBatch] = deque()
        #: Every attempt whose lease this worker holds, by job id, including finished attempts not acknowledged yet.
        self.leased: dict[str, Attempt] = {}
        #: Attempts that still run although this worker has claimed their jobs again.
        self.superseded: list[Attempt] = []

    @property
    def free(self) -> int:
        waiting = sum([len(batch.jobs) for batch in self.prefetched]) if self.prefetched else 0
        return self.size + self.prefetch - self.busy - waiting - self.requested

    def vacate(self) -> None:
        """Free the slot of a handler that has ended."""
        self.busy -= 1
        self.ended += 1

    def running_attempts(self) -> list[Attempt]:
        """Return the attempts whose handlers run."""
        return [attempt for attempt in [*list(self.leased.values()), *self.superseded] if not attempt.is_over]


Queues = str | Iterable[str] | Mapping[str, int]


class QueueOrder:
    """The order in which a claim searches the queues. Without weights, all queues are searched together, smallest rank
    first. With weights, they are searched one after another, in a random order drawn for every claim: a queue of weight
    3 comes before one of weight 1 three times out of four, so no queue starves.
    """

    def __init__(self, queues: Queues, also: tuple[str, ...] = ()) -> None:
        self._weights: dict[str, int] = {}
        if isinstance(queues, Mapping):
            weights = cast("Mapping[str, int]", queues)
            for name, weight in weights.items():
                validation.check_count(weight, f"the weight of queue {name!r}")
                if weight > LARGEST_WEIGHT:
                    raise ConfigError(f"the weight of queue {name!r} must be at most {LARGEST_WEIGHT}; got {weight}")
                self._weights[validation.check_label(name, "queue")] = weight
            names = list(self._weights)
        else:
            given = [queues] if isinstance(queues, str) else list(queues)
            names = list(dict.fromkeys(validation.check_label(name, "queue") for name in given))
        if not names:
            raise ConfigError("a worker needs at least one queue, as in queues=['default']")
        self.names = tuple(dict.fromkeys((*names, *also)))
        #: Queues that have no weight: `also` and the queue of internal jobs. They are searched together with the queue
        #: that comes first in the random order.
        self._also = tuple(dict.fromkeys((*also, INTERNAL)))
        self._together = (tuple(dict.fromkeys((*self.names, INTERNAL))),)

    def draw(self) -> tuple[tuple[str, ...], ...]:
        """Return the groups of queues for one claim, in search order."""
        if len(self._weights) <= 1:
            return self._together
        # Each queue draws an exponential variate with its weight as the rate; sorting them is a weighted shuffle.
        drawn = sorted((RANDOM.expovariate(weight), name) for name, weight in self._weights.items())
        first, *rest = ((name,) for _, name in drawn)
        return ((*first, *self._also), *rest)
