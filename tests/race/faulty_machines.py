"""Faulty gate machines that serve out of order. `install_fault(kind)` patches this process's machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from backstay.gate import machine
from backstay.gate.machine import LAPSED, LIFE, OFFER, Gate

_offer, _refresh, _expire, _acquire = machine._offer, machine._refresh, machine._expire, machine._acquire


def _youngest_first(gate: Gate, now: int, asking: str) -> Any:
    """Offers a free place to the youngest waiter first."""
    turned, wakes = _offer(replace(gate, queue=gate.queue[::-1]), now, asking)
    return replace(turned, queue=turned.queue[::-1]), wakes


def _second_first(gate: Gate, now: int, asking: str) -> Any:
    """Offers a free place to the second waiter before the first."""
    queue = gate.queue
    if len(queue) < 2 or queue[0].offer or queue[1].offer:
        return _offer(gate, now, asking)
    swapped, wakes = _offer(replace(gate, queue=(queue[1], queue[0], *queue[2:])), now, asking)
    queue = swapped.queue
    return replace(swapped, queue=(queue[1], queue[0], *queue[2:])), wakes


def _not_the_polling_waiter(gate: Gate, now: int, asking: str) -> Any:
    """Passes over the waiter that is polling in favour of a waiter behind it."""
    mine = [w for w in gate.queue if w.ticket == asking and w.offer == 0]
    others = replace(gate, queue=tuple(w for w in gate.queue if w not in mine))
    if not mine or not any(w.offer == 0 for w in others.queue):
        return _offer(gate, now, asking)
    others, wakes = _offer(others, now, asking)
    return replace(others, queue=tuple(sorted((*others.queue, *mine), key=lambda w: w.since))), wakes


def _to_the_tail(gate: Gate, ticket: str, now: int) -> Gate:
    """Moves a waiter that polls again to the end of the queue."""
    gate = _refresh(gate, ticket, now)
    mine = tuple(replace(w, since=now) for w in gate.queue if w.ticket == ticket and w.offer == 0)
    if not mine:
        return gate
    return replace(gate, queue=(*(w for w in gate.queue if w.ticket != ticket), *mine))


def _lapsed_forever(gate: Gate, ticket: str, now: int) -> Gate:
    """Passes over a waiter that let an offer lapse forever, even after it polls again."""
    lapsed = {w.ticket for w in gate.queue if w.offer == LAPSED}
    gate = _refresh(gate, ticket, now)
    return replace(gate, queue=tuple(replace(w, offer=LAPSED) if w.ticket in lapsed else w for w in gate.queue))


def _short_offers(gate: Gate, now: int, asking: str) -> Any:
    """Lets an offer lapse after 20 ms."""
    gate, wakes = _expire(gate, now, asking)
    left = OFFER - 20_000
    queue = tuple(replace(w, offer=LAPSED) if 0 < w.offer - now < left else w for w in gate.queue)
    return replace(gate, queue=queue), wakes


def _lapsed_without_an_offer(gate: Gate, now: int, asking: str) -> Any:
    """Passes over a waiter that has not polled for half a second, although it had no offer."""
    gate, wakes = _expire(gate, now, asking)
    old = now + LIFE - 500_000
    queue = tuple(replace(w, offer=LAPSED) if w.offer == 0 and w.alive < old else w for w in gate.queue)
    return replace(gate, queue=queue), wakes


def _barging(gate: Gate, command: Any, now: int) -> Any:
    """Grants a newcomer the place that is reserved for a waiter with an offer, which loses that offer."""
    known = any(x.ticket == command.ticket for x in (*gate.holders, *gate.queue))
    if known or gate.holders or not gate.queue:
        return _acquire(gate, command, now)
    gate = replace(gate, queue=tuple(replace(w, offer=min(w.offer, 0)) for w in gate.queue))
    return machine._grant(gate, command, command.exclusive, now)


FAULTY_MACHINES: dict[str, dict[str, Callable[..., Any]]] = {
    "youngest first": {"_offer": _youngest_first},
    "second first": {"_offer": _second_first},
    "not the polling waiter": {"_offer": _not_the_polling_waiter},
    "to the tail": {"_refresh": _to_the_tail},
    "lapsed forever": {"_refresh": _lapsed_forever},
    "short offers": {"_expire": _short_offers},
    "lapsed without an offer": {"_expire": _lapsed_without_an_offer},
    "barging": {"_acquire": _barging},
}


def install_fault(kind: str, patch: Callable[[object, str, object], None] = setattr) -> None:
    for name, faulty in FAULTY_MACHINES[kind].items():
        patch(machine, name, faulty)
