"""Check the nodes of a Redis Cluster or of a Sentinel group. A finding that all nodes share is reported once, a
differing one for its node.
"""

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
    measure_round_trip,
    rate_excess,
    rate_round_trip,
)
from backstay.doctor.redis import (
    NTP,
    check_connections,
    check_eviction,
    check_info,
    check_memory,
    check_min_replicas,
    check_persistence,
    check_protocol,
    check_scripts,
    check_set_back,
    check_version,
    count_connections,
    describe_unreachable,
    rate_skew,
)
from backstay.doctor.redis_server import Clock, Server
from backstay.engine.redis.address import Address, HostPort
from backstay.engine.redis.engine import RedisEngine
from backstay.errors import EngineError

Check = Callable[[Server], Iterator[Finding]]
#: Checks that run on masters and replicas alike, because any replica may become the master.
NODE_CHECKS: tuple[Check, ...] = (
    check_version,
    check_protocol,
    check_info,
    check_persistence,
    check_eviction,
    check_memory,
)
#: Checks that need a server that accepts writes.
MASTER_CHECKS: tuple[Check, ...] = (check_min_replicas, check_set_back, check_scripts)


@dataclass(eq=False, slots=True)
class RedisNode:
    """A node of a Cluster or a Sentinel group, as the other nodes report it. `server` is the connection to it; None if
    it does not respond.
    """

    place: HostPort
    #: The address of the node's master; None if the node is a master.
    master: HostPort | None = None
    #: False for a master without slots, which clients never use. A master that failed and was replaced by its replica
    #: is such a node.
    serves: bool = True
    server: Server | None = None

    @property
    def kind(self) -> str:
        if self.master is not None:
            return "replica"
        return "master" if self.serves else "idle master"


class Fleet:
    """The checks of all nodes of a Cluster or a Sentinel group. A node that does not respond is reported as a finding,
    and the other nodes are still checked.
    """

    def __init__(self, nodes: list[RedisNode]) -> None:
        self.nodes = nodes
        #: Findings about nodes that stopped responding during the checks.
        self._lost_nodes: list[Finding] = []

    def reach(self, engine: RedisEngine, clock: Clock, address: Callable[[HostPort], Address]) -> Iterator[Finding]:
        for node in self.nodes:
            try:
                node.server = Server(engine, clock, address(node.place))
            except EngineError as error:
                yield _describe_down(node, describe_unreachable(error))
        up = len(self.list_responding())
        if up == len(self.nodes):
            yield Finding(OK, "reach", f"all {up} nodes answer")

    def list_responding(self) -> list[RedisNode]:
        return [node for node in self.nodes if node.server is not None]

    def list_masters(self) -> list[RedisNode]:
        return [node for node in self.list_responding() if node.master is None and node.serves]

    def diagnose(self) -> Iterator[Finding]:
        """Run all checks that are the same for a Cluster and a Sentinel group."""
        for check in NODE_CHECKS:
            yield from self.compare(self.list_responding(), check)
        yield from self.check_clocks()
        yield from self.check_replication()
        for check in MASTER_CHECKS:
            yield from self.compare(self.list_masters(), check, "masters")
        yield from self.check_connections()
        yield from self.check_latency()
        yield from self._lost_nodes

    def compare(self, nodes: list[RedisNode], check: Check, noun: str = "nodes") -> Iterator[Finding]:
        """Run a check on all nodes. Yields the most frequent finding once, and every other finding with its node."""
        by_topic: dict[str, dict[Finding, list[RedisNode]]] = {}
        checked = 0
        for node in nodes:
            findings = self.run_check(node, lambda server: list(check(server)))
            checked += node.server is not None
            for finding in findings or ():
                by_topic.setdefault(finding.topic, {}).setdefault(finding, []).append(node)
        for found in by_topic.values():
            usual = max(found, key=lambda finding: len(found[finding]))
            whole = len(found[usual]) == checked
            if whole or len(found[usual]) > 1:
                count = f"all {checked}" if whole else f"{len(found[usual])} of {checked}"
                yield replace(usual, what=f"{usual.what} ({count} {noun})" if checked > 1 else usual.what)
            for finding, odd in found.items():
                if finding is not usual or not (whole or len(odd) > 1):
                    for node in odd:
                        yield _describe_outlier(node, finding, usual)

    def run_check(self, node: RedisNode, check: Callable[[Server], list[Finding]]) -> list[Finding] | None:
        """Run a check on one node. Returns None if the node does not respond; `diagnose` reports this at the end."""
        if node.server is None:
            return None
        try:
            return check(node.server)
        except EngineError as error:
            node.server.link.close()
            node.server = None
            self._lost_nodes.append(_describe_down(node, describe_unreachable(error)))
            return None

    def check_each(self, nodes: list[RedisNode], check: Check) -> Iterator[Finding]:
        """Run a check on all nodes; yield each finding with its node."""
        for node in nodes:
            for finding in self.run_check(node, lambda server: list(check(server))) or ():
                yield replace(finding, what=f"{node.place}: {finding.what}")

    def check_clocks(self) -> Iterator[Finding]:
        """Compare the nodes' clocks with one another and with this host's."""
        ahead: dict[RedisNode, float] = {}

        def read_clock(node: RedisNode, server: Server) -> list[Finding]:
            ahead[node] = server.measure_skew()
            return []

        for node in self.list_responding():
            self.run_check(node, partial(read_clock, node))
        if not ahead:
            return
        middle = median_low(ahead.values())
        yield rate_skew("most nodes" if len(ahead) > 1 else "the server", middle)
        if len(ahead) == 1:
            return
        spread = max(ahead.values()) - min(ahead.values())
        level = rate_excess(spread, SKEW_WARNING, SKEW_PROBLEM)
        what = f"the clocks of {len(ahead)} nodes differ by at most {spread:.3f} s"
        yield Finding(level, "clocks", what, NTP if level != OK else "")
        for node, seconds in ahead.items():
            off = seconds - middle
            if (level := rate_excess(abs(off), SKEW_WARNING, SKEW_PROBLEM)) != OK:
                side = "ahead of" if off > 0 else "behind"
                what = f"{node.place}: its clock is {abs(off):.3f} s {side} most others'"
                yield Finding(level, "clocks", what, "correct its clock, and run NTP (chrony)")

    def check_replication(self) -> Iterator[Finding]:
        """Check each replica's own replication state: a master does not list replicas that it has lost."""
        following = 0
        for node in self.list_responding():
            info = node.server.info if node.server else {}
            if not info or not node.serves:
                continue
            role = "master" if info.get("role") == "master" else "replica"
            if role != node.kind:
                what = f"{node.place} is a {role}, but the other nodes report it as a {node.kind}"
                yield Finding(WARNING, "role", what, "a failover may be in progress: check again in a minute")
            elif role == "replica" and info.get("master_link_status") != "up":
                master = f"{info.get('master_host', '?')}:{info.get('master_port', '?')}"
                advice = "a failover to it would lose grants: check its log and the network between the two"
                yield Finding(WARNING, "replicas", f"{node.place} has lost its master {master}", advice)
            elif role == "replica":
                following += 1
        if following:
            yield Finding(
                OK,
                "replicas",
                f"{following} {'replicas follow their masters' if following > 1 else 'replica follows its master'}",
            )

    def count_followers(self, master: RedisNode) -> int:
        """Return how many replicas of this master respond to the doctor and report that their link to it is up."""
        mine = [node for node in self.list_responding() if node.master == master.place]
        return sum(
            node.server is not None and node.server.info.get("master_link_status", "up") == "up" for node in mine
        )

    def check_connections(self) -> Iterator[Finding]:
        """Check how many of its allowed connections each node uses. Yield the finding of each node that uses too many;
        of all other nodes, only the finding of the one that uses the largest part.
        """
        fullest: tuple[float, Finding] | None = None
        for node in self.list_responding():
            for finding in self.run_check(node, lambda server: list(check_connections(server))) or ():
                named = replace(finding, what=f"{node.place}: {finding.what}")
                if finding.level != OK:
                    yield named
                elif node.server is not None:
                    used, most = count_connections(node.server)
                    fullest = max(fullest or (0.0, named), (used / most, named), key=lambda pair: pair[0])
        if fullest is not None:
            yield fullest[1]

    def check_latency(self) -> Iterator[Finding]:
        """Rate the slowest round trip to a master: each lock is stored on one of the masters."""
        took: dict[HostPort, float] = {}

        def measure(place: HostPort, server: Server) -> list[Finding]:
            took[place] = measure_round_trip(lambda: server.call("PING"))
            return []

        for node in self.list_masters():
            self.run_check(node, partial(measure, node.place))
        if took:
            slowest = max(took, key=lambda place: took[place])
            yield rate_round_trip(took[slowest], f" to {slowest}")

    def close(self) -> None:
        for node in self.list_responding():
            if node.server is not None:
                node.server.link.close()


def _describe_outlier(node: RedisNode, finding: Finding, usual: Finding) -> Finding:
    """Describe a node whose finding differs from the `usual` one, which most nodes share. If both findings are ok, the
    difference itself becomes a warning.
    """
    what = f"{node.place}: {finding.what}"
    if finding.level == usual.level == OK and finding is not usual:
        return Finding(
            WARNING,
            finding.topic,
            f"{what}, unlike most others",
            "configure all nodes alike: any may become the master",
        )
    return replace(finding, what=what)


def _describe_down(node: RedisNode, finding: Finding) -> Finding:
    """Describe an unreachable node. An unreachable master is a problem, because the names on it cannot be locked. An
    unreachable replica is a warning, because only the next failover is at risk.
    """
    level = PROBLEM if node.master is None and node.serves else WARNING
    return replace(finding, level=level, what=f"{node.kind} {node.place}: {finding.what}")
