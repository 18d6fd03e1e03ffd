"""A worker's places: how many jobs it runs at once, and from which queues it fills them."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, cast

from backstay.errors import ConfigError
from backstay.job.model import Claimed
from backstay.job.reserved import INTERNAL
from backstay.job.worker.execution.attempt import Attempt
from backstay.runtime import validation

LARGEST_WEIGHT = 1_000_000


class Waiting(NamedTuple):
    """Jobs of one claim for which there is no place yet: when (steady) the claim left, and when they came."""

    jobs: Sequence[Claimed]
    shard: int
    sent: float
    came: float


class Slots:
    """`busy` places are taken by handlers, `asked` by claims that are under way. Only what is free is asked for, and,
    while places become free within milliseconds, what will be then (`ahead.py`): a job does not wait in a worker while
    another one could run it.
    """

    __slots__ = ("ahead", "asked", "busy", "ended", "held", "outlived", "size", "waiting")

    def __init__(self, size: int) -> None:
        self.size = validation.count(size, "concurrency")
        self.busy = 0
        #: Handlers that have left their places so far.
        self.ended = 0
        self.asked = 0
        #: How many more than there are places for may be here.
        self.ahead = 0
        #: Those of them that are here, in order.
        self.waiting: deque[Waiting] = deque()
        #: Every attempt whose lease is ours, by job id: also those that have ended and wait for the store's word.
        self.held: dict[str, Attempt] = {}
        #: Those that still run although their jobs were claimed anew, here.
        self.outlived: list[Attempt] = []

    @property
    def free(self) -> int:
        waiting = sum([len(batch.jobs) for batch in self.waiting]) if self.waiting else 0
        return self.size + self.ahead - self.busy - waiting - self.asked

    def vacate(self) -> None:
        """A handler leaves its place."""
        self.busy -= 1
        self.ended += 1

    def running(self) -> list[Attempt]:
        """Those whose handlers run."""
        return [attempt for attempt in [*list(self.held.values()), *self.outlived] if not attempt.is_over]


Queues = str | Iterable[str] | Mapping[str, int]


class Order:
    """In which order queues are looked at. Without weights: all at once, the smallest rank first. With weights: one
    after another in random order, drawn anew for every claim, so that a queue of weight 3 comes before one of weight 1
    three times out of four, and none starves.
    """

    def __init__(self, queues: Queues, also: tuple[str, ...] = ()) -> None:
        self._weights: dict[str, int] = {}
        if isinstance(queues, Mapping):
            weights = cast("Mapping[str, int]", queues)
            for name, weight in weights.items():
                validation.count(weight, f"the weight of queue {name!r}")
                if weight > LARGEST_WEIGHT:
                    raise ConfigError(f"the weight of queue {name!r} is at most {LARGEST_WEIGHT}; got {weight}")
                self._weights[validation.word(name, "queue")] = weight
            names = list(self._weights)
        else:
            given = [queues] if isinstance(queues, str) else list(queues)
            names = list(dict.fromkeys(validation.word(name, "queue") for name in given))
        if not names:
            raise ConfigError("a worker needs at least one queue, as in queues=['default']")
        self.names = tuple(dict.fromkeys((*names, *also)))
        #: Looked at together with whatever comes first.
        self._also = tuple(dict.fromkeys((*also, INTERNAL)))
        self._together = (tuple(dict.fromkeys((*self.names, INTERNAL))),)

    def draw(self) -> tuple[tuple[str, ...], ...]:
        """Groups of queues, for one claim."""
        if len(self._weights) <= 1:
            return self._together
        # Each draws a moment, the sooner the heavier; the order of the moments is the order of the queues.
        drawn = sorted((random.expovariate(weight), name) for name, weight in self._weights.items())
        first, *rest = ((name,) for _, name in drawn)
        return ((*first, *self._also), *rest)
