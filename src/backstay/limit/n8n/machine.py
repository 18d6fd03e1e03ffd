"""The limit that n8n's rate_limit_check counts: a counter for each window, which every hit moves, admitted or not.

`lua/*.lua` are the whole meaning, since the keys live in Redis and nowhere else. The key of a window is in
its name (`backstay.interop.n8n_wire.keys`), so a caller says which one it means, and the server says when that is over:
the window is the server's, whatever the caller's clock.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from backstay.engine.base import Command, Expired, Micros, Record, Room, Step
from backstay.errors import ConfigError


class Hit(Command, frozen=True, array_like=True):
    """Count. A second copy counts again, as a second hit would."""

    #: Milliseconds.
    window: int
    bucket: int
    cost: int


class Peek(Command, frozen=True, array_like=True):
    """How much is counted."""

    window: int
    bucket: int


class Reset(Command, frozen=True, array_like=True):
    """Forget the window."""

    window: int
    bucket: int


class Counted(Struct, frozen=True, array_like=True, tag="counted"):
    now: Micros
    count: int


Reply = Counted | Expired


def step(_state: Record | None, _command: Any, _now: Micros) -> Step[Record]:
    """There is nothing to decide outside Redis."""
    raise ConfigError("wire='n8n' is for Redis: n8n's nodes speak with nothing else")


def places(_namespace: str, key: str) -> tuple[str, ...]:
    return (key,)


WIRE: Room[Record] = Room(
    "n8n-limit", step=step, state=Record, version=1, replies=Reply, package="backstay.limit.n8n", places=places
)
