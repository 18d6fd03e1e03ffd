"""A look at several Redis servers that stand in for one another: what they share once, what differs by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from statistics import median_low

from backstay.doctor.finding import (
    OK,
    PROBLEM,
    SKEW_PROBLEM,
    SKEW_WARNING,
    WARNING,
    Finding,
    above,
    judged,
    timed,
)
from backstay.doctor.redis import (
    NTP,
    connections,
    crowd,
    eviction,
    least_replicas,
    of_this_host,
    persistence,
    protocol,
    rights,
    scripts,
    unreached,
    version,
)
from backstay.doctor.redis_server import Clock, Server
from backstay.engine.redis.address import Address, Place
from backstay.engine.redis.engine import RedisEngine
from backstay.errors import EngineError

Look = Callable[[Server], Iterator[Finding]]
#: What every node should say alike: a replica is the master of tomorrow.
ALIKE: tuple[Look, ...] = (version, protocol, rights, persistence, eviction)
#: What only those who take writes can tell.
OF_MASTERS: tuple[Look, ...] = (least_replicas, scripts)


@dataclass(eq=False, slots=True)
class Node:
    """A server of a group, as the group itself describes it. `server` is None once it does not answer."""

    place: Place
    #: Whom it follows; None: it is a master.
    master: Place | None = None
    #: Whether it is of any use to clients now; a master that was replaced and is down is not.
    serves: bool = True
    server: Server | None = None

    @property
    def kind(self) -> str:
        if self.master is not None:
            return "replica"
        return "master" if self.serves else "idle master"


class Fleet:
    """All nodes of a group. One that does not answer is a finding, and the others are looked at all the same."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self._troubles: list[Finding] = []

    def reach(self, engine: RedisEngine, clock: Clock, address: Callable[[Place], Address]) -> Iterator[Finding]:
        for node in self.nodes:
            try:
                node.server = Server(engine, clock, address(node.place))
            except EngineError as error:
                yield _down(node, unreached(error))
        up = len(self.answering())
        if up == len(self.nodes):
            yield Finding(OK, "reach", f"all {up} nodes answer")

    def answering(self) -> list[Node]:
        return [node for node in self.nodes if node.server is not None]

    def masters(self) -> list[Node]:
        return [node for node in self.answering() if node.master is None and node.serves]

    def diagnose(self) -> Iterator[Finding]:
        """Everything that does not depend on who leads the group."""
        for look in ALIKE:
            yield from self.alike(self.answering(), look)
        yield from self.clocks()
        yield from self.links()
        for look in OF_MASTERS:
            yield from self.alike(self.masters(), look, "masters")
        yield from self.crowds()
        yield from self.trips()
        yield from self._troubles

    def alike(self, nodes: list[Node], look: Look, who: str = "nodes") -> Iterator[Finding]:
        """What most say, once; and whoever says something else."""
        said: dict[str, dict[Finding, list[Node]]] = {}
        asked = 0
        for node in nodes:
            findings = self.ask(node, lambda server: list(look(server)))
            asked += node.server is not None
            for finding in findings or ():
                said.setdefault(finding.topic, {}).setdefault(finding, []).append(node)
        for found in said.values():
            usual = max(found, key=lambda finding: len(found[finding]))
            whole = len(found[usual]) == asked
            if whole or len(found[usual]) > 1:
                count = f"all {asked}" if whole else f"{len(found[usual])} of {asked}"
                yield replace(usual, what=f"{usual.what} ({count} {who})" if asked > 1 else usual.what)
            for finding, odd in found.items():
                if finding is not usual or not (whole or len(odd) > 1):
                    for node in odd:
                        yield _odd(node, finding, usual)

    def ask(self, node: Node, question: Callable[[Server], list[Finding]]) -> list[Finding] | None:
        """What a node answers; None once it does not. That is told at the end."""
        if node.server is None:
            return None
        try:
            return question(node.server)
        except EngineError as error:
            node.server.link.close()
            node.server = None
            self._troubles.append(_down(node, unreached(error)))
            return None

    def each(self, nodes: list[Node], look: Look) -> Iterator[Finding]:
        """What every one of them says, by its name."""
        for node in nodes:
            for finding in self.ask(node, lambda server: list(look(server))) or ():
                yield replace(finding, what=f"{node.place}: {finding.what}")

    def clocks(self) -> Iterator[Finding]:
        """All clocks against one another, and this host's against them."""
        ahead: dict[Node, float] = {}

        def look(node: Node, server: Server) -> list[Finding]:
            ahead[node] = server.skew()
            return []

        for node in self.answering():
            self.ask(node, partial(look, node))
        if not ahead:
            return
        middle = median_low(ahead.values())
        yield of_this_host("most nodes" if len(ahead) > 1 else "the server", middle)
        if len(ahead) == 1:
            return
        spread = max(ahead.values()) - min(ahead.values())
        level = above(spread, SKEW_WARNING, SKEW_PROBLEM)
        what = f"the clocks of {len(ahead)} nodes differ by at most {spread:.3f} s"
        yield Finding(level, "clocks", what, NTP if level != OK else "")
        for node, seconds in ahead.items():
            off = seconds - middle
            if (level := above(abs(off), SKEW_WARNING, SKEW_PROBLEM)) != OK:
                side = "ahead of" if off > 0 else "behind"
                what = f"{node.place}: its clock is {abs(off):.3f} s {side} most others'"
                yield Finding(level, "clocks", what, "set it right there; NTP (chrony) keeps it so")

    def links(self) -> Iterator[Finding]:
        """Whether replicas follow, as they say themselves: a master does not list those that it lost."""
        following = 0
        for node in self.answering():
            info = node.server.info if node.server else {}
            if not info or not node.serves:
                continue
            role = "master" if info.get("role") == "master" else "replica"
            if role != node.kind:
                what = f"{node.place} is a {role}, and the others take it for a {node.kind}"
                yield Finding(WARNING, "role", what, "a failover may be under way: look again in a minute")
            elif role == "replica" and info.get("master_link_status") != "up":
                master = f"{info.get('master_host', '?')}:{info.get('master_port', '?')}"
                advice = "a failover to it would lose grants: look at its log and at the network between the two"
                yield Finding(WARNING, "replicas", f"{node.place} has lost its master {master}", advice)
            elif role == "replica":
                following += 1
        if following:
            yield Finding(
                OK,
                "replicas",
                f"{following} {'replicas follow their masters' if following > 1 else 'replica follows its master'}",
            )

    def followers(self, master: Node) -> int:
        """Replicas of a master that answer and follow it."""
        mine = [node for node in self.answering() if node.master == master.place]
        return sum(
            node.server is not None and node.server.info.get("master_link_status", "up") == "up" for node in mine
        )

    def crowds(self) -> Iterator[Finding]:
        fullest: tuple[float, Finding] | None = None
        for node in self.answering():
            for finding in self.ask(node, lambda server: list(connections(server))) or ():
                told = replace(finding, what=f"{node.place}: {finding.what}")
                if finding.level != OK:
                    yield told
                elif node.server is not None:
                    used, most = crowd(node.server)
                    fullest = max(fullest or (0.0, told), (used / most, told), key=lambda pair: pair[0])
        if fullest is not None:
            yield fullest[1]

    def trips(self) -> Iterator[Finding]:
        """The slowest way to a master: each lock goes to one of them."""
        took: dict[Place, float] = {}

        def look(place: Place, server: Server) -> list[Finding]:
            took[place] = timed(lambda: server.ask("PING"))
            return []

        for node in self.masters():
            self.ask(node, partial(look, node.place))
        if took:
            slowest = max(took, key=lambda place: took[place])
            yield judged(took[slowest], f" to {slowest}")

    def close(self) -> None:
        for node in self.answering():
            if node.server is not None:
                node.server.link.close()


def _odd(node: Node, finding: Finding, usual: Finding) -> Finding:
    """One that differs. Good but unlike the rest is a warning, as long as the rest is good as well."""
    what = f"{node.place}: {finding.what}"
    if finding.level == usual.level == OK and finding is not usual:
        return Finding(
            WARNING, finding.topic, f"{what}, unlike most others", "make all nodes alike: any may lead one day"
        )
    return replace(finding, what=what)


def _down(node: Node, finding: Finding) -> Finding:
    """An unreachable master keeps its names from everybody; without a replica, only the next failover is in danger."""
    level = PROBLEM if node.master is None and node.serves else WARNING
    return replace(finding, level=level, what=f"{node.kind} {node.place}: {finding.what}")
