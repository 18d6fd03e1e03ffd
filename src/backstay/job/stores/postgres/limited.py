"""Claims where rates and concurrency keys apply: several rounds in one transaction, decided here.

Rates are held in one order. A key that somebody else counts is left alone, not waited for.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from backstay.engine.base import Micros
from backstay.job.exchange import Claim
from backstay.job.model import StartRate
from backstay.job.stores.postgres.rows import Part, ask, inside, key_lock
from backstay.job.stores.postgres.statements import Numbers, Texts

#: Jobs looked at in one round beyond those that are wanted: full keys are parked so many at a time.
SPARE = 500
#: Rounds of one claim. Each parks, takes, or finds nothing.
ROUNDS = 50


class Bucket:
    """A rate while a claim holds it."""

    def __init__(self, name: str, used_until: Micros, now: Micros) -> None:
        self.name = name
        self.at = max(used_until, now)
        self._now = now
        self.changed = False
        #: µs until it has room again, once somebody met it without.
        self.free_in: Micros | None = None

    def allows(self, interval: Micros, burst: int) -> bool:
        wait = self.at - self._now - (burst - 1) * interval
        if wait <= 0:
            return True
        self.free_in = wait if self.free_in is None else min(wait, self.free_in)
        return False

    def take(self, interval: Micros) -> None:
        self.at += interval
        self.changed = True


class Limited:
    """One claim. `next_in`: µs until a rate has room, if one had none; 0: somebody else held what was left."""

    def __init__(self, space: str, claim: Claim, values: dict[str, Any], now: Micros | None) -> None:
        self._space = space
        self._claim = claim
        self._values = values
        self._now = now
        self.next_in: Micros | None = None
        #: Whether there were jobs with a rate or a concurrency key.
        self.met = False
        #: Lanes that no rate has closed.
        self._open: list[int] = []

    def claim(self, want: int) -> Part:
        """Up to `want` jobs: rows as claim.sql answers them, in order."""
        reach = {"space": self._space, "now": self._now, **reach_of(self._claim)}
        lanes = yield from ask("claim_lanes", reach)
        if not lanes:
            return []
        now = lanes[0][0]
        self.met = any(row[7] for row in lanes)
        names = sorted({f"job:{row[4]}" for row in lanes if row[4]} | {f"queue:{row[3]}" for row in lanes if row[6]})
        buckets = {name: Bucket(name, 0, now) for name in names}
        if names:
            # Those that are new have no row to hold: they are made first.
            make = {"space": self._space, "buckets": Texts(names), "ats": Numbers([0] * len(names))}
            hold = {"space": self._space, "buckets": Texts(names)}
            _, rows = yield inside(("claim_rates_store", make), ("claim_rates", hold))
            buckets = {name: Bucket(name, at, now) for name, at in rows}
        taken = yield from self._take(want, {row[1]: row for row in lanes}, buckets)
        used = [bucket for bucket in buckets.values() if bucket.changed]
        if used:
            values = {"buckets": Texts([b.name for b in used]), "ats": Numbers([b.at for b in used])}
            yield inside(("claim_rates_store", {"space": self._space, **values}))
        waits = [bucket.free_in for bucket in buckets.values() if bucket.free_in is not None]
        self.next_in = min(waits, default=None)
        got: list[Any] = []
        if taken:
            got = yield from ask("claim_take", {**self._values, "ids": Texts(taken)})
        if len(taken) < want and self._open:
            ((held,),) = yield from ask("claim_held", {"lanes": Numbers(self._open)})
            self.next_in = 0 if held else self.next_in
        order = {id_: place for place, id_ in enumerate(taken)}
        return sorted((row for row in got if row[3] is not None), key=lambda row: order[row[3]])

    def _take(self, want: int, lanes: dict[int, tuple[Any, ...]], buckets: dict[str, Bucket]) -> Part:
        taken: list[str] = []
        busy: set[str] = set()
        running: dict[str, int] = {}
        seen: set[str] = set()
        open_lanes = dict(lanes)
        for _ in range(ROUNDS):
            if len(taken) >= want or not open_lanes:
                break
            values = {
                "space": self._space,
                "lanes": Numbers(list(open_lanes)),
                "groups": Numbers([row[2] for row in open_lanes.values()]),
                "busy": Texts(sorted(busy)),
                "want": want + SPARE,
                "spare": SPARE,
            }
            rows = [row for row in (yield from ask("claim_first", values)) if row[0] not in seen]
            if not rows:
                break
            yield from self._count({row[2] for row in rows if row[2]} - busy - running.keys(), running, busy)
            full: list[str] = []
            for id_, lane, key, limit, interval, burst in rows:
                if len(taken) >= want:
                    break
                if lane not in open_lanes or key in busy:
                    continue
                if key and running[key] >= limit:
                    full.append(id_)
                    continue
                rates = _rates(lanes[lane], interval, burst, buckets)
                if not all(bucket.allows(rate.interval, rate.burst) for bucket, rate in rates):
                    # Whatever else lies in this lane has the same rates.
                    del open_lanes[lane]
                    continue
                for bucket, rate in rates:
                    bucket.take(rate.interval)
                taken.append(id_)
                seen.add(id_)
                if key:
                    running[key] += 1
            if full:
                yield inside(("key_park", {"space": self._space, "ids": Texts(full)}))
        self._open = list(open_lanes)
        return taken

    def _count(self, keys: Iterable[str], running: dict[str, int], busy: set[str]) -> Part:
        """How many of each key run: of those that nobody else counts now."""
        new = sorted(keys)
        if not new:
            return
        locks = {key: key_lock(self._space, key) for key in new}
        # Counted in a later statement than the one that locks, which sees what was committed before.
        got, counts = yield inside(
            ("key_try", {"locks": Numbers(sorted(locks.values()))}),
            ("key_count", {"space": self._space, "keys": Texts(new)}),
        )
        ours = {lock for (lock,) in got}
        busy.update(key for key in new if locks[key] not in ours)
        running.update((key, count) for key, count in counts if locks[key] in ours)


def _rates(
    lane: tuple[Any, ...], interval: Micros, burst: int, buckets: dict[str, Bucket]
) -> list[tuple[Bucket, StartRate]]:
    found: list[tuple[Bucket, StartRate]] = []
    _, _, _, queue, bucket, queue_interval, queue_burst, _ = lane
    if bucket and (mine := buckets.get(f"job:{bucket}")) is not None:
        found.append((mine, StartRate(bucket, interval, burst)))
    if queue_burst and (theirs := buckets.get(f"queue:{queue}")) is not None:
        found.append((theirs, StartRate(queue, queue_interval, queue_burst)))
    return found


def reach_of(claim: Claim) -> dict[str, Any]:
    """Which queues, in which group, and the labels: as the statements want them."""
    return _reach(claim.queues, claim.labels)


@lru_cache(maxsize=256)
def _reach(groups: tuple[tuple[str, ...], ...], labels: tuple[str, ...]) -> dict[str, Any]:
    """A worker asks for the same again and again: columns are packed once."""
    queues = [(queue, place) for place, group in enumerate(groups) for queue in dict.fromkeys(group)]
    return {
        "queues": Texts([queue for queue, _ in queues]),
        "groups": Numbers([place for _, place in queues]),
        "labels": Texts(list(labels)),
    }
