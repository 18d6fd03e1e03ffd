"""The event loop's links to the nodes of a Cluster, one per node, opened on first use."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from backstay.engine.redis.address import HostPort
from backstay.engine.redis.link.async_link import AsyncLink
from backstay.engine.redis.topology.slots import CLUSTER_SLOTS
from backstay.errors import EngineError

if TYPE_CHECKING:
    from backstay.engine.redis.topology.cluster import ClusterEngine


class NodeLinks:
    """The open links, by node. Callers that need the same node at the same time share one connection attempt. The
    attempt continues if one of these callers is cancelled.
    """

    def __init__(self, engine: ClusterEngine) -> None:
        self._engine = engine
        self.links: dict[HostPort, AsyncLink] = {}
        self._connecting: dict[HostPort, asyncio.Task[AsyncLink]] = {}
        self._remapping: asyncio.Task[None] | None = None
        #: Links to nodes that serve no slots any more. Each stays open until the replies to its sent requests have
        #: arrived.
        self._retired: set[AsyncLink] = set()

    async def link_to(self, node: HostPort) -> AsyncLink:
        """Return the link to a node; connect if necessary."""
        self._engine.check_open()
        task = self._connecting.get(node)
        if task is None:
            task = self._connecting[node] = asyncio.get_running_loop().create_task(self._connect(node))
            task.add_done_callback(lambda done: self._connect_done(node, done))
        return await asyncio.shield(task)

    async def _connect(self, node: HostPort) -> AsyncLink:
        engine = self._engine
        link = await AsyncLink.connect(engine.seeds.node_address(node), engine.client_name, engine.tls)
        engine.learn_clock(node, link.hello, link.connected_at)
        self.links[node] = link
        link.closed.add_done_callback(lambda _: engine.observe("disconnected"))
        engine.observe("connected")
        return link

    def _connect_done(self, node: HostPort, task: asyncio.Task[AsyncLink]) -> None:
        self._connecting.pop(node, None)
        if not task.cancelled():
            # asyncio warns about an exception that is never retrieved, as when all callers were cancelled.
            task.exception()

    async def remap(self) -> None:
        """Load the slot map from any node."""
        if self._remapping is None:
            self._remapping = asyncio.get_running_loop().create_task(self._load_map())
            self._remapping.add_done_callback(self._remap_done)
        await asyncio.shield(self._remapping)

    def _remap_done(self, task: asyncio.Task[None]) -> None:
        self._remapping = None
        if not task.cancelled():
            task.exception()

    async def _load_map(self) -> None:
        engine = self._engine
        errors: list[EngineError] = []
        for node in engine.map_sources():
            try:
                link = self.links.get(node)
                if link is None or not link.is_usable():
                    link = await self.link_to(node)
                engine.map.update(await link.send(CLUSTER_SLOTS), link.address)
            except EngineError as error:
                errors.append(error)
            else:
                self._retire_unused()
                return
        if not engine.map.masters:  # without a map, none of the links is needed
            self._retire_unused()
        raise engine.map_error(errors)

    def _retire_unused(self) -> None:
        """Retire links to nodes that serve no slots any more: replicas, and nodes that left the Cluster."""
        for node in [node for node in self.links if node not in self._engine.map.masters]:
            link = self.links.pop(node)
            self._retired = {link, *(other for other in self._retired if not other.closed.done())}
            link.retire()

    def close(self) -> None:
        """Close all links. Safe to call twice."""
        for task in [*self._connecting.values(), *([self._remapping] if self._remapping else [])]:
            task.cancel()
        for link in [*self.links.values(), *self._retired]:
            link.abort()
