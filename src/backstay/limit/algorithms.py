"""The rate limit algorithms: fixed window, sliding counter, token bucket (also GCRA) and sliding log.

A mark is the frozen state of one rate of one key. Every algorithm implements the same methods on its mark:

    advance    drop what has expired at `now`
    free_at    return the earliest time at which a cost fits
    charge     add a cost at a given time
    refund     remove a cost that was charged
    used       return how much of the rate is in use now
    ends       return the time from which the mark has no effect: everything in it has expired

A cost may be charged at a future time: that is a reservation. The mark then stores the time of the latest reservation.
The next caller gets that time or a later one, so it cannot overtake a caller with a reservation. A cost that fits at
one time fits at every later time.

`refund` with `at` above 0 removes a reservation for the time `at`. With `at` 0 it removes a cost that was charged just
now. If the mark does not show how later reservations depend on the cost, `refund` changes nothing: a refund must never
make the limit admit more than the rate.

Times are µs of the engine's clock. `_fixed.lua`, `_counter.lua`, `_bucket.lua` and `_log.lua` implement these
algorithms for Redis.
"""

from __future__ import annotations

from msgspec import Struct

from backstay.engine.base import Micros

#: The sliding log stores all hits of one millisecond as a run of ten bytes: seven of time, then three of cost.
TIME, RUN = 7, 10
#: The largest cost of one run.
LARGEST_RUN = 2**24 - 1
#: The log drops its expired runs once they take more than 1/SPARSE of its bytes.
SPARSE = 16


class Rule(Struct, frozen=True, array_like=True, gc=False):
    """A rate as the machine uses it: `limit` per `window` milliseconds, at most `burst` at once."""

    limit: int
    window: int
    burst: int
    #: Token buckets count in units so small that all amounts are integers: `gain` units refill per millisecond, and a
    #: hit of cost 1 takes `price` units.
    gain: int = 0
    price: int = 0


class Fixed(Struct, frozen=True, array_like=True, tag=0, gc=False):
    """Fixed window: `count` in window number `index`. Around a window's border, twice the limit may be admitted."""

    limit: int
    index: int
    count: int

    @staticmethod
    def fresh(rule: Rule, now: Micros) -> Fixed:
        return Fixed(rule.limit, now // (rule.window * 1000), 0)

    def advance(self, rule: Rule, now: Micros) -> Fixed:
        return self if now < self.ends(rule) else Fixed.fresh(rule, now)

    def free_at(self, rule: Rule, cost: int, now: Micros) -> Micros:
        index = self.index if self.count + cost <= rule.limit else self.index + 1
        return max(now, index * rule.window * 1000)

    def charge(self, rule: Rule, cost: int, at: Micros) -> Fixed:
        here = self.advance(rule, at)
        return Fixed(rule.limit, here.index, here.count + cost)

    def refund(self, rule: Rule, cost: int, at: Micros, now: Micros) -> Fixed:
        here = (at or now) // (rule.window * 1000) == self.index
        return Fixed(rule.limit, self.index, max(0, self.count - cost) if here else self.count)

    def used(self, rule: Rule, now: Micros) -> int:
        return self.count if self.index * rule.window * 1000 <= now else rule.burst

    def ends(self, rule: Rule) -> Micros:
        return (self.index + 1) * rule.window * 1000


class Counter(Struct, frozen=True, array_like=True, tag=1, gc=False):
    """Sliding counter: the count of the current fixed window, plus the count of the window `before` it, weighted by how
    much of that earlier window the sliding window still covers.
    """

    limit: int
    index: int
    count: int
    before: int

    @staticmethod
    def fresh(rule: Rule, now: Micros) -> Counter:
        return Counter(rule.limit, now // (rule.window * 1000), 0, 0)

    def advance(self, rule: Rule, now: Micros) -> Counter:
        index = now // (rule.window * 1000)
        if index <= self.index:
            return self
        return Counter(rule.limit, index, 0, self.count if index == self.index + 1 else 0)

    def free_at(self, rule: Rule, cost: int, now: Micros) -> Micros:
        index, count, before, window = self.index, self.count, self.before, rule.window
        while True:
            left = rule.limit - count - cost
            if left >= 0:
                into = window - left * window // before if before else 0
                if into < window:
                    return max(now, (index * window + max(into, 0)) * 1000)
            index, count, before = index + 1, 0, count

    def charge(self, rule: Rule, cost: int, at: Micros) -> Counter:
        here = self.advance(rule, at)
        return Counter(rule.limit, here.index, here.count + cost, here.before)

    def refund(self, rule: Rule, cost: int, at: Micros, now: Micros) -> Counter:
        behind = self.index - (at or now) // (rule.window * 1000)
        here = min(cost, self.count) if behind == 0 else 0
        there = cost - here if behind == 1 or (behind == 0 and not at) else 0
        return Counter(rule.limit, self.index, self.count - here, max(0, self.before - there))

    def used(self, rule: Rule, now: Micros) -> int:
        into = now // 1000 - self.index * rule.window
        if into < 0:
            return rule.burst
        return self.count - -(self.before * (rule.window - into)) // rule.window

    def ends(self, rule: Rule) -> Micros:
        return (self.index + (2 if self.count else 1)) * rule.window * 1000


class Bucket(Struct, frozen=True, array_like=True, tag=2, gc=False):
    """Token bucket and GCRA: the bucket lacks `debt` units at millisecond `at` and refills at a constant rate."""

    limit: int
    at: int
    debt: int

    @staticmethod
    def fresh(rule: Rule, now: Micros) -> Bucket:
        return Bucket(rule.limit, now // 1000, 0)

    def advance(self, rule: Rule, now: Micros) -> Bucket:
        ms = now // 1000
        if ms <= self.at:
            return self
        return Bucket(rule.limit, ms, max(0, self.debt - (ms - self.at) * rule.gain))

    def free_at(self, rule: Rule, cost: int, now: Micros) -> Micros:
        over = self.debt + (cost - rule.burst) * rule.price
        return max(now, (self.at + max(0, -(-over // rule.gain))) * 1000)

    def charge(self, rule: Rule, cost: int, at: Micros) -> Bucket:
        here = self.advance(rule, at)
        return Bucket(rule.limit, here.at, here.debt + cost * rule.price)

    def refund(self, rule: Rule, cost: int, at: Micros, now: Micros) -> Bucket:
        others_behind = (at or now) // 1000 < self.at
        back = 0 if others_behind else cost * rule.price
        return Bucket(rule.limit, self.at, max(0, self.debt - back))

    def used(self, rule: Rule, now: Micros) -> int:
        return -(-self.debt // rule.price) if self.at * 1000 <= now else rule.burst

    def ends(self, rule: Rule) -> Micros:
        return (self.at - -self.debt // rule.gain) * 1000


class Log(Struct, frozen=True, array_like=True, tag=3, gc=False):
    """Sliding log, which is exact: it stores every hit of the last window.

    All hits of one millisecond form a run. A run has the time of its last hit, so that no hit expires early.

    total: the cost of all hits that have not expired.
    last, cost: the time and the cost of the newest run, which is not in `runs`.
    dead: how many bytes at the start of `runs` have expired. They are dropped only once there are many of them, because
        dropping them rewrites the whole log.
    runs: the older runs, packed, oldest first.
    """

    limit: int
    total: int
    last: Micros
    cost: int
    dead: int
    runs: bytes

    @staticmethod
    def fresh(rule: Rule, now: Micros) -> Log:  # noqa: ARG004 - the signature of all algorithms
        return Log(rule.limit, 0, 0, 0, 0, b"")

    def advance(self, rule: Rule, now: Micros) -> Log:
        gone = now - rule.window * 1000
        if self.last <= gone:
            return Log.fresh(rule, now)
        total, dead = self.total, self.dead
        while dead < len(self.runs):
            at, cost = _run(self.runs, dead)
            if at > gone:
                break
            total, dead = total - cost, dead + RUN
        return Log(rule.limit, total, self.last, self.cost, dead, self.runs)

    def free_at(self, rule: Rule, cost: int, now: Micros) -> Micros:
        over, place = self.total + cost - rule.limit, self.dead
        at = 0
        while over > 0 and place < len(self.runs):
            at, gone = _run(self.runs, place)
            over, place = over - gone, place + RUN
        if over > 0:
            at = self.last
        return max(now, self.last, at + rule.window * 1000 if at else 0)

    def charge(self, rule: Rule, cost: int, at: Micros) -> Log:
        at, runs, dead = max(at, self.last), self.runs, self.dead
        merged = cost
        if self.last // 1000 == at // 1000 and self.cost + cost <= LARGEST_RUN:
            merged += self.cost
        elif self.cost:
            runs += _pack(self.last, self.cost)
        while merged > LARGEST_RUN:
            runs, merged = runs + _pack(at, LARGEST_RUN), merged - LARGEST_RUN
        if dead * SPARSE > len(runs):
            runs, dead = runs[dead:], 0
        return Log(rule.limit, self.total + cost, at, merged, dead, runs)

    def refund(self, rule: Rule, cost: int, at: Micros, now: Micros) -> Log:
        """Remove the reservation for `at`. With `at` 0, remove the oldest hits: the remaining hits expire later than
        the removed ones, so the log never admits too much.
        """
        runs = self.runs[self.dead :] + _pack(self.last, self.cost)
        begin, until = 0, now
        if at:
            begin, until = len(runs), at // 1000 * 1000 + 999
            while begin > 0 and _run(runs, begin - RUN)[0] >= at // 1000 * 1000:
                begin -= RUN
        end, left, kept = begin, cost, b""
        while left and end < len(runs):
            when, had = _run(runs, end)
            if when > until:
                break
            end += RUN
            if had > left:
                kept = _pack(when, had - left)
            left -= min(had, left)
        runs = runs[:begin] + kept + runs[end:]
        if not runs:
            return Log.fresh(rule, now)
        return Log(rule.limit, self.total - (cost - left), *_run(runs, len(runs) - RUN), 0, runs[:-RUN])

    def used(self, rule: Rule, now: Micros) -> int:
        return self.total if self.last <= now else max(self.total, rule.burst)

    def ends(self, rule: Rule) -> Micros:
        return self.last + rule.window * 1000


def _run(runs: bytes, begin: int) -> tuple[Micros, int]:
    middle = begin + TIME
    return int.from_bytes(runs[begin:middle]), int.from_bytes(runs[middle : begin + RUN])


def _pack(at: Micros, cost: int) -> bytes:
    return at.to_bytes(TIME) + cost.to_bytes(RUN - TIME)


Mark = Fixed | Counter | Bucket | Log
#: The algorithms by a command's `algorithm_id`.
ALGORITHM_TYPES: tuple[type[Mark], ...] = (Fixed, Counter, Bucket, Log)
