"""Random gate histories for property tests: commands from a few tickets at times that stand still, jump and go back.

A draft says what a caller would do; `play` turns drafts into commands while it steps the machine, so that rows are
removed exactly around the moment the machine allows it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from backstay.engine.base import Command, Micros, Room, Wake
from backstay.gate import machine
from backstay.gate.machine import DAY, GATE, LIFE, OFFER, RECHECK, SLACK, Who

BASE = 1_700_000_000_000_000
INBOXES = ("inbox:1", "inbox:2")


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


@dataclass(frozen=True)
class Sweep:
    """Time passes to around the row's `keep_until`; then the row may be removed."""

    off: Micros


@dataclass(frozen=True)
class Moment:
    """What arrived, and what the machine made of it. `command` None: the row was removed if that was allowed."""

    now: Micros
    command: Command | None
    reply: Any = None
    state: Any = None
    wakes: tuple[Wake, ...] = ()


# Mostly a busy gate: little time passes, leases are long, callers agree. Seldom everything else.
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
    "by_lock_id": (False,) * 6 + (True,),
}
_SWEEPS = (-1, 0, 1, DAY)


def _draft(dice: bytes) -> Draft:
    """A byte a field: one draw for all of them, since draws are what examples cost."""
    fields = {name: options[die % len(options)] for die, (name, options) in zip(dice, _FIELDS.items(), strict=True)}
    if fields.pop("by_lock_id") and fields["kind"] is machine.Release:
        fields["ticket"] = ""
    return Draft(**fields)


def _draft_or_sweep(dice: bytes) -> Draft | Sweep:
    return Sweep(_SWEEPS[dice[0] % 4]) if dice[0] > 244 else _draft(dice)


def _scripts(make: Callable[[bytes], Any]) -> st.SearchStrategy[tuple[int, list[Any]]]:
    """A capacity that most callers agree on, and what they do."""
    draft = st.binary(min_size=len(_FIELDS), max_size=len(_FIELDS)).map(make)
    return st.tuples(st.sampled_from((1, 1, 2, 3, 0)), st.lists(draft, min_size=8, max_size=28))


def faithful(script: tuple[int, list[Any]]) -> tuple[int, list[Any]]:
    """The same script with callers as they are: a ticket is shared or exclusive and stays so."""
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


#: Histories of faithful callers without the removal of rows; and all there can be, with it.
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
            Who(draft.execution, "w", "work"),
        )
    if draft.kind is machine.Renew:
        return machine.Renew(not_after, draft.ticket, draft.fence, draft.ttl)
    if draft.kind is machine.Release:
        return machine.Release(not_after, draft.ticket, draft.lock_id, draft.fence, gone_until)
    if draft.kind is machine.Withdraw:
        return machine.Withdraw(not_after, draft.ticket, gone_until)
    if draft.kind is machine.Evict:
        return machine.Evict(not_after, draft.execution)
    return machine.ForceRelease(not_after)


class Model:
    """A machine with its one row. `monotone`: as on an engine whose clock never goes back."""

    def __init__(self, *, monotone: bool = False, room: Room[Any] = GATE) -> None:
        self.room = room
        self.state: Any = None
        self.body: bytes | None = None
        self.keep_until = 0
        self._latest = 0 if monotone else None

    def apply(self, command: Command, now: Micros) -> Moment:
        if self._latest is not None:
            now = max(self._latest, now)
        done = self.room.step(self.state, command, now)
        reply = self.room.quote("", done, self.body)
        if done.write:
            self._latest = None if self._latest is None else now
            self.state, self.keep_until = done.state, done.keep_until
            self.body = self.body if done.body is None else done.body
        return Moment(now, command, reply, self.state, done.wakes)

    def sweep(self, now: Micros) -> Moment:
        time = now if self._latest is None else max(self._latest, now)
        if self.state is not None and self.keep_until < now:
            self.state = self.body = None
            self._latest = None if self._latest is None else time
        return Moment(time, None, None, self.state)


def play(script: tuple[int, list[Any]], *, start: Micros = BASE) -> list[Moment]:
    """The machine's own history of a script, with the concrete times and commands others must repeat."""
    capacity, drafts = script
    model = Model()
    now = start
    history = []
    for draft in drafts:
        if isinstance(draft, Sweep):
            if model.state is None or model.keep_until > start + 3650 * DAY:
                continue  # a fence from the far future keeps its row for good
            now = max(now, model.keep_until + draft.off)
            history.append(model.sweep(now))
        else:
            now += draft.after
            history.append(model.apply(_command(draft, now, capacity), now))
    return history


def replay(history: list[Moment], model: Model) -> list[Moment]:
    """The same commands at the same times through another model."""
    return [
        model.sweep(moment.now) if moment.command is None else model.apply(moment.command, moment.now)
        for moment in history
    ]
