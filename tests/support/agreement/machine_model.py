"""A machine with its one record in memory: the model that property tests compare the engines with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from backstay.engine.base import Command, Micros, Room, Wake

BASE = 1_700_000_000_000_000
INBOXES = ("inbox:1", "inbox:2")


@dataclass(frozen=True)
class Sweep:
    """Time passes to around the record's `keep_until`; then the record may be removed."""

    off: Micros


@dataclass(frozen=True)
class Moment:
    """One command and its result. With `command` None, the record was removed if the machine allowed it."""

    now: Micros
    command: Command | None
    reply: Any = None
    state: Any = None
    wakes: tuple[Wake, ...] = ()


class Model:
    """A machine with its one record. `monotone` models an engine whose clock never goes back behind a write."""

    def __init__(self, room: Room[Any], *, monotone: bool = False) -> None:
        self.room = room
        self.state: Any = None
        self.body: bytes | None = None
        self.keep_until = 0
        self._latest = 0 if monotone else None

    def apply(self, command: Command, now: Micros) -> Moment:
        if self._latest is not None:
            now = max(self._latest, now)
        transition = self.room.step(self.state, command, now)
        reply = self.room.complete_reply("", transition, self.body)
        if transition.write:
            if self._latest is not None and (self.state is not None or transition.state is not None):
                self._latest = now  # deleting a record that does not exist stores no time
            self.state, self.keep_until = transition.state, transition.keep_until
            self.body = self.body if transition.body is None else transition.body
        return Moment(now, command, reply, self.state, transition.wakes)

    def sweep(self, now: Micros) -> Moment:
        time = now if self._latest is None else max(self._latest, now)
        if self.state is not None and self.keep_until < now:
            self.state = self.body = None
            self._latest = None if self._latest is None else time
        return Moment(time, None, None, self.state)


def replay(history: list[Moment], model: Model) -> list[Moment]:
    """Apply the same commands at the same times to another model."""
    return [
        model.sweep(moment.now) if moment.command is None else model.apply(moment.command, moment.now)
        for moment in history
    ]
