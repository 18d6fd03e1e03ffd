"""A limit: how much of something may happen in a time, for one key.

A limit has one or more rates; a hit is taken by all of them at one moment or by none. The moment is the latest of
those at which each rate has room (`marks.py`). When it has come, the hit is admitted; when it lies further ahead than
the caller waits, it is denied and leaves no trace; else it is reserved, and the caller sleeps until then.

All callers of one record agree on the law and the windows, which are part of its name; limits may differ and follow
the caller. Times are µs of the engine's clock. `lua/*.lua` say the same for Redis; a property test holds
both against each other.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from backstay.engine.base import Command, Expired, Micros, Record, Room, Step
from backstay.errors import CorruptRecord
from backstay.limit.algorithms import LAWS, Mark, Rule

#: Bumped when the stored shape changes.
VERSION = 1


class Taken(Record, frozen=True, array_like=True):
    """What is taken of one key: a mark for each rate. `seen` is the time of the last change."""

    seen: Micros
    marks: tuple[Mark, ...]


class Hit(Command, frozen=True, array_like=True):
    """Take `cost`, now or within `wait` µs. Counting: a second copy takes again, and never admits too much."""

    law: int
    rules: tuple[Rule, ...]
    cost: int
    wait: Micros = 0


class Peek(Command, frozen=True, array_like=True):
    """What a hit would hear, without taking anything."""

    law: int
    rules: tuple[Rule, ...]
    cost: int


class Charge(Command, frozen=True, array_like=True):
    """Take what has happened already, elsewhere: a cost for each rate, whether there is room or not."""

    law: int
    rules: tuple[Rule, ...]
    costs: tuple[int, ...]


class Refund(Command, frozen=True, array_like=True):
    """Give `cost` back: what was reserved for `at`, or (0) any. A second copy would give back too much."""

    law: int
    rules: tuple[Rule, ...]
    cost: int
    at: Micros = 0


class Reset(Command, frozen=True, array_like=True):
    """Forget everything about this key."""


class Admitted(Struct, frozen=True, array_like=True, tag="admitted", gc=False):
    """Taken for `at`, `delay` µs from now. The rest speaks of the rate that has the least left."""

    at: Micros
    rate: int
    count: int
    remaining: int
    reset: Micros
    delay: Micros


class Denied(Struct, frozen=True, array_like=True, tag="denied", gc=False):
    """Nothing was taken. The rest speaks of the rate that will be the last to have room, in `retry` µs."""

    at: Micros
    rate: int
    count: int
    remaining: int
    reset: Micros
    retry: Micros


class Done(Struct, frozen=True, array_like=True, tag="done"):
    pass


Reply = Admitted | Denied | Done | Expired


def step(state: Taken | None, command: Command, now: Micros) -> Step[Taken]:
    """The whole meaning of a limit. Pure: no clock, no I/O, no randomness."""
    if state is not None:
        now = max(now, state.seen)
    if now > command.not_after:
        return Step(state, Expired(now), write=False)
    match command:
        case Hit(law=law, rules=rules, cost=cost, wait=wait):
            marks = _passed(state, law, rules, now)
            free = [mark.free_at(rule, cost, now) for mark, rule in zip(marks, rules, strict=True)]
            at = max(free)
            if at - now > wait:
                return Step(state, _denied(marks, rules, free, now), write=False)
            marks = [mark.charged(rule, cost, at) for mark, rule in zip(marks, rules, strict=True)]
            return _write(rules, marks, _admitted(marks, rules, at, now), now)
        case Peek(law=law, rules=rules, cost=cost):
            marks = _passed(state, law, rules, now)
            free = [mark.free_at(rule, cost, now) for mark, rule in zip(marks, rules, strict=True)]
            reply = _denied(marks, rules, free, now) if max(free) > now else _admitted(marks, rules, now, now)
            return Step(state, reply, write=False)
        case Charge(law=law, rules=rules, costs=costs):
            marks = _passed(state, law, rules, now)
            marks = [m.charged(rule, cost, now) for m, rule, cost in zip(marks, rules, costs, strict=True)]
            return _write(rules, marks, Done(), now)
        case Refund(law=law, rules=rules, cost=cost, at=at):
            if state is None:
                return Step(None, Done(), write=False)
            marks = _passed(state, law, rules, now)
            marks = [mark.refunded(rule, cost, at, now) for mark, rule in zip(marks, rules, strict=True)]
            return _write(rules, marks, Done(), now)
        case Reset():
            return Step(None, Done())
        case _:
            raise TypeError(f"not a limit command: {command!r}")


def _passed(state: Taken | None, law: int, rules: Sequence[Rule], now: Micros) -> list[Mark]:
    """Let time pass: what has ended is no longer there."""
    kind = LAWS[law]
    if state is None:
        return [kind.fresh(rule, now) for rule in rules]
    if len(state.marks) != len(rules) or not all(type(mark) is kind for mark in state.marks):
        raise CorruptRecord("a limit's record does not fit its name")
    return [mark.passed(rule, now) for mark, rule in zip(state.marks, rules, strict=True)]


def _denied(marks: list[Mark], rules: Sequence[Rule], free: list[Micros], now: Micros) -> Denied:
    rate = free.index(max(free))
    mark, rule = marks[rate], rules[rate]
    used = mark.used(rule, now)
    reset = max(0, mark.ends(rule) - now)
    return Denied(now, rate, used, max(0, rule.burst - used), reset, free[rate] - now)


def _admitted(marks: list[Mark], rules: Sequence[Rule], at: Micros, now: Micros) -> Admitted:
    used = [mark.used(rule, now) for mark, rule in zip(marks, rules, strict=True)]
    left = [max(0, rule.burst - count) for rule, count in zip(rules, used, strict=True)]
    rate = left.index(min(left))
    reset = max(0, marks[rate].ends(rules[rate]) - now)
    return Admitted(at, rate, used[rate], left[rate], reset, at - now)


def _write(rules: Sequence[Rule], marks: list[Mark], reply: Reply, now: Micros) -> Step[Taken]:
    """From `keep_until` on an absent record answers exactly as this one would."""
    keep_until = max(mark.ends(rule) for mark, rule in zip(marks, rules, strict=True))
    if keep_until <= now:
        return Step(None, reply)
    return Step(Taken(VERSION, now, tuple(marks)), reply, keep_until=keep_until)


LIMIT = Room("limit", step=step, state=Taken, version=VERSION, replies=Reply, package="backstay.limit")
