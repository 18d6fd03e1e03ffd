"""The Redis Cluster engine: each name lives on the node that serves its slot, on that node's clock."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from backstay.engine.base import DECODE_ERRORS, Apply, Expired, Micros, Op, Scan, single_result, steady
from backstay.engine.jitter import RANDOM
from backstay.engine.redis.address import HostPort
from backstay.engine.redis.coalescing import CoalescedRequest
from backstay.engine.redis.encoder import KeyedRequest, Procedure
from backstay.engine.redis.engine import RedisEngine
from backstay.engine.redis.link.async_link import AsyncLink
from backstay.engine.redis.link.blocking_link import BlockingLink
from backstay.engine.redis.link.protocol import PING_FIRST, REROUTED_CODES, ErrorReply, Hello, translate_error
from backstay.engine.redis.topology.cluster_batch import ClusterBatch
from backstay.engine.redis.topology.cluster_nodes import NodeLinks
from backstay.engine.redis.topology.cluster_replica_ack import ClusterReplicaAcks
from backstay.engine.redis.topology.open import Seeds
from backstay.engine.redis.topology.slots import MAX_REDIRECTS, PAUSE, SlotMap, parse_redirect, slot_of
from backstay.errors import Closed, EngineError, EngineRefused, EngineUnavailable

T = TypeVar("T")


class ClusterEngine(RedisEngine):
    """An engine on a Cluster: one link per node for the event loop, and one per node for each thread."""

    is_clustered = True

    def __init__(
        self,
        seeds: Seeds,
        *,
        namespace: str = "backstay",
        client_name: str = "backstay",
        tls: ssl.SSLContext | None = None,
        clock: Callable[[], Micros] | None = None,
    ) -> None:
        super().__init__(seeds.address, namespace=namespace, client_name=client_name, tls=tls, clock=clock)
        self.seeds = seeds
        self.encoder = self._encoder
        self.map = SlotMap()
        self._replica_acks = ClusterReplicaAcks(self)
        #: The master that currently gets the requests that any node can serve, such as PUBLISH; None: not chosen yet.
        self._any_master: HostPort | None = None
        self._forget_links()

    def _forget_links(self) -> None:
        self._nodes = NodeLinks(self)
        self._clocks: dict[HostPort, float] = {}
        self._clocks_lock = threading.Lock()

    # ── from the loop ──

    async def submit(self, op: Op[T]) -> T:
        if type(op) is Scan:
            return cast("T", await self._scan(op))
        if type(op) is CoalescedRequest:
            return cast("T", await self._loop_coalescer().submit(op))
        key = self._encoder.key(op)
        slot = slot_of(key) if key is not None else None
        if type(op) is Apply and self._test_clock is None:  # the hot path, without creating a generator (`procedure`)
            request = op.encoded or self._encoder.request(op)
            raw, link = await self._send(slot, request, wakes_waiters=op.command.wakes_waiters)
            if type(raw) is bytes:
                try:
                    result = op.room.decode_reply(raw)
                except DECODE_ERRORS as error:
                    raise op.room.corrupt_record(op.name, error) from error
                if type(result) is Expired:
                    self.note_clock(link, result.now)
                return cast("T", result)
            if raw.code != "NOSCRIPT":
                raise self._error(raw, link)
        return cast("T", await self._run(self._encoder.procedure(op), slot))

    async def _run(self, procedure: Procedure, slot: int | None, only_at: HostPort | None = None) -> Any:
        link: AsyncLink | None = None
        try:
            request = next(procedure)
            while True:
                if isinstance(request, KeyedRequest):
                    reply, link = await self._send(slot_of(request.key), request.request)
                else:
                    reply, link = await self._send(slot, request, only_at=only_at)
                request = procedure.send(reply)
        except StopIteration as done:
            return done.value
        except ErrorReply as error_reply:
            raise translate_error(error_reply, link.address if link else self.address) from None

    async def _send(
        self, slot: int | None, request: bytes, *, wakes_waiters: bool = False, only_at: HostPort | None = None
    ) -> tuple[Any, AsyncLink]:
        """Send a request to the node that serves the slot; follow redirects and wait for a failover to end."""
        node, asking, hops, until = only_at, False, 0, 0.0
        while True:
            try:
                target = node or (self.map.node_for(slot) if slot is not None else self.any_master())
                if target is None:
                    target = await self._remap_and_locate(slot)
                link = self._nodes.links.get(target)
                if link is None or not link.is_usable():
                    link = await self._nodes.link_to(target)
                if asking:
                    reply = await link.send_asking(request)
                else:
                    reply = await (link.send_after_ping(request) if wakes_waiters else link.send(request))
            except EngineUnavailable as error:
                if only_at is not None:
                    raise
                node, asking = None, False
                if slot is None:
                    self.avoid_current_master()
                until = await self._wait_and_remap(error, until)
                continue
            if type(reply) is not ErrorReply:
                return reply, link
            if to := parse_redirect(reply, target):
                hops += 1
                if hops > MAX_REDIRECTS:
                    raise EngineUnavailable(f"{self.seeds}: slot {to.slot} is redirected from node to node")
                node, asking = to.node, to.is_ask
                if not to.is_ask:
                    self.map.apply_redirect(to)
            elif reply.code in REROUTED_CODES and only_at is None:
                node, asking = None, False
                until = await self._wait_and_remap(self.unavailable_error(reply, link, slot), until)
            else:
                return reply, link

    def unavailable_error(self, reply: ErrorReply, link: AsyncLink | BlockingLink, slot: int | None) -> EngineError:
        if reply.code == "CLUSTERDOWN" and slot is not None:
            return EngineUnavailable(f"{self.seeds}: slot {slot} is not served: {link.address} replied {reply}")
        return translate_error(reply, link.address)

    def any_master(self) -> HostPort | None:
        """Return the master for requests without a key, such as PUBLISH. It is the same one each time, because messages
        that a process publishes through different nodes can arrive in another order.
        """
        if self._any_master not in self.map.masters:
            self._any_master = RANDOM.choice(self.map.masters) if self.map.masters else None
        return self._any_master

    def avoid_current_master(self) -> None:
        """Choose another master for the requests that any node can serve: the current one does not respond."""
        others = [node for node in self.map.masters if node != self._any_master]
        self._any_master = RANDOM.choice(others) if others else None

    async def _remap_and_locate(self, slot: int | None) -> HostPort:
        await self._nodes.remap()
        return self.locate(slot)

    def locate(self, slot: int | None) -> HostPort:
        """Return the node that serves a slot; if `slot` is None, any master. Raises EngineUnavailable if the slot map
        contains no such node.
        """
        node = self.map.node_for(slot) if slot is not None else self.any_master()
        if node is None:
            raise EngineUnavailable(f"{self.seeds}: no node serves slot {slot}; see CLUSTER SLOTS")
        return node

    async def _wait_and_remap(self, error: EngineError, until: float) -> float:
        """Before a request that failed with `error` is retried: pause and reload the slot map. `until` is the deadline
        of all retries of the request; 0 if this is the first one, which sets the deadline. Returns the deadline. Once
        it has passed, raises `error`.
        """
        if not until:
            # If no slot map was ever loaded, do not wait: the URL is probably wrong, and waiting would only hide that.
            until = steady() + self.seeds.failover if self.map.masters else -1.0
        if steady() > until or self._closed:
            raise error
        await asyncio.sleep(RANDOM.uniform(PAUSE / 2, PAUSE))
        try:
            await self._nodes.remap()
        except EngineUnavailable:
            if steady() > until:
                raise
        return until

    async def _scan(self, op: Scan) -> list[str]:
        found: set[str] = set()
        await self._nodes.remap()
        for node in self.map.masters:
            found.update(await self._run(self._encoder.procedure(op), None, node))
        return sorted(found)

    # ── the map ──

    def map_sources(self) -> list[HostPort]:
        """Return the nodes that can provide the slot map, masters first in random order: a fixed order would always
        start with the same unreachable node.
        """
        known = list(self.map.masters)
        RANDOM.shuffle(known)
        return list(dict.fromkeys([*known, *self.seeds.hosts, *self.map.replicas]))

    def map_error(self, errors: list[EngineError]) -> EngineError:
        texts = "; ".join(dict.fromkeys(map(str, errors)))
        kind = EngineRefused if all(isinstance(error, EngineRefused) for error in errors) else EngineUnavailable
        return kind(f"{self.seeds}: no node returned the slot map: {texts}")

    # ── from threads ──

    def apply(self, op: Op[T]) -> T:
        if type(op) is Apply and self._test_clock is None:  # the hot path, without creating a generator (`procedure`)
            key = self._encoder.key(op)
            node = self.map.node_for(slot_of(key)) if key is not None else None
            link = self.thread_links().get(node) if node is not None else None
            if link is not None and link.is_usable():
                request = op.encoded or self._encoder.request(op)
                raw = link.call_many([PING_FIRST, request] if op.command.wakes_waiters else [request])[-1]
                if type(raw) is bytes:
                    try:
                        result = op.room.decode_reply(raw)
                    except DECODE_ERRORS as error:
                        raise op.room.corrupt_record(op.name, error) from error
                    if type(result) is Expired:
                        self.note_clock(link, result.now)
                    return cast("T", result)
        return cast("T", single_result(self.apply_many([op])))

    def apply_many(self, ops: Sequence[Op[Any]], timeout: float | None = None) -> list[Any]:
        """Run all operations: one round trip to all their nodes in parallel, and further ones after redirects."""
        return ClusterBatch(self, timeout).run(ops)

    def check_open(self) -> None:
        if self._closed:
            raise Closed("this engine is closed")

    def thread_links(self) -> dict[HostPort, BlockingLink]:
        links: dict[HostPort, BlockingLink] | None = getattr(self._threads, "links", None)
        if links is None:
            links = self._threads.links = {}
        return links

    def failed_nodes(self) -> dict[HostPort, float]:
        """Return the nodes on which a request of this thread has failed, each with the time (steady clock) of the last
        failure.
        """
        failed: dict[HostPort, float] | None = getattr(self._threads, "failed", None)
        if failed is None:
            failed = self._threads.failed = {}
        return failed

    def has_link(self, node: HostPort) -> bool:
        link = self.thread_links().get(node)
        return link is not None and link.is_usable()

    def thread_link_to(self, node: HostPort, timeout: float | None) -> BlockingLink:
        links = self.thread_links()
        link = links.get(node)
        if link is None or not link.is_usable():
            self.check_open()
            patience = min(self.address.connect_timeout, timeout or self.address.connect_timeout)
            link = links[node] = BlockingLink(self.seeds.node_address(node), self.client_name, self.tls, patience)
            self.learn_clock(node, link.hello, link.connected_at)
            self._register(link)
        return link

    def thread_subscribers(self) -> None:
        """Return None: on a Cluster, waiting threads do not subscribe to hints on their own connections. The hub
        receives the hints and wakes them. A thread that subscribed on one node and sends commands to others would not
        notice that the first node has died.
        """

    # ── for the hub: a message that is published on any node reaches all nodes ──

    async def connect(self, client_name: str) -> AsyncLink:
        if not self.map.masters:
            await self._nodes.remap()
        errors: list[EngineError] = []
        for node in self.map_sources():
            try:
                return await AsyncLink.connect(self.seeds.node_address(node), client_name, self.tls)
            except EngineError as error:
                errors.append(error)
        raise self.map_error(errors)

    def connect_blocking(self, client_name: str, patience: float | None = None) -> BlockingLink:
        errors: list[EngineError] = []
        for node in self.map_sources():
            try:
                return BlockingLink(self.seeds.node_address(node), client_name, self.tls, patience)
            except EngineError as error:
                errors.append(error)
        raise self.map_error(errors)

    # ── the clocks ──

    def learn_clock(self, node: HostPort, hello: Hello | None, at: float) -> None:
        """Record a node's clock from `hello`, its reply when a connection was opened (at the steady time `at`)."""
        if hello is not None:
            self._set_clock(node, hello.now / 1_000_000 - at)

    def note_clock(self, link: AsyncLink | BlockingLink, now: Micros) -> None:
        """Record the clock of a node that rejected a command as expired: its clock is ahead of this
        engine's estimate.
        """
        self._set_clock(HostPort(link.address.host, link.address.port), now / 1_000_000 - steady())

    def _set_clock(self, node: HostPort, offset: float) -> None:
        with self._clocks_lock:
            self._clocks[node] = offset
            known = [self._clocks[node] for node in self.map.masters if node in self._clocks]
            self._offset = max(known, default=offset)

    def correct_clock(self, now: Micros) -> None:
        """Do nothing. Each node has its own clock, and `now` does not tell which node reported it; `note_clock` has
        already recorded it for that node.
        """

    # ── lifecycle ──

    async def close(self) -> None:
        self._closed = True
        self._nodes.close()
        self.close_blocking()

    def after_fork(self) -> None:
        super().after_fork()
        self._forget_links()
