"""Hears of a failover when it happens: a subscription to one Sentinel, on a thread of its own.

Without it a new master is noticed at the next command that fails, and a master that was replaced while it lives fails
none. It is a hub of its own: one connection that is opened again after each break, and told of the break.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from backstay.engine.redis.address import Place
from backstay.engine.redis.link.blocking_link import BlockingLink
from backstay.errors import EngineError, EngineUnavailable
from backstay.hub.redis import RedisHub
from backstay.hub.redis_connection import ThreadDialer

if TYPE_CHECKING:
    from backstay.engine.redis.topology.sentinel import SentinelEngine

#: A Sentinel says the first as soon as the new master is one, the second when it has told all replicas: minutes later,
#: perhaps, if one does not answer. The other Sentinels say only the second, and at once.
NEWS = ("+promoted-slave", "+switch-master")


class SentinelWatch:
    """Asks who the master is whenever that may have changed. Whoever reads what it says must not block it."""

    def __init__(self, engine: SentinelEngine) -> None:
        self._engine = engine
        self.client_name = f"{engine.client_name}:watch"
        self._sentinel: Place | None = None
        self._hub: RedisHub | None = None

    @property
    def running(self) -> bool:
        return self._hub is not None

    def start(self) -> None:
        hub = self._hub = RedisHub(ThreadDialer(self, "backstay-sentinel"))
        first, last = NEWS
        hub.subscribe(first, self._heard, prompt=True)  # nobody else waits for this hub's thread
        hub.subscribe(last, self._heard, self._look, prompt=True)

    def dial_blocking(self, client_name: str, patience: float | None = None) -> BlockingLink:
        """The first Sentinel that answers, of those who answered last."""
        engine = self._engine
        troubles: list[EngineError] = []
        for place in engine.sentinels:
            try:
                link = engine.call_sentinel(place, client_name, patience)
            except EngineError as error:
                troubles.append(error)
                continue
            self._sentinel = place
            return link
        raise EngineUnavailable(f"{engine.seeds}: no Sentinel can be heard: {'; '.join(map(str, troubles))}")

    def _heard(self, news: str | None) -> None:
        """None: some may have been missed."""
        if news is None or self._engine.seeds.service in news.split(" "):
            self._look()

    def _look(self) -> None:
        sentinel = self._sentinel
        if sentinel is None:
            return
        try:
            link = self._engine.call_sentinel(sentinel, self.client_name)
        except EngineError:
            return  # the next command that fails will find out
        link.close()
        self._engine.told_of_master(sentinel, link.told)

    def stop(self) -> None:
        """Safe twice."""
        if self._hub is not None:
            self._hub.close()

    def after_fork(self) -> None:
        """The parent's thread is not here, and its connection is not ours to end."""
        self._hub = None
