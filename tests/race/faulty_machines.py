"""Faulty gate machines that serve out of order. `install_fault(kind)` patches this process's machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from backstay.gate import machine
from backstay.gate.machine import LAPSED, LIFE, OFFER, Gate

_offer, _refresh, _expire, _acquire = machine._offer, machine._refresh, machine._expire, machine._acquire


def _youngest_first(gate: Gate, now: int, asking: str) -> Any:
    """Offers places in the wrong direction."""
    turned, wakes = _offer(replace(gate, queue=gate.queue[::-1]), now, asking)
    return replace(turned, queue=turned.queue[::-1]), wakes


def _second_first(gate: Gate, now: int, asking: str) -> Any:
    """Passes over the first waiter whenever another waiter is behind it."""
    queue = gate.queue
    if len(queue) < 2 or queue[0].offer or queue[1].offer:
        return _offer(gate, now, asking)
    swapped, wakes = _offer(replace(gate, queue=(queue[1], queue[0], *queue[2:])), now, asking)
    queue = swapped.queue
    return replace(swapped, queue=(queue[1], queue[0], *queue[2:])), wakes


def _not_who_asks(gate: Gate, now: int, asking: str) -> Any:
    """Passes over the waiter that asks right now in favour of a waiter behind it."""
    mine = [w for w in gate.queue if w.ticket == asking and w.offer == 0]
    others = replace(gate, queue=tuple(w for w in gate.queue if w not in mine))
    if not mine or not any(w.offer == 0 for w in others.queue):
        return _offer(gate, now, asking)
    others, wakes = _offer(others, now, asking)
    return replace(others, queue=tuple(sorted((*others.queue, *mine), key=lambda w: w.since))), wakes


def _to_the_tail(gate: Gate, ticket: str, now: int) -> Gate:
    """A waiter that polls again loses its rank."""
    gate = _refresh(gate, ticket, now)
    mine = tuple(replace(w, since=now) for w in gate.queue if w.ticket == ticket and w.offer == 0)
    if not mine:
        return gate
    return replace(gate, queue=(*(w for w in gate.queue if w.ticket != ticket), *mine))


def _deaf_to_who_returns(gate: Gate, ticket: str, now: int) -> Gate:
    """A waiter that let an offer lapse is passed over forever."""
    lapsed = {w.ticket for w in gate.queue if w.offer == LAPSED}
    gate = _refresh(gate, ticket, now)
    return replace(gate, queue=tuple(replace(w, offer=LAPSED) if w.ticket in lapsed else w for w in gate.queue))


def _short_patience(gate: Gate, now: int) -> Gate:
    """An offer lapses almost at once."""
    gate = _expire(gate, now)
    hasty = OFFER - 20_000
    return replace(gate, queue=tuple(replace(w, offer=LAPSED) if 0 < w.offer - now < hasty else w for w in gate.queue))


def _no_offer_at_all(gate: Gate, now: int) -> Gate:
    """A waiter that has not asked for half a second is passed over, although it had no offer."""
    gate = _expire(gate, now)
    old = now + LIFE - 500_000
    return replace(
        gate, queue=tuple(replace(w, offer=LAPSED) if w.offer == 0 and w.alive < old else w for w in gate.queue)
    )


def _barging(gate: Gate, command: Any, now: int) -> Any:
    """A newcomer takes the place that is kept for another, who goes back to waiting."""
    known = any(x.ticket == command.ticket for x in (*gate.holders, *gate.queue))
    if known or gate.holders or not gate.queue:
        return _acquire(gate, command, now)
    gate = replace(gate, queue=tuple(replace(w, offer=min(w.offer, 0)) for w in gate.queue))
    return machine._grant(gate, command, command.exclusive, now)


FAULTY_MACHINES: dict[str, dict[str, Callable[..., Any]]] = {
    "youngest first": {"_offer": _youngest_first},
    "second first": {"_offer": _second_first},
    "not who asks": {"_offer": _not_who_asks},
    "to the tail": {"_refresh": _to_the_tail},
    "deaf to who returns": {"_refresh": _deaf_to_who_returns},
    "short patience": {"_expire": _short_patience},
    "no offer at all": {"_expire": _no_offer_at_all},
    "barging": {"_acquire": _barging},
}


def install_fault(kind: str, put: Callable[[object, str, object], None] = setattr) -> None:
    for name, wrong in FAULTY_MACHINES[kind].items():
        put(machine, name, wrong)
