"""Permits: start jobs of one shard under a rate whose meter is in another shard.

Each rate has one home shard (`rate_shard`), which stores its meter (`_meter.lua`). So a rate holds over all shards.
Where a job's shard is free to choose, it is the home of the job's rate, and a claim charges the meter itself. Other
jobs (of runs, chains, keys, or of a queue with a rate) are claimed in two requests of one exchange:

1. The first request claims up to the first job that needs permits. Its reply says how many would let jobs start.
2. `take_permits` takes permits from the home shards. Each batch ends after a time; until then its permits count.
3. The second request continues the claim with these permits.
4. `settle_permits` returns the permits that were not used.

If the process dies or a reply is lost on the way, the permits of the batch are lost: they count as used at its end. A
permit is never used twice, because a shard executes the second request of an exchange once.
"""

from __future__ import annotations

import secrets
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from backstay.engine.base import Micros
from backstay.engine.redis.encoder import KeyedRequest
from backstay.engine.redis.link.protocol import ErrorReply
from backstay.job.stores.redis.cross_shard import CrossShard

#: The shortest and the longest time in which permits must be used. While they are not settled, the rate admits as if
#: they were used at the end of that time. So a quarter of the time in which a whole burst becomes available leaves most
#: of the rate to other claims.
SHORTEST_LIFE: Final[Micros] = 500_000
LONGEST_LIFE: Final[Micros] = 2_000_000
BURST_DIVISOR: Final = 4
#: After this time a worker claims again, if the home shard of a rate has rejected the request for permits.
REFUSED_WAIT: Final[Micros] = 1_000_000
#: While a rate is used up, a process asks for its permits once in this time at most, although many of its exchanges
#: find jobs that wait for them. It asks more often than the rate lets jobs start: other processes may return permits.
LONGEST_PAUSE: Final[Micros] = 1_000_000

PermitCalls = Generator[KeyedRequest, Any, Any]


class Meter(NamedTuple):
    """The meter of a rate that belongs to another shard."""

    #: Without the prefix of its shard.
    key: str
    home: int
    #: µs between two starts.
    interval: Micros
    #: Starts allowed at once.
    burst: int

    @property
    def permit_life(self) -> Micros:
        return min(max(self.burst * self.interval // BURST_DIVISOR, SHORTEST_LIFE), LONGEST_LIFE)


class StarvedLane(NamedTuple):
    """A lane whose jobs wait for permits: how many of them, and the meters. Each job needs a permit of each."""

    number: int
    meters: tuple[Meter, ...]


class PermitBatch:
    """The permits that one exchange takes. `want`: how many jobs it still wants."""

    def __init__(self, lanes: Sequence[StarvedLane], want: int) -> None:
        self.token = secrets.token_hex(8).encode()
        self.lanes = lanes
        self._want = want
        self.meters = tuple(dict.fromkeys(meter for lane in lanes for meter in lane.meters))
        #: By meter: the number of permits taken; µs until the rate lets one more job start.
        self.taken: dict[Meter, int] = {}
        self.waits: dict[Meter, Micros] = {}

    def demand(self, meter: Meter) -> int:
        """Return how many permits of this meter can be used. A lane that must wait for another meter uses none."""
        used_up = self.waits.keys() - self.taken.keys()
        lanes = (lane for lane in self.lanes if meter in lane.meters and used_up.isdisjoint(lane.meters))
        return min(self._want, sum(lane.number for lane in lanes))

    @property
    def life(self) -> Micros:
        """The time in which the permits must be used, counted from before they were taken."""
        return min((meter.permit_life for meter in self.taken), default=LONGEST_LIFE)

    def list_taken(self) -> list[str | int]:
        """Return the permits as arguments of `exchange.lua`."""
        return [part for meter, number in self.taken.items() for part in (meter.key, number)]

    def next_in(self, lanes: Iterable[StarvedLane]) -> Micros | None:
        """Return the µs until a job of one of these lanes may start; None if there are none."""
        return min((max(self.waits.get(meter, 0) for meter in lane.meters) for lane in lanes), default=None)


def parse_lanes(wanted: Iterable[Sequence[Any]]) -> list[StarvedLane]:
    """Decode the permits that a reply of `exchange.lua` asks for."""
    return [StarvedLane(number, tuple(Meter(*meter) for meter in meters)) for number, *meters in wanted]


class Permits(CrossShard):
    """Takes permits from the home shards of rates, and settles them."""

    def __init__(self, namespace: str, prefix: str, shards: int, *, announces: bool = False) -> None:
        super().__init__(namespace, prefix, shards, announces=announces)
        #: By shard, then by key of a used-up meter: when (by the clock of that shard) an exchange asks for its permits
        #: again.
        self._pauses: dict[int, dict[str, Micros]] = {}

    def _remember_pauses(self, shard: int, now: Micros, batch: PermitBatch) -> None:
        pauses = {meter: until for meter, until in self._pauses.get(shard, {}).items() if until > now}
        for meter, wait in batch.waits.items():
            if meter not in batch.taken:
                pauses[meter.key] = now + min(wait, LONGEST_PAUSE)
        # A new dict: another thread may be encoding the old one.
        self._pauses[shard] = pauses

    def _take_permits(self, clock: bytes, batch: PermitBatch) -> PermitCalls:
        for meter in batch.meters:
            number = batch.demand(meter)
            if not number:
                continue
            numbers = (b"%d" % each for each in (meter.interval, meter.burst, number, meter.permit_life))
            try:
                taken, wait = yield from self._call(
                    "take_permits", meter.home, clock, batch.token, meter.key.encode(), *numbers
                )
            except ErrorReply:
                # The jobs that the first request has claimed must reach the worker, whatever this shard answers.
                taken, wait = 0, REFUSED_WAIT
            batch.waits[meter] = int(wait)
            if taken:
                batch.taken[meter] = taken

    def _settle_permits(self, clock: bytes, batch: PermitBatch, used: Mapping[str, int]) -> PermitCalls:
        for meter in batch.taken:
            numbers = (b"%d" % each for each in (meter.interval, meter.burst, used.get(meter.key, 0)))
            # An error does not matter: the batch ends, and its permits count as used.
            with suppress(ErrorReply):
                wait = yield from self._call(
                    "settle_permits", meter.home, clock, batch.token, meter.key.encode(), *numbers
                )
                batch.waits[meter] = int(wait)
