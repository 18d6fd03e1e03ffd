"""What a node of a Cluster says about all of them: CLUSTER NODES, or what CLUSTER SLOTS tells to those who may not."""

from __future__ import annotations

from typing import Any, NamedTuple

from backstay.engine.redis.address import Address, Place
from backstay.engine.redis.topology.slots import SLOTS


class Entry(NamedTuple):
    """A node in another's eyes."""

    id: str
    place: Place
    flags: frozenset[str] = frozenset()
    #: The id of the one that it follows; empty for a master.
    master: str = ""
    slots: tuple[range, ...] = ()
    #: Slots that are half here, half elsewhere. Each node tells its own only.
    moving: tuple[int, ...] = ()

    @property
    def failed(self) -> bool:
        return "fail" in self.flags

    @property
    def named(self) -> bool:
        """Whether anybody could go there."""
        return not self.flags & {"noaddr", "handshake"} and self.place.port != 0


def read_nodes(reply: bytes, asked: Address) -> list[Entry]:
    """Take CLUSTER NODES apart. With TLS a name is worth more than a number: certificates have names."""
    entries: list[Entry] = []
    for line in reply.decode(errors="replace").splitlines():
        if not line.strip():
            continue
        name, where, flags, master, _, _, _, _, *slots = line.split(" ")
        where, *more = where.split(",")
        host, _, port = where.partition("@")[0].rpartition(":")
        if asked.tls and more and more[0] and "=" not in more[0]:
            host = more[0]
        ranges = [part for part in slots if part and not part.startswith("[")]
        moving = [part[1:].partition("-")[0] for part in slots if part.startswith("[")]
        entries.append(
            Entry(
                name,
                Place(host or asked.host, int(port)),
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


def read_slots(reply: list[Any], asked: Address) -> list[Entry]:
    """The same from CLUSTER SLOTS, which names nobody who is down or serves nothing."""
    entries: dict[str, Entry] = {}
    for first, last, *nodes in reply:
        leader = ""
        for host, port, name, *_ in nodes:
            known = host.decode() if host else ""
            place = Place(asked.host if known in ("", "?") else known, port)
            entry = entries.get(name.decode()) or Entry(name.decode(), place, master=leader)
            if not leader:
                leader = entry.id
                entry = entry._replace(slots=(*entry.slots, range(first, last + 1)))
            entries[entry.id] = entry
    return list(entries.values())


def unserved(entries: list[Entry]) -> list[range]:
    """The slots of which no node in good standing says that they are its own."""
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


def show(gaps: list[range]) -> str:
    return ", ".join(f"{gap.start}-{gap.stop - 1}" if len(gap) > 1 else str(gap.start) for gap in gaps)
