"""Random gate histories for property tests: commands of a few tickets, at times that repeat, jump and go back.

A draft is a command with relative times. `run_script` turns drafts into commands while it steps the machine, so that it
removes rows exactly around the moment the machine allows it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from backstay.engine.base import Command, Micros
from backstay.gate import machine
from backstay.gate.commands import CallerIdentity
from backstay.gate.machine import DAY, GATE, LIFE, OFFER, RECHECK, SLACK
from support.agreement.machine_model import BASE, INBOXES, Model, Moment, Sweep


@dataclass(frozen=True)
class Draft:
    """One command, with times relative to the moment it arrives."""

    kind: type[Command]
    after: Micros
    patience: Micros
    ticket: str = ""
    lock_id: str = ""
    exclusive: bool = True
    capacity: int | None = None
    ttl: Micros = 1
    max_waiters: int = 0
    execution: str = ""
    gone: Micros = 0
    fence: Micros = 0
    ttl_number: int = 0


# Most drafts describe a busy gate: little time passes, leases are long, and callers pass the same options. All other
# values are rare.
_NEAR = (0, 0, 0, 0, 0, 1, 1, SLACK, 50_000, 300_000, 1_000_000)
_EDGES = (OFFER - 1, OFFER, OFFER + 1, 5_000_000, RECHECK, LIFE, LIFE + 1)
_JUMPS = (DAY, DAY + 1, 3 * DAY, -1, -OFFER, -LIFE, -DAY // 2)
_FIELDS: dict[str, tuple[Any, ...]] = {
    "kind": (machine.Acquire,) * 12
    + (machine.Release,) * 4
    + (machine.Renew, machine.Withdraw) * 2
    + (machine.ForceRelease, machine.Evict),
    "after": _NEAR * 8 + _EDGES * 2 + _JUMPS,
    "patience": (RECHECK,) * 24 + (1, 0, -1, -OFFER),
    "ticket": ("t1", "t2", "t3", "t4", "t5", "t6"),
    "lock_id": ("l1", "l2", "l3", "ключ"),
    "exclusive": (True, False),
    "capacity": (None,) * 20 + (0, 1, 2),
    "ttl": (5_000_000, LIFE) * 4 + (1, 1_000, 1_000_000, OFFER, DAY),
    "max_waiters": (1000,) * 12 + (0, 0, 1, 2),
    "execution": ("", "e1", "e2"),
    "gone": (0, 0, 0, 1, OFFER, LIFE, -1),
    "fence": (0,) * 6 + (1, BASE, BASE + 7 * DAY, 2**53 - 2 * DAY),
    "ttl_number": (0,) * 3 + (1, 1, 2),
    "by_lock_id": (False,) * 6 + (True,),
}
_SWEEPS = (-1, 0, 1, DAY)


def _draft(dice: bytes) -> Draft:
    """Choose each field by one byte. All bytes are one draw, because draws make examples slow."""
    fields = {name: options[die % len(options)] for die, (name, options) in zip(dice, _FIELDS.items(), strict=True)}
    if fields.pop("by_lock_id") and fields["kind"] is machine.Release:
        fields["ticket"] = ""
    return Draft(**fields)


def _draft_or_sweep(dice: bytes) -> Draft | Sweep:
    return Sweep(_SWEEPS[dice[0] % 4]) if dice[0] > 244 else _draft(dice)


def _scripts(make: Callable[[bytes], Any]) -> st.SearchStrategy[tuple[int, list[Any]]]:
    """Generate the capacity that most callers pass, and the drafts."""
    draft = st.binary(min_size=len(_FIELDS), max_size=len(_FIELDS)).map(make)
    return st.tuples(st.sampled_from((1, 1, 2, 3, 0)), st.lists(draft, min_size=8, max_size=28))


def faithful(script: tuple[int, list[Any]]) -> tuple[int, list[Any]]:
    """Make each ticket keep its mode, shared or exclusive, as real callers do."""
    capacity, drafts = script
    modes: dict[str, bool] = {}
    for draft in drafts:
        if isinstance(draft, Draft) and draft.kind is machine.Acquire:
            modes.setdefault(draft.ticket, draft.exclusive)
    return capacity, [
        replace(draft, exclusive=modes[draft.ticket])
        if isinstance(draft, Draft) and draft.kind is machine.Acquire
        else draft
        for draft in drafts
    ]


#: `unswept`: histories of faithful callers, in which no row is removed. `scripts`: all histories, with removals.
unswept = _scripts(_draft).map(faithful)
scripts = _scripts(_draft_or_sweep)


def _command(draft: Draft, now: Micros, capacity: int) -> Command:
    not_after = now + draft.patience
    gone_until = now + draft.gone if draft.gone else 0
    if draft.kind is machine.Acquire:
        return machine.Acquire(
            not_after,
            draft.ticket,
            draft.lock_id,
            draft.exclusive,
            capacity if draft.capacity is None else draft.capacity,
            draft.ttl,
            INBOXES[draft.ticket > "t3"],
            draft.max_waiters,
            CallerIdentity(draft.execution, "w", "work"),
        )
    if draft.kind is machine.Renew:
        return machine.Renew(not_after, draft.ticket, draft.fence, draft.ttl, draft.ttl_number)
    if draft.kind is machine.Release:
        return machine.Release(not_after, draft.ticket, draft.lock_id, draft.fence, gone_until)
    if draft.kind is machine.Withdraw:
        return machine.Withdraw(not_after, draft.ticket, gone_until)
    if draft.kind is machine.Evict:
        prefixes = ("", draft.ticket[:1], draft.ticket)
        return machine.Evict(not_after, draft.execution, prefixes[draft.ttl_number])
    return machine.ForceRelease(not_after)


def run_script(script: tuple[int, list[Any]], *, start: Micros = BASE) -> list[Moment]:
    """Run a script on the machine; return its history with the concrete times and commands that engines repeat."""
    capacity, drafts = script
    model = Model(GATE)
    now = start
    history = []
    for draft in drafts:
        if isinstance(draft, Sweep):
            if model.state is None or model.keep_until > start + 3650 * DAY:
                continue  # a fence from the far future keeps its row forever
            now = max(now, model.keep_until + draft.off)
            history.append(model.sweep(now))
        else:
            now += draft.after
            history.append(model.apply(_command(draft, now, capacity), now))
    return history
