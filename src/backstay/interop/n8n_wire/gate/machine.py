"""Commands and replies of the lock that n8n's Redis nodes use: a counter, and the holder's identity as JSON.

The client that creates the counter holds the lock. `lua/*.lua` implement the commands, because the keys exist only in
Redis (`backstay.interop.n8n_wire.keys` defines them). A third key, which only Backstay uses, holds tombstones: the ids
of withdrawn attempts to take the lock (tickets). The scripts refuse these tickets for some seconds, while a delayed
copy of their `Take` may still arrive. Times are µs of the server's clock.
"""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec import Struct

from backstay.engine.base import Command, Expired, Micros, Record, Room, Transition
from backstay.errors import ConfigError
from backstay.interop.n8n_wire import keys


class StoredIdentity(Struct, frozen=True, array_like=True):
    """The holder's identity, which is stored beside the counter. `known`: an identity is stored and
    can be read.
    """

    known: bool
    lock_id: str
    workflow_id: str
    workflow_name: str
    execution_id: str
    locked_at: str
    #: The remaining TTL of the counter in milliseconds; -1: no TTL, because the client that created it crashed before
    #: it set one; -2: there is no counter.
    left: int
    #: Whether the identity's key exists, readable or not.
    written: bool
    #: Whom a server granted the lock over HTTP: the owner tag (`Take.identity`); empty if no server granted it.
    owner_tag: str = ""


class Take(Command, frozen=True, array_like=True):
    """Take the lock if the counter is absent. It never changes another holder's keys."""

    ticket: str
    lock_id: str
    #: The identity as JSON, without `locked_at` and the closing brace: the script adds the server's time.
    identity: str
    #: The TTL of both keys in milliseconds.
    ttl: int
    #: True: an earlier copy of this command may have arrived, so a lock that the caller already holds is granted again.
    is_resend: bool
    #: The hash of an identity that has had no counter for SETTLE seconds (flows.py). Then its client must have crashed,
    #: so this command may replace the identity. Empty: replace none.
    replaces: str


class Renew(Command, frozen=True, array_like=True):
    """Extend the lock if this lock_id holds it. It never revives a lost lock."""

    lock_id: str
    ttl: int
    #: Extend it only if the identity has this owner tag; empty: whatever tag it has.
    owner_tag: str = ""


class Release(Command, frozen=True, array_like=True):
    """Delete counter and identity if the identity has this lock_id, else nothing."""

    lock_id: str
    #: The ticket of the Take, whose delayed copies are refused until `gone_until`; empty and 0: none are in flight.
    ticket: str
    gone_until: Micros
    #: Delete them only if the identity has this owner tag; empty: whatever tag it has.
    owner_tag: str = ""

    wakes_waiters: ClassVar[bool] = True


class Withdraw(Command, frozen=True, array_like=True):
    """Undo a `Take` whose outcome is unknown, and refuse its delayed copies until `gone_until`."""

    ticket: str
    lock_id: str
    identity: str
    gone_until: Micros


class Evict(Command, frozen=True, array_like=True):
    """Delete counter and identity if the identity has this execution_id."""

    execution_id: str
    #: Delete them only if the identity has this owner tag; empty: whatever tag it has.
    owner_tag: str = ""


class ForceRelease(Command, frozen=True, array_like=True):
    """Delete counter and identity of any holder."""


class Inspect(Command, frozen=True, array_like=True):
    """Read the counter and the identity. Changes nothing."""


class Granted(Struct, frozen=True, array_like=True, tag="granted"):
    """The caller holds the lock."""

    count: int
    locked_at: str
    until: Micros


class Busy(Struct, frozen=True, array_like=True, tag="busy"):
    """Another client holds the lock."""

    count: int
    owner: StoredIdentity


class HalfReleased(Struct, frozen=True, array_like=True, tag="leaving"):
    """Not taken: there is an identity without a counter. Its holder is deleting counter and identity one after the
    other, or crashed between the two. `identity_hash`: the hash of the identity.
    """

    identity_hash: str
    owner: StoredIdentity


class Renewed(Struct, frozen=True, array_like=True, tag="renewed"):
    """The lock is extended."""

    until: Micros


class Lost(Struct, frozen=True, array_like=True, tag="lost"):
    """Not renewed: the lock_id does not hold the lock."""

    count: int
    owner: StoredIdentity


class Released(Struct, frozen=True, array_like=True, tag="released"):
    """The caller held the lock, and counter and identity are deleted."""


class Absent(Struct, frozen=True, array_like=True, tag="absent"):
    """Nothing to release."""


class Foreign(Struct, frozen=True, array_like=True, tag="foreign"):
    """Not released: the identity has another lock_id."""

    owner: StoredIdentity


class Removed(Struct, frozen=True, array_like=True, tag="removed"):
    """Counter and identity are deleted. `was`: the value of the counter; 0 if there was none."""

    was: int
    owner: StoredIdentity


class Kept(Struct, frozen=True, array_like=True, tag="kept"):
    """The reply to `Evict` if nothing was deleted: the lock is free, another execution holds it, or the holder has no
    readable identity. In the last case `count` (the counter) is above 0 and `owner.known` is False.
    """

    count: int
    owner: StoredIdentity


class Inspected(Struct, frozen=True, array_like=True, tag="seen"):
    """The counter and the identity at `now`."""

    now: Micros
    count: int
    owner: StoredIdentity


Reply = (
    Granted | Busy | HalfReleased | Renewed | Lost | Released | Absent | Foreign | Removed | Kept | Inspected | Expired
)


def lock_keys(namespace: str, scope: str) -> tuple[str, ...]:
    """Return the keys of the counter, the identity and the tombstones. They are in one Cluster slot if the scope has a
    hash tag.
    """
    tag = keys.hash_tag(scope)
    gone = f"{namespace}:n8n-gone:{{{tag}}}:{scope}" if tag else f"{namespace}:n8n-gone:{scope}"
    return (keys.lock_key(scope), keys.meta_key(scope), gone)


def step(_state: Record | None, _command: Any, _now: Micros) -> Transition[Record]:
    """Refuse engines other than Redis: the Lua scripts are the only implementation."""
    raise ConfigError('wire="n8n" needs Redis, the only store that n8n\'s nodes use')


WIRE: Room[Record] = Room(
    "n8n-lock",
    step=step,
    state=Record,
    version=1,
    replies=Reply,
    package="backstay.interop.n8n_wire.gate",
    build_keys=lock_keys,
    keys=3,
)
