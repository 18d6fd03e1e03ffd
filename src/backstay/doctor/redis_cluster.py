"""Check a Redis Cluster: every master, every replica, and whether all slots are served."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from backstay.doctor.cluster_view import ClusterNode, find_unserved, format_ranges, parse_nodes, parse_slots
from backstay.doctor.finding import OK, PROBLEM, WARNING, Finding
from backstay.doctor.redis import describe_unreachable
from backstay.doctor.redis_fleet import Fleet, RedisNode
from backstay.doctor.redis_server import Clock, Server
from backstay.engine.redis.address import HostPort
from backstay.engine.redis.link.protocol import ErrorReply
from backstay.engine.redis.topology.cluster import ClusterEngine
from backstay.engine.redis.topology.slots import slot_of
from backstay.errors import EngineError


def where(engine: ClusterEngine) -> str:
    return str(engine.seeds)


def diagnose(engine: ClusterEngine, clock: Clock) -> Iterator[Finding]:
    """Read the topology first, then check every node and the Cluster as a whole."""
    unreachable: dict[HostPort, EngineError] = {}
    source = _find_healthy_node(engine, clock, unreachable)
    if source is None:
        yield from map(describe_unreachable, unreachable.values())
        return
    try:
        entries, trouble = _read_topology(source)
    except EngineError as error:
        entries, trouble = [], [describe_unreachable(error)]
    finally:
        source.link.close()
    yield from trouble
    if not entries:
        return
    named = [entry for entry in entries if entry.has_address]
    for place, why in unreachable.items():
        if place not in {entry.place for entry in named}:
            yield replace(
                describe_unreachable(why), level=WARNING, advice="the URL names this node: start it, or name another"
            )
    places = {entry.id: entry.place for entry in named}
    nodes = {
        entry.id: RedisNode(entry.place, places.get(entry.master), bool(entry.master or entry.slots)) for entry in named
    }
    fleet = Fleet(list(nodes.values()))
    try:
        yield from fleet.reach(engine, clock, engine.seeds.node_address)
        for entry in named:
            server = nodes[entry.id].server
            if server is not None and entry.slots:
                server.tag = _find_tag(entry)
        yield from _check_addresses(entries)
        yield from _check_slots(entries)
        yield from fleet.compare(fleet.list_responding(), _check_state)
        yield from fleet.check_each(fleet.list_masters(), _check_migrations)
        yield from _check_replicas(fleet)
        yield from fleet.diagnose()
    finally:
        fleet.close()


def _find_healthy_node(engine: ClusterEngine, clock: Clock, unreachable: dict[HostPort, EngineError]) -> Server | None:
    """Connect to the nodes of the URL in turn, and return the first one that reports the Cluster as ok. If none does,
    return the last node that responds; None if no node responds. Nodes without a response are added to `unreachable`.
    """
    found: Server | None = None
    for place in engine.seeds.hosts:
        try:
            server = Server(engine, clock, engine.seeds.node_address(place))
            whole = b"cluster_state:ok" in _bytes(server.call("CLUSTER", "INFO"))
        except EngineError as error:
            unreachable[place] = error
            continue
        if found is not None:
            found.link.close()
        found = server
        if whole:
            break
    return found


def _read_topology(source: Server) -> tuple[list[ClusterNode], list[Finding]]:
    """Return the nodes that the node `source` reports, and findings if it does not permit reading them."""
    address = source.link.address
    nodes = source.call("CLUSTER", "NODES")
    if isinstance(nodes, bytes):
        return parse_nodes(nodes, address), []
    slots = source.call("CLUSTER", "SLOTS")
    if isinstance(slots, ErrorReply):
        what = f"{address} does not report its slots: {slots}"
        advice = "the URL of a single server is redis://, without +cluster; the user needs +cluster|slots"
        return [], [Finding(PROBLEM, "reach", what, advice)]
    advice = "nodes that are down are not listed: permit it to the doctor's user (ACL +cluster|nodes)"
    return parse_slots(slots, address), [Finding(WARNING, "nodes", "this user may not run CLUSTER NODES", advice)]


def _bytes(reply: object) -> bytes:
    return reply if isinstance(reply, bytes) else b""


def _check_addresses(entries: list[ClusterNode]) -> Iterator[Finding]:
    for entry in entries:
        if not entry.has_address:
            what = f"node {entry.id[:8]} has no address that the other nodes know"
            yield Finding(WARNING, "nodes", what, "join it again (CLUSTER MEET), or remove it (CLUSTER FORGET)")


def _find_tag(entry: ClusterNode) -> str:
    """Return a hash tag whose slot this node serves, for a key that the check of scripts writes on this node."""
    return next(tag for tag in map(str, count()) if any(slot_of(tag.encode()) in slots for slots in entry.slots))


def _check_slots(entries: list[ClusterNode]) -> Iterator[Finding]:
    if gaps := find_unserved(entries):
        advice = "names in these slots cannot be locked: start the missing masters, or redis-cli --cluster fix"
        yield Finding(PROBLEM, "slots", f"slots {format_ranges(gaps)} are not served", advice)
    else:
        served = sum(bool(entry.slots) for entry in entries)
        yield Finding(OK, "slots", f"all slots are served, by {served} masters")


def _check_state(server: Server) -> Iterator[Finding]:
    """Check a node's own view of the Cluster: a node that is cut off from the others reports the Cluster as down."""
    info = _bytes(server.call("CLUSTER", "INFO"))
    if b"cluster_state:fail" in info:
        advice = "it refuses commands (CLUSTERDOWN): check the slots and the network between the nodes"
        yield Finding(PROBLEM, "state", "cluster_state is fail", advice)
    elif info:
        yield Finding(OK, "state", "cluster_state is ok")
    if server.setting("cluster-require-full-coverage") == "yes":
        advice = "one lost master blocks all names, not only its own: CONFIG SET cluster-require-full-coverage no"
        yield Finding(OK, "coverage", "cluster-require-full-coverage is yes", advice)


def _check_migrations(server: Server) -> Iterator[Finding]:
    entries = parse_nodes(_bytes(server.call("CLUSTER", "NODES")), server.link.address)
    for slot in sorted(slot for entry in entries for slot in entry.moving):
        advice = "its commands are redirected (ASK); if no migration is running, finish it: redis-cli --cluster fix"
        yield Finding(WARNING, "slots", f"slot {slot} is being migrated", advice)


def _check_replicas(fleet: Fleet) -> Iterator[Finding]:
    have = {master: fleet.count_followers(master) for master in fleet.list_masters()}
    if not have:
        return
    most = max(have.values())
    for master, number in have.items():
        if not number:
            advice = "its names cannot be locked while it is down, and are lost with its disk: add a replica"
            yield Finding(WARNING, "replicas", f"master {master.place} has no replica that follows it", advice)
        elif number < most:
            what = f"master {master.place} has {number} replicas that follow it, others {most}"
            yield Finding(WARNING, "replicas", what, "start the missing ones, or move one there (CLUSTER REPLICATE)")
    if most and set(have.values()) == {most}:
        yield Finding(OK, "replicas", f"each of {len(have)} masters has {most} replica{'s' * (most != 1)}")
