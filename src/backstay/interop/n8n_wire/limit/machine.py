"""Commands and replies of the rate limit of n8n's rate_limit_check. It has one counter per time window. Every hit
counts, even a denied one.

The scripts in `lua/` implement the commands, because the keys exist only in Redis. The number of the window is part of
the key (`backstay.interop.n8n_wire.keys`), so the caller computes this number. If it is not the number of the current
window by the server's clock, the script replies `expired`, and the caller corrects its clock.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from backstay.engine.base import Command, Expired, Micros, Record, Room, Transition
from backstay.errors import ConfigError


class Hit(Command, frozen=True, array_like=True):
    """Count a hit. Not idempotent: a second copy counts again."""

    #: The length of the window in milliseconds. `bucket`: its number since the epoch.
    window: int
    bucket: int
    cost: int


class Peek(Command, frozen=True, array_like=True):
    """Read the counter of a window."""

    window: int
    bucket: int


class Reset(Command, frozen=True, array_like=True):
    """Delete the counter of a window."""

    window: int
    bucket: int


class Counted(Struct, frozen=True, array_like=True, tag="counted"):
    """The counter of the window at `now`, after the command."""

    now: Micros
    count: int


Reply = Counted | Expired


def step(_state: Record | None, _command: Any, _now: Micros) -> Transition[Record]:
    """Refuse engines other than Redis: the Lua scripts are the only implementation."""
    raise ConfigError("wire='n8n' needs Redis, the only store that n8n's nodes use")


def window_keys(_namespace: str, key: str) -> tuple[str, ...]:
    return (key,)


WIRE: Room[Record] = Room(
    "n8n-limit",
    step=step,
    state=Record,
    version=1,
    replies=Reply,
    package="backstay.interop.n8n_wire.limit",
    build_keys=window_keys,
)
