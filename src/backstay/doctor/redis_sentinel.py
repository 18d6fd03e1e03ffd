"""Check Redis behind Sentinels: the Sentinels, the master that they name, and its replicas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from backstay.doctor.finding import OK, PROBLEM, WARNING, Finding
from backstay.doctor.redis import describe_unreachable
from backstay.doctor.redis_fleet import Fleet, RedisNode
from backstay.doctor.redis_server import Clock
from backstay.engine.redis.address import HostPort
from backstay.engine.redis.link.blocking_link import BlockingLink
from backstay.engine.redis.link.protocol import ErrorReply
from backstay.engine.redis.topology.sentinel import SentinelEngine, ask_sentinel, parse_fields
from backstay.errors import EngineError, EngineRefused

#: With fewer Sentinels, the loss of one leaves no majority to elect a new master.
ENOUGH = 3

Fields = dict[str, str]


@dataclass(frozen=True, slots=True)
class SentinelView:
    """The monitored servers and the other Sentinels, as one Sentinel reports them."""

    place: HostPort
    id: str
    master: Fields
    others: list[Fields]
    replicas: list[Fields]
    #: Why a failover is impossible now; empty if it is possible.
    no_quorum: str


def where(engine: SentinelEngine) -> str:
    return str(engine.seeds)


def diagnose(engine: SentinelEngine, clock: Clock) -> Iterator[Finding]:
    """Check the Sentinels first, then the servers that they monitor."""
    views: list[SentinelView] = []
    unreachable: dict[HostPort, EngineError] = {}
    pending = list(engine.seeds.hosts)
    visited: set[HostPort] = set()
    while pending:
        place = pending.pop(0)
        visited.add(place)
        try:
            view = _query_sentinel(engine, place)
        except EngineError as error:
            unreachable[place] = error
            continue
        if view.id in {other.id for other in views}:
            continue  # already known under another address
        views.append(view)
        known = {other.id for other in views}
        pending += [
            _place(other) for other in view.others if other["runid"] not in known and _place(other) not in visited
        ]
        pending = list(dict.fromkeys(pending))
    yield from _check_sentinels(engine, views, unreachable)
    if not views:
        return
    yield from _check_quorum(views)
    yield from _check_agreement(views)
    fleet = Fleet(_list_nodes(views))
    try:
        yield from fleet.reach(engine, clock, engine.seeds.node_address)
        yield from _check_replicas(fleet)
        yield from fleet.diagnose()
    finally:
        fleet.close()


def _query_sentinel(engine: SentinelEngine, place: HostPort) -> SentinelView:
    service, address = engine.seeds.service, engine.seeds.sentinel_address(place)
    commands = [*([verb, service] for verb in ("MASTER", "SENTINELS", "REPLICAS", "CKQUORUM")), ["MYID"]]
    handshake = ask_sentinel(address, *(["SENTINEL", *command] for command in commands))
    link = BlockingLink(address, engine.client_name, engine.sentinel_tls, handshake=handshake)
    link.close()
    master, others, replicas, quorum, own = link.handshake_result
    if isinstance(master, ErrorReply):
        if "No such master" in str(master):
            raise EngineRefused(f"the Sentinel at {place} knows no master {service!r}")
        raise EngineRefused(f"the Sentinel at {place} refused: {master}")
    return SentinelView(
        place,
        own.decode() if isinstance(own, bytes) else str(place),
        parse_fields(master),
        [] if isinstance(others, ErrorReply) else [parse_fields(one) for one in others],
        [] if isinstance(replicas, ErrorReply) else [parse_fields(one) for one in replicas],
        str(quorum) if isinstance(quorum, ErrorReply) and quorum.code == "NOQUORUM" else "",
    )


def _place(fields: Fields) -> HostPort:
    return HostPort(fields["ip"], int(fields["port"]))


def _check_sentinels(
    engine: SentinelEngine, views: list[SentinelView], unreachable: dict[HostPort, EngineError]
) -> Iterator[Finding]:
    """Check how many Sentinels respond, of those in the URL and those that other Sentinels report."""
    for error in unreachable.values():
        finding = describe_unreachable(error)
        level = WARNING if views else PROBLEM
        yield replace(finding, level=level, topic="sentinels", what=f"a Sentinel does not respond: {finding.what}")
    if not views:
        return
    known = {view.id for view in views} | {other["runid"] for view in views for other in view.others}
    up, whole = len(views), len(known)
    what = f"{up} of {whole} Sentinels answer"
    if up <= whole // 2:
        advice = "electing a new master needs a majority: start the others"
        yield Finding(PROBLEM, "sentinels", what, advice)
    else:
        yield Finding(OK, "sentinels", what)
    if whole < ENOUGH:
        advice = f"run {ENOUGH} on machines that fail independently: with fewer, the loss of one prevents failovers"
        yield Finding(WARNING, "sentinels", f"there are only {whole} Sentinels", advice)
    if len(engine.seeds.hosts) == 1 and whole > 1:
        advice = "while it is down, new clients find no Sentinel: name all of them, host1:26379,host2:26379/…"
        yield Finding(WARNING, "sentinels", f"the URL names one Sentinel of {whole}", advice)


def _check_quorum(views: list[SentinelView]) -> Iterator[Finding]:
    for view in views:
        if view.no_quorum:
            advice = "a failover is impossible: start Sentinels, or repair the network between them"
            yield Finding(PROBLEM, "quorum", f"{view.place}: {view.no_quorum}", advice)
    wanted = {view.master.get("quorum", "?") for view in views}
    if len(wanted) > 1:
        claims = ", ".join(f"{view.place} wants {view.master.get('quorum', '?')}" for view in views)
        advice = "set the same value on all of them: SENTINEL SET … quorum"
        yield Finding(WARNING, "quorum", f"Sentinels disagree on the quorum: {claims}", advice)
    elif not any(view.no_quorum for view in views):
        yield Finding(OK, "quorum", f"{wanted.pop()} Sentinels must agree that the master is down, and enough are up")


def _check_agreement(views: list[SentinelView]) -> Iterator[Finding]:
    named = {_place(view.master) for view in views}
    if len(named) > 1:
        claims = "; ".join(f"{view.place} names {_place(view.master)}" for view in views)
        advice = "a failover may be in progress; if the finding persists: SENTINEL RESET on the outdated Sentinels"
        yield Finding(PROBLEM, "master", f"Sentinels disagree: {claims}", advice)
    for view in views:
        if down := {"s_down", "o_down"} & set(view.master.get("flags", "").split(",")):
            what = f"{view.place} reports the master {_place(view.master)} as down ({', '.join(sorted(down))})"
            yield Finding(PROBLEM, "master", what, "check whether it runs, and the network between the two")


def _list_nodes(views: list[SentinelView]) -> list[RedisNode]:
    """Return the master that most Sentinels name, and every replica that any of them reports."""
    named = [_place(view.master) for view in views]
    master = max(named, key=named.count)
    replicas = {_place(replica) for view in views for replica in view.replicas} | set(named)
    return [RedisNode(master), *(RedisNode(place, master) for place in sorted(replicas - {master}))]


def _check_replicas(fleet: Fleet) -> Iterator[Finding]:
    for master in fleet.list_masters():
        if not fleet.count_followers(master):
            what = f"master {master.place} has no replica that follows it"
            yield Finding(WARNING, "replicas", what, "no server can take over: start a replica (replicaof)")
