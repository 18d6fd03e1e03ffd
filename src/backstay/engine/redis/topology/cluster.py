"""Redis Cluster as an engine: each name lives on the node that serves its slot, on that node's clock."""

from __future__ import annotations

import asyncio
import random
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from backstay.engine.base import UNREADABLE, Apply, Expired, Micros, Op, Scan, only, steady
from backstay.engine.redis.address import Place
from backstay.engine.redis.coalescing import Gathered
from backstay.engine.redis.encoder import Talk, To
from backstay.engine.redis.engine import RedisEngine
from backstay.engine.redis.link.async_link import AsyncLink
from backstay.engine.redis.link.blocking_link import BlockingLink
from backstay.engine.redis.link.protocol import AFTER_YOU, Hello, Refusal, refused
from backstay.engine.redis.topology.cluster_batch import Errands
from backstay.engine.redis.topology.cluster_nodes import Nodes
from backstay.engine.redis.topology.cluster_replica_ack import ClusterWitness
from backstay.engine.redis.topology.open import Seeds
from backstay.engine.redis.topology.slots import HEALS, HOPS, PAUSE, SlotMap, redirect, slot_of
from backstay.errors import Closed, EngineError, EngineRefused, EngineUnavailable

T = TypeVar("T")


class ClusterEngine(RedisEngine):
    """One link per node for the event loop, and one per node for each thread that asks."""

    spreads = True

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
        self.talks = self._talks
        self.map = SlotMap()
        self._witness = ClusterWitness(self)
        #: Who is told what any node may be told.
        self._anyone: Place | None = None
        self._forget_links()

    def _forget_links(self) -> None:
        self._nodes = Nodes(self)
        self._clocks: dict[Place, float] = {}
        self._clocks_lock = threading.Lock()

    # ── from the loop ──

    async def submit(self, op: Op[T]) -> T:
        if type(op) is Scan:
            return cast("T", await self._scan(op))
        if type(op) is Gathered:
            return cast("T", await self._gathered().submit(op))
        key = self._talks.key(op)
        slot = slot_of(key) if key is not None else None
        if type(op) is Apply and self._test_clock is None:  # the hot path, without a generator
            raw, link = await self._send(slot, op.wire or self._talks.request(op), hands_over=op.command.hands_over)
            if type(raw) is bytes:
                try:
                    answer = op.room.decode_reply(raw)
                except UNREADABLE as error:
                    raise op.room.unreadable(op.name, error) from error
                if type(answer) is Expired:
                    self.told(link, answer.now)
                return cast("T", answer)
            if raw.code != "NOSCRIPT":
                raise self._refused(raw, link)
        return cast("T", await self._converse(self._talks.of(op), slot))

    async def _converse(self, talk: Talk, slot: int | None, only_at: Place | None = None) -> Any:
        link: AsyncLink | None = None
        try:
            request = next(talk)
            while True:
                if isinstance(request, To):
                    reply, link = await self._send(slot_of(request.key), request.request)
                else:
                    reply, link = await self._send(slot, request, only_at=only_at)
                request = talk.send(reply)
        except StopIteration as done:
            return done.value
        except Refusal as refusal:
            raise refused(refusal, link.address if link else self.address) from None

    async def _send(
        self, slot: int | None, request: bytes, *, hands_over: bool = False, only_at: Place | None = None
    ) -> tuple[Any, AsyncLink]:
        """Send to whoever serves the slot, and on to wherever it says. Waits for a failover to end."""
        place, asking, hops, until = only_at, False, 0, 0.0
        while True:
            try:
                target = place or (self.map.serving(slot) if slot is not None else self.anyone())
                if target is None:
                    target = await self._locate(slot)
                link = self._nodes.links.get(target)
                if link is None or not link.ready:
                    link = await self._nodes.join(target)
                if asking:
                    reply = await link.send_asking(request)
                else:
                    reply = await (link.hand_over(request) if hands_over else link.send(request))
            except EngineUnavailable as error:
                if only_at is not None:
                    raise
                place, asking = None, False
                if slot is None:
                    self.not_that_one()
                until = await self._heal(error, until)
                continue
            if type(reply) is not Refusal:
                return reply, link
            if to := redirect(reply, target):
                hops += 1
                if hops > HOPS:
                    raise EngineUnavailable(f"{self.seeds}: slot {to.slot} is sent from node to node")
                place, asking = to.place, to.once
                if not to.once:
                    self.map.moved(to)
            elif reply.code in HEALS and only_at is None:
                place, asking = None, False
                until = await self._heal(self.unserved(reply, link, slot), until)
            else:
                return reply, link

    def unserved(self, refusal: Refusal, link: AsyncLink | BlockingLink, slot: int | None) -> EngineError:
        if refusal.code == "CLUSTERDOWN" and slot is not None:
            return EngineUnavailable(f"{self.seeds}: slot {slot} is not served: {link.address} says {refusal}")
        return refused(refusal, link.address)

    def anyone(self) -> Place | None:
        """A master, and always the same: messages that one process sends through two nodes may overtake each other."""
        if self._anyone not in self.map.masters:
            self._anyone = random.choice(self.map.masters) if self.map.masters else None
        return self._anyone

    def not_that_one(self) -> None:
        """It does not answer: another is asked until the map is right again."""
        others = [place for place in self.map.masters if place != self._anyone]
        self._anyone = random.choice(others) if others else None

    async def _locate(self, slot: int | None) -> Place:
        await self._nodes.remap()
        return self.located(slot)

    def located(self, slot: int | None) -> Place:
        """Where a fresh map says that a slot is."""
        place = self.map.serving(slot) if slot is not None else self.anyone()
        if place is None:
            raise EngineUnavailable(f"{self.seeds}: no node serves slot {slot}; see CLUSTER SLOTS")
        return place

    async def _heal(self, error: EngineError, until: float) -> float:
        """Look at the map again, unless this has lasted too long; answers when that will be."""
        if not until:  # before there was a map, waiting would only hide a mistake in the URL
            until = steady() + self.seeds.failover if self.map.masters else -1.0
        if steady() > until or self._closed:
            raise error
        await asyncio.sleep(random.uniform(PAUSE / 2, PAUSE))
        try:
            await self._nodes.remap()
        except EngineUnavailable:
            if steady() > until:
                raise
        return until

    async def _scan(self, op: Scan) -> list[str]:
        found: set[str] = set()
        await self._nodes.remap()
        for place in self.map.masters:
            found.update(await self._converse(self._talks.of(op), None, place))
        return sorted(found)

    # ── the map ──

    def guides(self) -> list[Place]:
        """Whom to ask for the map: in no order, lest we ask one that is cut off again and again."""
        known = list(self.map.masters)
        random.shuffle(known)
        return list(dict.fromkeys([*known, *self.seeds.places, *self.map.replicas]))

    def lost(self, troubles: list[EngineError]) -> EngineError:
        said = "; ".join(dict.fromkeys(map(str, troubles)))
        kind = EngineRefused if all(isinstance(error, EngineRefused) for error in troubles) else EngineUnavailable
        return kind(f"{self.seeds}: no node tells who serves what: {said}")

    # ── from threads ──

    def apply(self, op: Op[T]) -> T:
        if type(op) is Apply and self._test_clock is None:  # the hot path, without a generator
            key = self._talks.key(op)
            place = self.map.serving(slot_of(key)) if key is not None else None
            link = self.thread_links().get(place) if place is not None else None
            if link is not None and link.ready:
                request = op.wire or self._talks.request(op)
                raw = link.call_many([AFTER_YOU, request] if op.command.hands_over else [request])[-1]
                if type(raw) is bytes:
                    try:
                        answer = op.room.decode_reply(raw)
                    except UNREADABLE as error:
                        raise op.room.unreadable(op.name, error) from error
                    if type(answer) is Expired:
                        self.told(link, answer.now)
                    return cast("T", answer)
        return cast("T", only(self.apply_many([op])))

    def apply_many(self, ops: Sequence[Op[Any]], timeout: float | None = None) -> list[Any]:
        """All operations in one trip per node, to all nodes at once; more trips for those that were sent on."""
        return Errands(self, timeout).run(ops)

    def check_open(self) -> None:
        if self._closed:
            raise Closed("this engine is closed")

    def thread_links(self) -> dict[Place, BlockingLink]:
        links: dict[Place, BlockingLink] | None = getattr(self._threads, "links", None)
        if links is None:
            links = self._threads.links = {}
        return links

    def silent_nodes(self) -> dict[Place, float]:
        """When a node last failed this thread."""
        silent: dict[Place, float] | None = getattr(self._threads, "silent", None)
        if silent is None:
            silent = self._threads.silent = {}
        return silent

    def has_line(self, place: Place) -> bool:
        link = self.thread_links().get(place)
        return link is not None and link.ready

    def thread_link_to(self, place: Place, timeout: float | None) -> BlockingLink:
        links = self.thread_links()
        link = links.get(place)
        if link is None or not link.ready:
            self.check_open()
            patience = min(self.address.connect_timeout, timeout or self.address.connect_timeout)
            link = links[place] = BlockingLink(self.seeds.at(place), self.client_name, self.tls, patience)
            self.meet(place, link.hello, link.connected_at)
            self._keep(link)
        return link

    def thread_ears(self) -> None:
        """The hub hears for threads: a thread's own line to one node would not notice when that node falls silent
        while the thread only talks to others.
        """

    # ── for the hub: every node hears what is published on any ──

    async def dial(self, client_name: str) -> AsyncLink:
        if not self.map.masters:
            await self._nodes.remap()
        troubles: list[EngineError] = []
        for place in self.guides():
            try:
                return await AsyncLink.connect(self.seeds.at(place), client_name, self.tls)
            except EngineError as error:
                troubles.append(error)
        raise self.lost(troubles)

    def dial_blocking(self, client_name: str, patience: float | None = None) -> BlockingLink:
        troubles: list[EngineError] = []
        for place in self.guides():
            try:
                return BlockingLink(self.seeds.at(place), client_name, self.tls, patience)
            except EngineError as error:
                troubles.append(error)
        raise self.lost(troubles)

    # ── the clocks ──

    def meet(self, place: Place, hello: Hello | None, at: float) -> None:
        """A node said what time it is."""
        if hello is not None:
            self._set_clock(place, hello.now / 1_000_000 - at)

    def told(self, link: AsyncLink | BlockingLink, now: Micros) -> None:
        """A node found a command too late: its clock is ahead of what we thought."""
        self._set_clock(Place(link.address.host, link.address.port), now / 1_000_000 - steady())

    def _set_clock(self, place: Place, offset: float) -> None:
        with self._clocks_lock:
            self._clocks[place] = offset
            known = [self._clocks[place] for place in self.map.masters if place in self._clocks]
            self._offset = max(known, default=offset)

    def correct(self, now: Micros) -> None:
        """Nothing to do: the node that said so has been remembered as the one that did."""

    # ── life ──

    async def close(self) -> None:
        self._closed = True
        self._nodes.close()
        self.close_blocking()

    def after_fork(self) -> None:
        super().after_fork()
        self._forget_links()
