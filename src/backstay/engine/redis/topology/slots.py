"""The slot map of a Cluster: which node serves a key, and the redirects that correct the map. No I/O happens here."""

from __future__ import annotations

import binascii
from typing import Any, NamedTuple

from backstay.engine.redis.address import Address, HostPort
from backstay.engine.redis.link.protocol import ErrorReply, pack, translate_error
from backstay.errors import EngineRefused, EngineUnavailable

SLOTS = 16384
CLUSTER_SLOTS = pack("CLUSTER", "SLOTS")
#: The longest pause (seconds) between two map reloads while a slot has no master. The shortest is half of it.
PAUSE = 0.1
#: A command with more redirects than this is in a redirect loop.
MAX_REDIRECTS = 8


def slot_of(key: bytes) -> int:
    """Return the slot of a key: CRC16 of the hash tag (the text in the first pair of braces) or of the whole key."""
    start = key.find(b"{") + 1
    if start:
        end = key.find(b"}", start)
        if end > start:
            key = key[start:end]
    return binascii.crc_hqx(key, 0) % SLOTS


class Redirect(NamedTuple):
    """A MOVED or ASK reply. `is_ask`: the reply was ASK, which redirects this command only and leaves the slot map
    unchanged.
    """

    slot: int
    node: HostPort
    is_ask: bool


def parse_redirect(refusal: ErrorReply, asked: HostPort) -> Redirect | None:
    """Parse a MOVED or ASK reply of the node `asked`. Returns None for any other error reply."""
    if refusal.code not in ("MOVED", "ASK"):
        return None
    _, slot, where = str(refusal).split(" ")[:3]
    host, _, port = where.rpartition(":")
    return Redirect(int(slot), HostPort(host or asked.host, int(port)), refusal.code == "ASK")


class SlotMap:
    """Which node serves each slot, as far as known. Many threads read the map. The reply to CLUSTER SLOTS replaces it
    as a whole, and a MOVED reply corrects one slot.
    """

    def __init__(self) -> None:
        self._slots: list[HostPort | None] = [None] * SLOTS
        self.masters: tuple[HostPort, ...] = ()
        self.replicas: tuple[HostPort, ...] = ()

    def node_for(self, slot: int) -> HostPort | None:
        return self._slots[slot]

    def apply_redirect(self, to: Redirect) -> None:
        self._slots[to.slot] = to.node
        if to.node not in self.masters:
            self.masters = (*self.masters, to.node)

    def update(self, reply: Any, address: Address) -> None:
        """Replace the map with the reply to CLUSTER SLOTS."""
        if isinstance(reply, ErrorReply):
            if "cluster support disabled" in str(reply):
                raise EngineRefused(f"{address} is not a Cluster node; use redis:// for a single server")
            raise translate_error(reply, address)
        slots: list[HostPort | None] = [None] * SLOTS
        masters: dict[HostPort, None] = {}
        replicas: dict[HostPort, None] = {}
        for first, last, *nodes in reply:
            found = [_host_port(node, address) for node in nodes]
            slots[first : last + 1] = [found[0]] * (last + 1 - first)
            masters[found[0]] = None
            replicas.update(dict.fromkeys(found[1:]))
        if not masters:
            raise EngineUnavailable(f"{address} knows no node that serves a slot; the Cluster is not set up")
        self._slots, self.masters, self.replicas = slots, tuple(masters), tuple(replicas)


def _host_port(node: list[Any], asked: Address) -> HostPort:
    """Return a node's address from its entry in the CLUSTER SLOTS reply of the server `asked`. An entry without a host
    means the host of that server.
    """
    host = node[0].decode() if node[0] else ""
    return HostPort(asked.host if host in ("", "?") else host, node[1])
