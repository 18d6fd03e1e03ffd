"""The event loop's links to a Cluster: one for each node, made when it is first needed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from backstay.engine.redis.address import Place
from backstay.engine.redis.link.async_link import AsyncLink
from backstay.engine.redis.topology.slots import WHOLE_MAP
from backstay.errors import EngineError

if TYPE_CHECKING:
    from backstay.engine.redis.topology.cluster import ClusterEngine


class Nodes:
    """Links by place. Whoever asks for the same thing at the same time shares one attempt; a caller's cancellation
    is its own.
    """

    def __init__(self, engine: ClusterEngine) -> None:
        self._engine = engine
        self.links: dict[Place, AsyncLink] = {}
        self._joining: dict[Place, asyncio.Task[AsyncLink]] = {}
        self._mapping: asyncio.Task[None] | None = None
        #: Links that nobody uses any more, with replies still to come.
        self._retired: set[AsyncLink] = set()

    async def join(self, place: Place) -> AsyncLink:
        """The link to a node."""
        self._engine.check_open()
        task = self._joining.get(place)
        if task is None:
            task = self._joining[place] = asyncio.get_running_loop().create_task(self._connect(place))
            task.add_done_callback(lambda done: self._joined(place, done))
        return await asyncio.shield(task)

    async def _connect(self, place: Place) -> AsyncLink:
        engine = self._engine
        link = await AsyncLink.connect(engine.seeds.at(place), engine.client_name, engine.tls)
        engine.meet(place, link.hello, link.connected_at)
        self.links[place] = link
        link.closed.add_done_callback(lambda _: engine.observe("disconnected"))
        engine.observe("connected")
        return link

    def _joined(self, place: Place, task: asyncio.Task[AsyncLink]) -> None:
        self._joining.pop(place, None)
        if not task.cancelled():
            task.exception()  # looked at, so that nobody is warned when all callers have gone

    async def remap(self) -> None:
        """Ask any node for the map."""
        if self._mapping is None:
            self._mapping = asyncio.get_running_loop().create_task(self._ask_for_map())
            self._mapping.add_done_callback(self._mapped)
        await asyncio.shield(self._mapping)

    def _mapped(self, task: asyncio.Task[None]) -> None:
        self._mapping = None
        if not task.cancelled():
            task.exception()

    async def _ask_for_map(self) -> None:
        engine = self._engine
        troubles: list[EngineError] = []
        for place in engine.guides():
            try:
                link = self.links.get(place)
                if link is None or not link.ready:
                    link = await self.join(place)
                engine.map.learn(await link.send(WHOLE_MAP), link.address)
            except EngineError as error:
                troubles.append(error)
            else:
                self._drop_strangers()
                return
        if not engine.map.masters:  # whoever was reached is of no use
            self._drop_strangers()
        raise engine.lost(troubles)

    def _drop_strangers(self) -> None:
        """Links to nodes that serve nothing any more: a replica, or one that was taken out."""
        for place in [place for place in self.links if place not in self._engine.map.masters]:
            link = self.links.pop(place)
            self._retired = {link, *(other for other in self._retired if not other.closed.done())}
            link.retire()

    def close(self) -> None:
        """Let go of everything. Safe twice."""
        for task in [*self._joining.values(), *([self._mapping] if self._mapping else [])]:
            task.cancel()
        for link in [*self.links.values(), *self._retired]:
            link.abort()
