"""Parse one node's view of a Redis Cluster: CLUSTER NODES, or CLUSTER SLOTS where the former is not permitted."""

from __future__ import annotations

from typing import Any, NamedTuple

from backstay.engine.redis.address import Address, HostPort
from backstay.engine.redis.topology.slots import SLOTS


class ClusterNode(NamedTuple):
    """A node of a Cluster, as another node reports it."""

    id: str
    place: HostPort
    flags: frozenset[str] = frozenset()
    #: The id of the master that this node replicates; empty if the node is a master.
    master: str = ""
    slots: tuple[range, ...] = ()
    #: Slots that are being migrated. A node reports only its own migrations.
    moving: tuple[int, ...] = ()

    @property
    def failed(self) -> bool:
        return "fail" in self.flags

    @property
    def has_address(self) -> bool:
        """Whether clients can connect to the node."""
        return not self.flags & {"noaddr", "handshake"} and self.place.port != 0


def parse_nodes(reply: bytes, source: Address) -> list[ClusterNode]:
    """Parse the reply of the node at `source` to CLUSTER NODES. With TLS, host names are preferred to IP addresses,
    because certificates contain names.
    """
    entries: list[ClusterNode] = []
    for line in reply.decode(errors="replace").splitlines():
        if not line.strip():
            continue
        name, where, flags, master, _, _, _, _, *slots = line.split(" ")
        where, *more = where.split(",")
        host, _, port = where.partition("@")[0].rpartition(":")
        if source.tls and more and more[0] and "=" not in more[0]:
            host = more[0]
        ranges = [part for part in slots if part and not part.startswith("[")]
        moving = [part[1:].partition("-")[0] for part in slots if part.startswith("[")]
        entries.append(
            ClusterNode(
                name,
                HostPort(host or source.host, int(port)),
                frozenset(flags.split(",")),
                "" if master == "-" else master,
                tuple(_range(part) for part in ranges),
                tuple(int(slot) for slot in moving),
            )
        )
    return entries


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def parse_slots(reply: list[Any], source: Address) -> list[ClusterNode]:
    """Parse the reply of the node at `source` to CLUSTER SLOTS, which omits nodes that are down or serve no slots."""
    entries: dict[str, ClusterNode] = {}
    for first, last, *nodes in reply:
        leader = ""
        for host, port, name, *_ in nodes:
            known = host.decode() if host else ""
            place = HostPort(source.host if known in ("", "?") else known, port)
            entry = entries.get(name.decode()) or ClusterNode(name.decode(), place, master=leader)
            if not leader:
                leader = entry.id
                entry = entry._replace(slots=(*entry.slots, range(first, last + 1)))
            entries[entry.id] = entry
    return list(entries.values())


def find_unserved(entries: list[ClusterNode]) -> list[range]:
    """Return the slots that no healthy node serves, as ranges."""
    served: set[int] = set()
    for entry in entries:
        if not entry.failed:
            for slots in entry.slots:
                served.update(slots)
    gaps: list[range] = []
    for slot in range(SLOTS):
        if slot in served:
            continue
        if gaps and gaps[-1].stop == slot:
            gaps[-1] = range(gaps[-1].start, slot + 1)
        else:
            gaps.append(range(slot, slot + 1))
    return gaps


def format_ranges(gaps: list[range]) -> str:
    return ", ".join(f"{gap.start}-{gap.stop - 1}" if len(gap) > 1 else str(gap.start) for gap in gaps)
