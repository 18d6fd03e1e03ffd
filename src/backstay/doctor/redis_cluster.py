"""A look at a Redis Cluster: every master and every replica, and whether together they serve all names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from backstay.doctor.cluster_view import Entry, read_nodes, read_slots, show, unserved
from backstay.doctor.finding import OK, PROBLEM, WARNING, Finding
from backstay.doctor.redis import unreached
from backstay.doctor.redis_fleet import Fleet, Node
from backstay.doctor.redis_server import Clock, Server
from backstay.engine.redis.address import Place
from backstay.engine.redis.link.protocol import Refusal
from backstay.engine.redis.topology.cluster import ClusterEngine
from backstay.engine.redis.topology.slots import slot_of
from backstay.errors import EngineError


def where(engine: ClusterEngine) -> str:
    return str(engine.seeds)


def diagnose(engine: ClusterEngine, clock: Clock) -> Iterator[Finding]:
    """The map first, then every node on it, then what they are together."""
    silent: dict[Place, EngineError] = {}
    guide = _guide(engine, clock, silent)
    if guide is None:
        yield from map(unreached, silent.values())
        return
    try:
        entries, trouble = _entries(guide)
    except EngineError as error:
        entries, trouble = [], [unreached(error)]
    finally:
        guide.link.close()
    yield from trouble
    if not entries:
        return
    named = [entry for entry in entries if entry.named]
    for place, why in silent.items():
        if place not in {entry.place for entry in named}:
            yield replace(unreached(why), level=WARNING, advice="the URL names it: start it, or name another")
    places = {entry.id: entry.place for entry in named}
    nodes = {
        entry.id: Node(entry.place, places.get(entry.master), bool(entry.master or entry.slots)) for entry in named
    }
    fleet = Fleet(list(nodes.values()))
    try:
        yield from fleet.reach(engine, clock, engine.seeds.at)
        for entry in named:
            server = nodes[entry.id].server
            if server is not None and entry.slots:
                server.tag = _tag_in(entry)
        yield from _nameless(entries)
        yield from _coverage(entries)
        yield from fleet.alike(fleet.answering(), _state)
        yield from fleet.each(fleet.masters(), _half_moved)
        yield from _replicas(fleet)
        yield from fleet.diagnose()
    finally:
        fleet.close()


def _guide(engine: ClusterEngine, clock: Clock, silent: dict[Place, EngineError]) -> Server | None:
    """Of the nodes that the URL names, one that sees the Cluster as whole, or else one that answers."""
    found: Server | None = None
    for place in engine.seeds.places:
        try:
            server = Server(engine, clock, engine.seeds.at(place))
            whole = b"cluster_state:ok" in _bytes(server.ask("CLUSTER", "INFO"))
        except EngineError as error:
            silent[place] = error
            continue
        if found is not None:
            found.link.close()
        found = server
        if whole:
            break
    return found


def _entries(guide: Server) -> tuple[list[Entry], list[Finding]]:
    """Who is there, in a node's words, and what is wrong with asking it."""
    address = guide.link.address
    nodes = guide.ask("CLUSTER", "NODES")
    if isinstance(nodes, bytes):
        return read_nodes(nodes, address), []
    slots = guide.ask("CLUSTER", "SLOTS")
    if isinstance(slots, Refusal):
        what = f"{address} does not tell who serves what: {slots}"
        advice = "a single server is redis://, without +cluster; a user needs +cluster|slots"
        return [], [Finding(PROBLEM, "reach", what, advice)]
    advice = "nodes that are down are not seen: let the doctor's user ask (ACL +cluster|nodes)"
    return read_slots(slots, address), [Finding(WARNING, "nodes", "CLUSTER NODES is not for this user", advice)]


def _bytes(reply: object) -> bytes:
    return reply if isinstance(reply, bytes) else b""


def _nameless(entries: list[Entry]) -> Iterator[Finding]:
    for entry in entries:
        if not entry.named:
            what = f"node {entry.id[:8]} has no address that others know"
            yield Finding(
                WARNING, "nodes", what, "let it meet the others (CLUSTER MEET), or forget it (CLUSTER FORGET)"
            )


def _tag_in(entry: Entry) -> str:
    """A hash tag of a slot that this node serves."""
    return next(tag for tag in map(str, count()) if any(slot_of(tag.encode()) in slots for slots in entry.slots))


def _coverage(entries: list[Entry]) -> Iterator[Finding]:
    if gaps := unserved(entries):
        advice = "names in these slots cannot be locked: start the missing masters, or redis-cli --cluster fix"
        yield Finding(PROBLEM, "slots", f"slots {show(gaps)} are not served", advice)
    else:
        served = sum(bool(entry.slots) for entry in entries)
        yield Finding(OK, "slots", f"all slots are served, by {served} masters")


def _state(server: Server) -> Iterator[Finding]:
    """What a node itself makes of the Cluster; one that is cut off sees it as down."""
    info = _bytes(server.ask("CLUSTER", "INFO"))
    if b"cluster_state:fail" in info:
        advice = "it refuses commands (CLUSTERDOWN): look at the slots, and at the network between the nodes"
        yield Finding(PROBLEM, "state", "cluster_state is fail", advice)
    elif info:
        yield Finding(OK, "state", "cluster_state is ok")
    if server.setting("cluster-require-full-coverage") == "yes":
        advice = "one lost master stops all names, not only its own: CONFIG SET cluster-require-full-coverage no"
        yield Finding(OK, "coverage", "cluster-require-full-coverage is yes", advice)


def _half_moved(server: Server) -> Iterator[Finding]:
    entries = read_nodes(_bytes(server.ask("CLUSTER", "NODES")), server.link.address)
    for slot in sorted(slot for entry in entries for slot in entry.moving):
        advice = "commands take a detour there; if nobody moves it now, finish it: redis-cli --cluster fix"
        yield Finding(WARNING, "slots", f"slot {slot} is half moved", advice)


def _replicas(fleet: Fleet) -> Iterator[Finding]:
    have = {master: fleet.followers(master) for master in fleet.masters()}
    if not have:
        return
    most = max(have.values())
    for master, number in have.items():
        if not number:
            advice = "its names cannot be locked while it is down, and are forgotten with its disk: give it a replica"
            yield Finding(WARNING, "replicas", f"master {master.place} has no replica that follows it", advice)
        elif number < most:
            what = f"master {master.place} has {number} replicas that follow it, others {most}"
            yield Finding(WARNING, "replicas", what, "start the missing ones, or move one there (CLUSTER REPLICATE)")
    if most and set(have.values()) == {most}:
        yield Finding(OK, "replicas", f"each of {len(have)} masters has {most} that follow{'s' * (most == 1)}")
