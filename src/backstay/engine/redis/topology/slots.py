"""Which node of a Cluster serves a key: slots, the map of them, and the replies that correct it. No I/O here."""

from __future__ import annotations

import binascii
from typing import Any, NamedTuple

from backstay.engine.redis.address import Address, Place
from backstay.engine.redis.link.protocol import Refusal, pack, refused
from backstay.errors import EngineRefused, EngineUnavailable

SLOTS = 16384
WHOLE_MAP = pack("CLUSTER", "SLOTS")
#: Refusals that a failover or a migration brings, and that its end takes away. Nothing was done.
HEALS = {"CLUSTERDOWN", "TRYAGAIN", "LOADING", "MASTERDOWN"}
#: Between two looks at the map while a slot has no master; at random from half of it.
PAUSE = 0.1
#: A command that is sent on more often than this runs in circles.
HOPS = 8


def slot_of(key: bytes) -> int:
    """CRC16 of the hash tag: what stands between the first brace and the next closing one, or the whole key."""
    start = key.find(b"{") + 1
    if start:
        end = key.find(b"}", start)
        if end > start:
            key = key[start:end]
    return binascii.crc_hqx(key, 0) % SLOTS


class Redirect(NamedTuple):
    """Where a node sends us. `once`: for this one command (ASK), the map stays as it is (else MOVED)."""

    slot: int
    place: Place
    once: bool


def redirect(refusal: Refusal, asked: Place) -> Redirect | None:
    """What MOVED and ASK say; None: another refusal."""
    if refusal.code not in ("MOVED", "ASK"):
        return None
    _, slot, where = str(refusal).split(" ")[:3]
    host, _, port = where.rpartition(":")
    return Redirect(int(slot), Place(host or asked.host, int(port)), refusal.code == "ASK")


class SlotMap:
    """Who serves which slot, as far as is known. Read by many threads, replaced as a whole, corrected slot by slot."""

    def __init__(self) -> None:
        self._slots: list[Place | None] = [None] * SLOTS
        self.masters: tuple[Place, ...] = ()
        self.replicas: tuple[Place, ...] = ()

    def serving(self, slot: int) -> Place | None:
        return self._slots[slot]

    def moved(self, to: Redirect) -> None:
        self._slots[to.slot] = to.place
        if to.place not in self.masters:
            self.masters = (*self.masters, to.place)

    def learn(self, reply: Any, address: Address) -> None:
        """Take over what CLUSTER SLOTS answered."""
        if isinstance(reply, Refusal):
            if "cluster support disabled" in str(reply):
                raise EngineRefused(f"{address} is not a Cluster node; use redis:// for a single server")
            raise refused(reply, address)
        slots: list[Place | None] = [None] * SLOTS
        masters: dict[Place, None] = {}
        replicas: dict[Place, None] = {}
        for first, last, *nodes in reply:
            places = [_place(node, address) for node in nodes]
            slots[first : last + 1] = [places[0]] * (last + 1 - first)
            masters[places[0]] = None
            replicas.update(dict.fromkeys(places[1:]))
        if not masters:
            raise EngineUnavailable(f"{address} knows of no node that serves anything; the Cluster is not set up")
        self._slots, self.masters, self.replicas = slots, tuple(masters), tuple(replicas)


def _place(node: list[Any], asked: Address) -> Place:
    """A node that does not know its own name answers where we asked it."""
    host = node[0].decode() if node[0] else ""
    return Place(asked.host if host in ("", "?") else host, node[1])
