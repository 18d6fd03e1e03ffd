"""The state machine of rate limits, for one key.

A limit has one or more rates. A hit is charged to all of them at one time, or to none. That time is the latest of the
times at which each rate has room for the cost (`algorithms.py`). If it is now, the hit is admitted. If it is later but
within the caller's `wait`, the hit is reserved for that time and the caller sleeps until then. Otherwise the hit is
denied and changes nothing.

All callers of one record use the same algorithm and the same windows, because these are part of its name. The limits
may differ between callers: each command carries its own. Times are µs of the engine's clock. `lua/*.lua` implement the
same machine for Redis; a property test compares both.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from backstay.engine.base import Command, Expired, Micros, Record, Room, Transition
from backstay.errors import CorruptRecord
from backstay.limit.algorithms import ALGORITHM_TYPES, Mark, Rule

#: Incremented when the stored format changes.
VERSION = 1


class LimitState(Record, frozen=True, array_like=True):
    """The state of one key. `marks`: for each rate, how much of it is used (`algorithms.py`). `seen`: the time of the
    last change.
    """

    seen: Micros
    marks: tuple[Mark, ...]


class Hit(Command, frozen=True, array_like=True):
    """Charge `cost` now, or reserve it for a time within the next `wait` µs. Not idempotent, but safe: a second copy
    charges again, so the limit only admits less.
    """

    algorithm_id: int
    rules: tuple[Rule, ...]
    cost: int
    wait: Micros = 0


class Peek(Command, frozen=True, array_like=True):
    """Return the reply that a hit would get, without charging."""

    algorithm_id: int
    rules: tuple[Rule, ...]
    cost: int


class Charge(Command, frozen=True, array_like=True):
    """Charge hits that a process admitted while the engine was unavailable. `costs`: the cost for each rate, which is
    charged even above the limit.
    """

    algorithm_id: int
    rules: tuple[Rule, ...]
    costs: tuple[int, ...]


class Refund(Command, frozen=True, array_like=True):
    """Refund `cost`: the reservation for the time `at` or, with `at` 0, a cost that was charged just now. Not
    idempotent: a second copy would refund too much.
    """

    algorithm_id: int
    rules: tuple[Rule, ...]
    cost: int
    at: Micros = 0


class Reset(Command, frozen=True, array_like=True):
    """Delete the record of this key."""


class Admitted(Struct, frozen=True, array_like=True, tag="admitted", gc=False):
    """The cost is charged at the time `at`, `delay` µs from now. The other fields describe the rate with the least
    remaining.
    """

    at: Micros
    rate: int
    count: int
    remaining: int
    reset: Micros
    delay: Micros


class Denied(Struct, frozen=True, array_like=True, tag="denied", gc=False):
    """Nothing is charged. The fields describe the rate that blocks longest: it has room again in `retry` µs."""

    at: Micros
    rate: int
    count: int
    remaining: int
    reset: Micros
    retry: Micros


class Done(Struct, frozen=True, array_like=True, tag="done"):
    """A charge, refund or reset is applied."""


Reply = Admitted | Denied | Done | Expired


def step(state: LimitState | None, command: Command, now: Micros) -> Transition[LimitState]:
    """Apply one command to the limit. Pure: no clock, no I/O, no randomness."""
    if state is not None:
        now = max(now, state.seen)
    if now > command.not_after:
        return Transition(state, Expired(now), write=False)
    match command:
        case Hit(algorithm_id=algorithm_id, rules=rules, cost=cost, wait=wait):
            marks = _advance(state, algorithm_id, rules, now)
            free = [mark.free_at(rule, cost, now) for mark, rule in zip(marks, rules, strict=True)]
            at = max(free)
            if at - now > wait:
                return Transition(state, _build_denied(marks, rules, free, now), write=False)
            marks = [mark.charge(rule, cost, at) for mark, rule in zip(marks, rules, strict=True)]
            return _write(rules, marks, _build_admitted(marks, rules, at, now), now)
        case Peek(algorithm_id=algorithm_id, rules=rules, cost=cost):
            marks = _advance(state, algorithm_id, rules, now)
            free = [mark.free_at(rule, cost, now) for mark, rule in zip(marks, rules, strict=True)]
            reply = (
                _build_denied(marks, rules, free, now) if max(free) > now else _build_admitted(marks, rules, now, now)
            )
            return Transition(state, reply, write=False)
        case Charge(algorithm_id=algorithm_id, rules=rules, costs=costs):
            marks = _advance(state, algorithm_id, rules, now)
            marks = [m.charge(rule, cost, now) for m, rule, cost in zip(marks, rules, costs, strict=True)]
            return _write(rules, marks, Done(), now)
        case Refund(algorithm_id=algorithm_id, rules=rules, cost=cost, at=at):
            if state is None:
                return Transition(None, Done(), write=False)
            marks = _advance(state, algorithm_id, rules, now)
            marks = [mark.refund(rule, cost, at, now) for mark, rule in zip(marks, rules, strict=True)]
            return _write(rules, marks, Done(), now)
        case Reset():
            return Transition(None, Done())
        case _:
            raise TypeError(f"not a limit command: {command!r}")


def _advance(state: LimitState | None, algorithm_id: int, rules: Sequence[Rule], now: Micros) -> list[Mark]:
    """Return the marks at `now`, without what has expired. Raises CorruptRecord if the record's marks do not belong to
    this algorithm and these rates (`rules`).
    """
    kind = ALGORITHM_TYPES[algorithm_id]
    if state is None:
        return [kind.fresh(rule, now) for rule in rules]
    if len(state.marks) != len(rules) or not all(type(mark) is kind for mark in state.marks):
        raise CorruptRecord("the marks of a limit's record do not match the algorithm and rates in its name")
    return [mark.advance(rule, now) for mark, rule in zip(state.marks, rules, strict=True)]


def _build_denied(marks: list[Mark], rules: Sequence[Rule], free: list[Micros], now: Micros) -> Denied:
    rate = free.index(max(free))
    mark, rule = marks[rate], rules[rate]
    used = mark.used(rule, now)
    reset = max(0, mark.ends(rule) - now)
    return Denied(now, rate, used, max(0, rule.burst - used), reset, free[rate] - now)


def _build_admitted(marks: list[Mark], rules: Sequence[Rule], at: Micros, now: Micros) -> Admitted:
    used = [mark.used(rule, now) for mark, rule in zip(marks, rules, strict=True)]
    left = [max(0, rule.burst - count) for rule, count in zip(rules, used, strict=True)]
    rate = left.index(min(left))
    reset = max(0, marks[rate].ends(rules[rate]) - now)
    return Admitted(at, rate, used[rate], left[rate], reset, at - now)


def _write(rules: Sequence[Rule], marks: list[Mark], reply: Reply, now: Micros) -> Transition[LimitState]:
    """Store the marks until the last of them has no effect any more (`keep_until`). After that the record may be
    deleted: a missing record gives the same replies.
    """
    keep_until = max(mark.ends(rule) for mark, rule in zip(marks, rules, strict=True))
    if keep_until <= now:
        return Transition(None, reply)
    return Transition(LimitState(VERSION, now, tuple(marks)), reply, keep_until=keep_until)


LIMIT = Room("limit", step=step, state=LimitState, version=VERSION, replies=Reply, package="backstay.limit")
