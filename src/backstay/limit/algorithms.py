"""What a limit remembers of one rate, and the law of each algorithm.

Every law is the same few questions to a frozen mark: what is left of it now (`passed`), when does a cost fit at the
earliest (`free_at`), what follows when it is taken then (`charged`) or given back (`refunded`), how much is in use
(`used`), and from when on is it as if nothing had ever been taken (`ends`).

A cost may be taken in the future: that is a reservation. The mark then stands at its frontier, and whoever comes later
fits there or later, so nobody overtakes. Nothing that fits at one moment stops to fit by waiting.

Given back is what was reserved for a moment, `at`, or (0) what was taken just now. A mark that cannot tell what those
who stand behind that moment leave room for gives nothing back: never is more admitted for it.

Times are µs of the engine's clock. `_fixed.lua`, `_counter.lua`, `_bucket.lua` and `_log.lua` say the same for Redis.
"""

from __future__ import annotations

from msgspec import Struct

from backstay.engine.base import Micros

#: A run of the log: seven bytes of time, three of cost.
TIME, RUN = 7, 10
#: The most that one run holds.
LARGEST_RUN = 2**24 - 1
#: A log is cut when more than one part in so many has ended.
SPARSE = 16


class Rule(Struct, frozen=True, array_like=True, gc=False):
    """A rate as machines read it: `limit` in `window` milliseconds, `burst` at most at once."""

    limit: int
    window: int
    burst: int
    #: Buckets count in units so small that all is whole: what comes back in a millisecond, and what a hit takes.
    gain: int = 0
    price: int = 0


class Fixed(Struct, frozen=True, array_like=True, tag=0, gc=False):
    """`count` in window number `index` of a fixed grid. Two full windows may meet at their border."""

    limit: int
    index: int
    count: int

    @staticmethod
    def fresh(rule: Rule, now: Micros) -> Fixed:
        return Fixed(rule.limit, now // (rule.window * 1000), 0)

    def passed(self, rule: Rule, now: Micros) -> Fixed:
        return self if now < self.ends(rule) else Fixed.fresh(rule, now)

    def free_at(self, rule: Rule, cost: int, now: Micros) -> Micros:
        index = self.index if self.count + cost <= rule.limit else self.index + 1
        return max(now, index * rule.window * 1000)

    def charged(self, rule: Rule, cost: int, at: Micros) -> Fixed:
        here = self.passed(rule, at)
        return Fixed(rule.limit, here.index, here.count + cost)

    def refunded(self, rule: Rule, cost: int, at: Micros, now: Micros) -> Fixed:
        here = (at or now) // (rule.window * 1000) == self.index
        return Fixed(rule.limit, self.index, max(0, self.count - cost) if here else self.count)

    def used(self, rule: Rule, now: Micros) -> int:
        return self.count if self.index * rule.window * 1000 <= now else rule.burst

    def ends(self, rule: Rule) -> Micros:
        return (self.index + 1) * rule.window * 1000


class Counter(Struct, frozen=True, array_like=True, tag=1, gc=False):
    """A fixed window that also weighs the one before it by how much of that is still in sight."""

    limit: int
    index: int
    count: int
    before: int

    @staticmethod
    def fresh(rule: Rule, now: Micros) -> Counter:
        return Counter(rule.limit, now // (rule.window * 1000), 0, 0)

    def passed(self, rule: Rule, now: Micros) -> Counter:
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

    def charged(self, rule: Rule, cost: int, at: Micros) -> Counter:
        here = self.passed(rule, at)
        return Counter(rule.limit, here.index, here.count + cost, here.before)

    def refunded(self, rule: Rule, cost: int, at: Micros, now: Micros) -> Counter:
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
    """A bucket that lacks `debt` units at millisecond `at` and fills steadily. Token bucket and GCRA are this."""

    limit: int
    at: int
    debt: int

    @staticmethod
    def fresh(rule: Rule, now: Micros) -> Bucket:
        return Bucket(rule.limit, now // 1000, 0)

    def passed(self, rule: Rule, now: Micros) -> Bucket:
        ms = now // 1000
        if ms <= self.at:
            return self
        return Bucket(rule.limit, ms, max(0, self.debt - (ms - self.at) * rule.gain))

    def free_at(self, rule: Rule, cost: int, now: Micros) -> Micros:
        over = self.debt + (cost - rule.burst) * rule.price
        return max(now, (self.at + max(0, -(-over // rule.gain))) * 1000)

    def charged(self, rule: Rule, cost: int, at: Micros) -> Bucket:
        here = self.passed(rule, at)
        return Bucket(rule.limit, here.at, here.debt + cost * rule.price)

    def refunded(self, rule: Rule, cost: int, at: Micros, now: Micros) -> Bucket:
        others_behind = (at or now) // 1000 < self.at
        back = 0 if others_behind else cost * rule.price
        return Bucket(rule.limit, self.at, max(0, self.debt - back))

    def used(self, rule: Rule, now: Micros) -> int:
        return -(-self.debt // rule.price) if self.at * 1000 <= now else rule.burst

    def ends(self, rule: Rule) -> Micros:
        return (self.at - -self.debt // rule.gain) * 1000


class Log(Struct, frozen=True, array_like=True, tag=3, gc=False):
    """Every hit of the last window, oldest first, as packed runs: exact. `total` is their sum.

    Hits of one millisecond share a run, which bears the time of the last: none is forgotten too early. The latest run
    stands apart, as `last` and `cost`. The first `dead` bytes of the others have ended; they are cut off when they are
    many, so that a hit need not rewrite them all.
    """

    limit: int
    total: int
    last: Micros
    cost: int
    dead: int
    runs: bytes

    @staticmethod
    def fresh(rule: Rule, now: Micros) -> Log:  # noqa: ARG004 - as the others
        return Log(rule.limit, 0, 0, 0, 0, b"")

    def passed(self, rule: Rule, now: Micros) -> Log:
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

    def charged(self, rule: Rule, cost: int, at: Micros) -> Log:
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

    def refunded(self, rule: Rule, cost: int, at: Micros, now: Micros) -> Log:
        """The reservation that was made for `at`; else the oldest, so that no hit is forgotten too early."""
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
#: What a command's `law` means.
LAWS: tuple[type[Mark], ...] = (Fixed, Counter, Bucket, Log)
