"""Run a batch of operations on a Cluster, on the calling thread: send the requests to all nodes first, then read the
replies of all nodes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from backstay.engine.base import Expired, Op, Scan, steady
from backstay.engine.jitter import RANDOM
from backstay.engine.redis.address import HostPort
from backstay.engine.redis.encoder import KeyedRequest, Procedure
from backstay.engine.redis.link.blocking_link import BlockingLink
from backstay.engine.redis.link.protocol import ASKING, REROUTED_CODES, ErrorReply, translate_error
from backstay.engine.redis.topology.slots import CLUSTER_SLOTS, MAX_REDIRECTS, PAUSE, parse_redirect, slot_of
from backstay.errors import BackstayError, Closed, ConfigError, EngineError, EngineUnavailable, OutcomeUnknown

if TYPE_CHECKING:
    from backstay.engine.redis.topology.cluster import ClusterEngine


#: The time-out (seconds) when no time is left: replies that have already arrived can still be read.
NO_TIME = 0.001


class RoutedProcedure:
    """A procedure (a generator that yields requests and is sent their replies) with its next request and the node for
    that request. `only_at`: the procedure may run only on this node; None: on the node that serves its slot.
    """

    __slots__ = ("asking", "home", "hops", "index", "only_at", "procedure", "request", "slot", "to")

    def __init__(self, index: int, procedure: Procedure, slot: int | None, only_at: HostPort | None = None) -> None:
        self.index = index
        self.procedure = procedure
        self.slot = self.home = slot
        self.only_at = self.to = only_at
        self.asking = False
        self.hops = 0
        self.request = b""
        self.advance(None)

    def advance(self, reply: Any) -> None:
        """Send a reply to the procedure and take its next request. Raises StopIteration at the end, and the procedure's
        own exceptions.
        """
        request = self.procedure.send(reply)
        slot, self.request = (
            (slot_of(request.key), request.request) if isinstance(request, KeyedRequest) else (self.home, request)
        )
        if slot != self.slot:
            self.slot, self.to, self.asking = slot, self.only_at, False

    @property
    def requests(self) -> list[bytes]:
        return [ASKING, self.request] if self.asking else [self.request]


class ClusterBatch:
    """A batch of operations. `run` returns one result per operation, or the exception that it raised. With a `timeout`
    the batch never takes longer than that, and connecting to an unresponsive node gets only a share of the time. So the
    keeper, which renews leases on several nodes in one batch, still reaches the other nodes in time.
    """

    def __init__(self, engine: ClusterEngine, timeout: float | None) -> None:
        self._engine = engine
        self._timeout = timeout
        self._ends = None if timeout is None else steady() + timeout
        self._results: dict[int, Any] = {}
        self._until = 0.0
        self._remapped = False

    def run(self, ops: Sequence[Op[Any]]) -> list[Any]:
        try:
            waiting: list[RoutedProcedure] = []
            for i, op in enumerate(ops):
                try:
                    if type(op) is Scan:
                        self._results[i] = self._scan(op)
                    else:
                        waiting.append(self._route(i, op))
                except StopIteration as done:  # the procedure needed no request
                    self._results[i] = done.value
                except ConfigError as error:
                    self._results[i] = error
            while waiting:
                waiting = self._send(waiting)
        except Closed as error:
            return [error] * len(ops)
        return [self._results[i] for i in range(len(ops))]

    def _route(self, index: int, op: Op[Any]) -> RoutedProcedure:
        encoder = self._engine.encoder
        key = encoder.key(op)
        return RoutedProcedure(index, encoder.procedure(op), slot_of(key) if key is not None else None)

    def _scan(self, op: Scan) -> Any:
        """Run the Scan operation, which lists names, on each master in turn, and return the names of all masters."""
        found: set[str] = set()
        try:
            self._remap()
        except EngineError as error:
            return error
        for i, node in enumerate(self._engine.map.masters):
            part = ClusterBatch(self._engine, self._timeout)
            waiting = [RoutedProcedure(i, self._engine.encoder.procedure(op), None, node)]
            while waiting:
                waiting = part._send(waiting)
            result = part._results[i]
            if isinstance(result, BaseException):
                return result
            found.update(result)
        return sorted(found)

    def _send(self, procedures: list[RoutedProcedure]) -> list[RoutedProcedure]:
        """Send the next request of each procedure, and handle the replies. Returns the procedures that are not done:
        they have a further request, or must repeat this one.
        """
        again: list[RoutedProcedure] = []
        stuck: list[tuple[RoutedProcedure, EngineError]] = []
        sent: list[tuple[BlockingLink, HostPort, list[RoutedProcedure]]] = []
        by_node = self._by_node(procedures, stuck)
        order = self._best_first(by_node)
        unconnected = [node for node in order if not self._engine.has_link(node)]
        for node in order:
            batch = by_node[node]
            shares = 1 + len(unconnected) - unconnected.index(node) if node in unconnected else 1
            try:
                link = self._engine.thread_link_to(node, self._time_left(shares))
                link.begin([part for routed in batch for part in routed.requests], self._time_left())
            except EngineUnavailable as error:
                self._engine.failed_nodes()[node] = steady()
                stuck += [(routed, error) for routed in batch]
            except EngineError as error:
                self._fail(batch, error)
            else:
                sent.append((link, node, batch))
        for link, node, batch in sent:
            try:
                replies = link.finish(sum(len(routed.requests) for routed in batch), self._time_left())
            except OutcomeUnknown as error:
                self._engine.failed_nodes()[node] = steady()
                self._fail(batch, error)
                continue
            for routed in batch:
                del replies[: len(routed.requests) - 1]
                self._handle_reply(routed, replies.pop(0), link, node, again, stuck)
        if stuck:
            again += self._retry_or_fail(stuck)
        return again

    def _best_first(self, nodes: Iterable[HostPort]) -> list[HostPort]:
        """Sort nodes by how likely they respond: first those to which this thread has an open link, then those that
        never failed a request of this thread, then those that did. So a connection attempt to an unresponsive node
        comes last and does not use up the time for the other nodes.
        """
        failed = self._engine.failed_nodes()
        return sorted(nodes, key=lambda node: (not self._engine.has_link(node), failed.get(node, 0.0)))

    def _time_left(self, shares: int = 1) -> float | None:
        """Return the seconds that one step of the batch may take: the remaining time divided by `shares`, the number of
        steps that must share it. None if the batch has no time-out.
        """
        return None if self._ends is None else max(NO_TIME, (self._ends - steady()) / shares)

    def _by_node(
        self, procedures: list[RoutedProcedure], stuck: list[tuple[RoutedProcedure, EngineError]]
    ) -> dict[HostPort, list[RoutedProcedure]]:
        by_node: dict[HostPort, list[RoutedProcedure]] = {}
        engine = self._engine
        for routed in procedures:
            try:
                if not engine.map.masters:
                    self._remap()
                by_node.setdefault(routed.to or engine.locate(routed.slot), []).append(routed)
            except EngineUnavailable as error:
                stuck.append((routed, error))
            except EngineError as error:
                self._fail([routed], error)
        return by_node

    def _handle_reply(
        self,
        routed: RoutedProcedure,
        reply: Any,
        link: BlockingLink,
        node: HostPort,
        again: list[RoutedProcedure],
        stuck: list[tuple[RoutedProcedure, EngineError]],
    ) -> None:
        if type(reply) is ErrorReply:
            if to := parse_redirect(reply, node):
                routed.hops += 1
                routed.to, routed.asking = to.node, to.is_ask
                if not to.is_ask:
                    self._engine.map.apply_redirect(to)
                if routed.hops > MAX_REDIRECTS:
                    self._fail([routed], EngineUnavailable(f"slot {to.slot} is redirected from node to node"))
                else:
                    again.append(routed)
                return
            if reply.code in REROUTED_CODES:
                stuck.append((routed, self._engine.unavailable_error(reply, link, routed.slot)))
                return
        try:
            routed.advance(reply)
            again.append(routed)
        except StopIteration as done:
            self._results[routed.index] = done.value
            if type(done.value) is Expired:
                self._engine.note_clock(link, done.value.now)
        except ErrorReply as error_reply:
            self._results[routed.index] = translate_error(error_reply, link.address)
        except BackstayError as error:  # the reply holds a record that cannot be decoded: fail this operation only
            self._results[routed.index] = error

    def _retry_or_fail(self, stuck: list[tuple[RoutedProcedure, EngineError]]) -> list[RoutedProcedure]:
        """Handle procedures whose node could not be reached: load a new slot map and return the procedures to retry. A
        procedure that may run on one node only (`only_at`) fails instead, because no other node can take its place.
        Once the failover time-out is over, all procedures fail.
        """
        failed = [(routed, error) for routed, error in stuck if routed.only_at is not None]
        movable = [(routed, error) for routed, error in stuck if routed.only_at is None]
        again: list[RoutedProcedure] = []
        if movable and self._may_retry():
            try:
                self._remap()
            except EngineUnavailable:
                if self._timeout is not None:
                    failed, movable = failed + movable, []
            except EngineError as map_error:
                failed, movable = failed + [(routed, map_error) for routed, _ in movable], []
            again = [routed for routed, _ in movable]
        else:
            failed += movable
        for routed, error in failed:
            self._fail([routed], error)
        for routed in again:
            routed.to, routed.asking = None, False
        if any(routed.slot is None for routed in again):
            self._engine.avoid_current_master()
        return again

    def _may_retry(self) -> bool:
        engine = self._engine
        if not engine.map.masters:
            # No slot map was ever loaded. Do not wait: the URL is probably wrong, and waiting would only hide that.
            return False
        if self._timeout is not None:
            # A caller with a time-out (the keeper) retries by itself, so this tries only once more, without a pause.
            first, self._remapped = not self._remapped, True
            return first and (self._time_left() or 0.0) > NO_TIME
        self._until = self._until or steady() + engine.seeds.failover
        if steady() > self._until:
            return False
        time.sleep(RANDOM.uniform(PAUSE / 2, PAUSE))
        return True

    def _remap(self) -> None:
        """Load the slot map from any node."""
        engine = self._engine
        errors: list[EngineError] = []
        for node in self._best_first(engine.map_sources()):
            try:
                link = engine.thread_link_to(node, self._time_left(2))
                (reply,) = link.call_many([CLUSTER_SLOTS], self._time_left(2))
                engine.map.update(reply, link.address)
            except EngineError as error:
                engine.failed_nodes()[node] = steady()
                errors.append(error)
            else:
                return
        raise engine.map_error(errors)

    def _fail(self, batch: list[RoutedProcedure], error: EngineError) -> None:
        for routed in batch:
            self._results[routed.index] = type(error)(str(error))
