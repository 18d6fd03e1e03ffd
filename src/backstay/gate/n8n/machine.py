"""The lock that n8n's own Redis nodes can take: a counter, and beside it the holder's identity as JSON.

Whoever makes the counter holds the lock; `lua/*.lua` are the whole meaning, since the keys live in Redis
and nowhere else (`backstay.interop.n8n_wire.keys` has their shapes). A third key, of Backstay's own, remembers for some
seconds the tickets that gave up while a copy of their `Take` may still be under way. Times are µs of the server's
clock.
"""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec import Struct

from backstay.engine.base import Command, Expired, Micros, Record, Room, Step
from backstay.errors import ConfigError
from backstay.interop.n8n_wire import keys


class Owner(Struct, frozen=True, array_like=True):
    """What stands beside a counter. `known` is False where nothing does, or nothing that can be read."""

    known: bool
    lock_id: str
    workflow_id: str
    workflow_name: str
    execution_id: str
    locked_at: str
    #: Milliseconds that the counter lives on; -1: for ever, because whoever made it died before it said how long.
    left: int
    #: Whether anything stands there, also what cannot be read.
    written: bool


class Take(Command, frozen=True, array_like=True):
    """Take it if the counter is absent. Touches nothing of somebody else's."""

    ticket: str
    lock_id: str
    #: The identity as JSON, without `locked_at` and the closing brace: the server says when.
    identity: str
    #: Milliseconds.
    ttl: int
    #: An earlier copy may have arrived: what is ours already is granted again.
    again: bool
    #: The trace of an identity without a counter that has been there for long enough: nobody is at it any more.
    over: str


class Renew(Command, frozen=True, array_like=True):
    """Extend what this lock_id holds. Never brings it back."""

    lock_id: str
    ttl: int


class Release(Command, frozen=True, array_like=True):
    """Delete both keys if the identity says this lock_id, and nothing otherwise."""

    lock_id: str
    #: The taker's ticket, which must not act any more until `gone_until`; empty and 0: none.
    ticket: str
    gone_until: Micros

    hands_over: ClassVar[bool] = True


class Withdraw(Command, frozen=True, array_like=True):
    """Give up a `Take` whose outcome is unknown."""

    ticket: str
    lock_id: str
    identity: str
    gone_until: Micros


class Evict(Command, frozen=True, array_like=True):
    """Delete both keys if the identity says this execution."""

    execution_id: str


class ForceRelease(Command, frozen=True, array_like=True):
    """Delete both keys, whoever's they are."""


class Look(Command, frozen=True, array_like=True):
    """What is there."""


class Granted(Struct, frozen=True, array_like=True, tag="granted"):
    count: int
    locked_at: str
    until: Micros


class Busy(Struct, frozen=True, array_like=True, tag="busy"):
    count: int
    owner: Owner


class Leaving(Struct, frozen=True, array_like=True, tag="leaving"):
    """No counter, but an identity: its holder is giving it back in two steps, or died between them."""

    trace: str
    owner: Owner


class Renewed(Struct, frozen=True, array_like=True, tag="renewed"):
    until: Micros


class Lost(Struct, frozen=True, array_like=True, tag="lost"):
    count: int
    owner: Owner


class Released(Struct, frozen=True, array_like=True, tag="released"):
    pass


class Absent(Struct, frozen=True, array_like=True, tag="absent"):
    pass


class Foreign(Struct, frozen=True, array_like=True, tag="foreign"):
    owner: Owner


class Removed(Struct, frozen=True, array_like=True, tag="removed"):
    """`was`: the counter that was deleted with its identity; 0 when there was none."""

    was: int
    owner: Owner


class Kept(Struct, frozen=True, array_like=True, tag="kept"):
    """Not that execution's. `count` above 0 and nobody known: a counter without an identity."""

    count: int
    owner: Owner


class Seen(Struct, frozen=True, array_like=True, tag="seen"):
    now: Micros
    count: int
    owner: Owner


Reply = Granted | Busy | Leaving | Renewed | Lost | Released | Absent | Foreign | Removed | Kept | Seen | Expired


def places(namespace: str, scope: str) -> tuple[str, ...]:
    """The counter, the identity, and the tickets that gave up: in one slot where the scope has a hash tag."""
    tag = keys.hash_tag(scope)
    gone = f"{namespace}:n8n-gone:{{{tag}}}:{scope}" if tag else f"{namespace}:n8n-gone:{scope}"
    return (keys.lock_key(scope), keys.meta_key(scope), gone)


def step(_state: Record | None, _command: Any, _now: Micros) -> Step[Record]:
    """There is nothing to decide outside Redis."""
    raise ConfigError('wire="n8n" is for Redis: n8n\'s nodes speak with nothing else')


WIRE: Room[Record] = Room(
    "n8n-lock",
    step=step,
    state=Record,
    version=1,
    replies=Reply,
    package="backstay.gate.n8n",
    places=places,
    keys=3,
)
