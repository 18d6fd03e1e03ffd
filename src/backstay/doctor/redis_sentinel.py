"""A look at Redis behind Sentinels: the Sentinels themselves, the master that they name, and its replicas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from backstay.doctor.finding import OK, PROBLEM, WARNING, Finding
from backstay.doctor.redis import unreached
from backstay.doctor.redis_fleet import Fleet, Node
from backstay.doctor.redis_server import Clock
from backstay.engine.redis.address import Place
from backstay.engine.redis.link.blocking_link import BlockingLink
from backstay.engine.redis.link.protocol import Refusal
from backstay.engine.redis.topology.sentinel import SentinelEngine, ask_sentinel, fields_of
from backstay.errors import EngineError, EngineRefused

#: With fewer, the loss of one leaves no majority to agree on a new master.
ENOUGH = 3

Fields = dict[str, str]


@dataclass(frozen=True, slots=True)
class View:
    """What one Sentinel says."""

    place: Place
    id: str
    master: Fields
    others: list[Fields]
    replicas: list[Fields]
    #: What speaks against a failover now; empty: nothing.
    no_quorum: str


def where(engine: SentinelEngine) -> str:
    return str(engine.seeds)


def diagnose(engine: SentinelEngine, clock: Clock) -> Iterator[Finding]:
    """The Sentinels first, then the servers that they watch."""
    views: list[View] = []
    silent: dict[Place, EngineError] = {}
    waiting = list(engine.seeds.places)
    met: set[Place] = set()
    while waiting:
        place = waiting.pop(0)
        met.add(place)
        try:
            view = _ask(engine, place)
        except EngineError as error:
            silent[place] = error
            continue
        if view.id in {other.id for other in views}:
            continue  # known under another name
        views.append(view)
        known = {other.id for other in views}
        waiting += [_place(other) for other in view.others if other["runid"] not in known and _place(other) not in met]
        waiting = list(dict.fromkeys(waiting))
    yield from _sentinels(engine, views, silent)
    if not views:
        return
    yield from _quorum(views)
    yield from _agreement(views)
    fleet = Fleet(_nodes(views))
    try:
        yield from fleet.reach(engine, clock, engine.seeds.at)
        yield from _followed(fleet)
        yield from fleet.diagnose()
    finally:
        fleet.close()


def _ask(engine: SentinelEngine, place: Place) -> View:
    service, address = engine.seeds.service, engine.seeds.sentinel(place)
    questions = [*([verb, service] for verb in ("MASTER", "SENTINELS", "REPLICAS", "CKQUORUM")), ["MYID"]]
    talk = ask_sentinel(address, *(["SENTINEL", *question] for question in questions))
    link = BlockingLink(address, engine.client_name, engine.sentinel_tls, talk=talk)
    link.close()
    master, others, replicas, quorum, own = link.told
    if isinstance(master, Refusal):
        if "No such master" in str(master):
            raise EngineRefused(f"the Sentinel at {place} knows no master {service!r}")
        raise EngineRefused(f"the Sentinel at {place} refused: {master}")
    return View(
        place,
        own.decode() if isinstance(own, bytes) else str(place),
        fields_of(master),
        [] if isinstance(others, Refusal) else [fields_of(one) for one in others],
        [] if isinstance(replicas, Refusal) else [fields_of(one) for one in replicas],
        str(quorum) if isinstance(quorum, Refusal) and quorum.code == "NOQUORUM" else "",
    )


def _place(fields: Fields) -> Place:
    return Place(fields["ip"], int(fields["port"]))


def _sentinels(engine: SentinelEngine, views: list[View], silent: dict[Place, EngineError]) -> Iterator[Finding]:
    """Who answers, of those that the URL names and those that they know."""
    for error in silent.values():
        finding = unreached(error)
        level = WARNING if views else PROBLEM
        yield replace(finding, level=level, topic="sentinels", what=f"a Sentinel does not answer: {finding.what}")
    if not views:
        return
    known = {view.id for view in views} | {other["runid"] for view in views for other in view.others}
    up, whole = len(views), len(known)
    what = f"{up} of {whole} Sentinels answer"
    if up <= whole // 2:
        advice = "a new master needs the votes of most of them: start the others"
        yield Finding(PROBLEM, "sentinels", what, advice)
    else:
        yield Finding(OK, "sentinels", what)
    if whole < ENOUGH:
        advice = f"run {ENOUGH}, on machines that do not fall together: of fewer, the loss of one ends all failovers"
        yield Finding(WARNING, "sentinels", f"there are only {whole} Sentinels", advice)
    if len(engine.seeds.places) == 1 and whole > 1:
        advice = "when it is down, clients that start find nobody: name all of them, host1:26379,host2:26379/…"
        yield Finding(WARNING, "sentinels", f"the URL names one Sentinel of {whole}", advice)


def _quorum(views: list[View]) -> Iterator[Finding]:
    for view in views:
        if view.no_quorum:
            advice = "there is no failover as it is: start Sentinels, or mend the network between them"
            yield Finding(PROBLEM, "quorum", f"{view.place}: {view.no_quorum}", advice)
    wanted = {view.master.get("quorum", "?") for view in views}
    if len(wanted) > 1:
        said = ", ".join(f"{view.place} wants {view.master.get('quorum', '?')}" for view in views)
        advice = "set the same everywhere: SENTINEL SET … quorum"
        yield Finding(WARNING, "quorum", f"Sentinels disagree on the quorum: {said}", advice)
    elif not any(view.no_quorum for view in views):
        yield Finding(OK, "quorum", f"{wanted.pop()} Sentinels must agree that the master is down, and they could")


def _agreement(views: list[View]) -> Iterator[Finding]:
    named = {_place(view.master) for view in views}
    if len(named) > 1:
        said = "; ".join(f"{view.place} names {_place(view.master)}" for view in views)
        advice = "a failover may be under way; if it stays so: SENTINEL RESET on those that are behind"
        yield Finding(PROBLEM, "master", f"Sentinels disagree: {said}", advice)
    for view in views:
        if down := {"s_down", "o_down"} & set(view.master.get("flags", "").split(",")):
            what = f"{view.place} takes the master {_place(view.master)} for dead ({', '.join(sorted(down))})"
            yield Finding(PROBLEM, "master", what, "look whether it runs, and at the network between the two")


def _nodes(views: list[View]) -> list[Node]:
    """The master that most name, and every replica that any of them knows."""
    named = [_place(view.master) for view in views]
    master = max(named, key=named.count)
    replicas = {_place(replica) for view in views for replica in view.replicas} | set(named)
    return [Node(master), *(Node(place, master) for place in sorted(replicas - {master}))]


def _followed(fleet: Fleet) -> Iterator[Finding]:
    for master in fleet.masters():
        if not fleet.followers(master):
            what = f"master {master.place} has no replica that follows it"
            yield Finding(WARNING, "replicas", what, "nobody can take over: start a replica (replicaof)")
