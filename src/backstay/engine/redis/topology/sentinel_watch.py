"""Watch for failovers: a subscription to one Sentinel, on its own thread.

Without this watch, a new master is noticed only when a command fails, and commands on a replaced master that is still
alive do not fail. The watch uses a RedisHub of its own, which reconnects after each connection loss and reports that
messages may be missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from backstay.engine.redis.address import HostPort
from backstay.engine.redis.link.blocking_link import BlockingLink
from backstay.errors import EngineError, EngineUnavailable
from backstay.hub.redis import RedisHub
from backstay.hub.redis_subscription import ThreadConnector

if TYPE_CHECKING:
    from backstay.engine.redis.topology.sentinel import SentinelEngine

#: The Sentinel that runs a failover publishes the first event when the new master is promoted, and the second when all
#: replicas are reconfigured, which can take minutes. The other Sentinels publish only the second, at once.
EVENTS = ("+promoted-slave", "+switch-master")


class SentinelWatch:
    """Asks a Sentinel for the master whenever the master may have changed, and reports it to the engine. The engine's
    callback must not block.
    """

    def __init__(self, engine: SentinelEngine) -> None:
        self._engine = engine
        self.client_name = f"{engine.client_name}:watch"
        self._sentinel: HostPort | None = None
        self._hub: RedisHub | None = None

    @property
    def is_running(self) -> bool:
        return self._hub is not None

    def start(self) -> None:
        hub = self._hub = RedisHub(ThreadConnector(self, "backstay-sentinel"))
        first, last = EVENTS
        # prompt=True: run the callbacks on the thread that receives the messages. They block it while they ask a
        # Sentinel, which is harmless: this hub has no other subscribers.
        hub.subscribe(first, self._on_event, prompt=True)
        hub.subscribe(last, self._on_event, self._check_master, prompt=True)

    def connect_blocking(self, client_name: str, patience: float | None = None) -> BlockingLink:
        """Connect to the first Sentinel that responds, starting with the last one that did."""
        engine = self._engine
        errors: list[EngineError] = []
        for place in engine.sentinels:
            try:
                link = engine.call_sentinel(place, client_name, patience)
            except EngineError as error:
                errors.append(error)
                continue
            self._sentinel = place
            return link
        raise EngineUnavailable(f"{engine.seeds}: no Sentinel can be reached: {'; '.join(map(str, errors))}")

    def _on_event(self, event: str | None) -> None:
        """Ask which server is the master after an event about the engine's service. `event` is None after a reconnect,
        when events may have been missed.
        """
        if event is None or self._engine.seeds.service in event.split(" "):
            self._check_master()

    def _check_master(self) -> None:
        sentinel = self._sentinel
        if sentinel is None:
            return
        try:
            link = self._engine.call_sentinel(sentinel, self.client_name)
        except EngineError:
            return  # the next command that fails triggers a search for the master
        link.close()
        self._engine.on_master_report(sentinel, link.handshake_result)

    def stop(self) -> None:
        """Stop watching. Safe to call twice."""
        if self._hub is not None:
            self._hub.close()

    def after_fork(self) -> None:
        """In a forked child: forget the hub, whose thread exists only in the parent and whose connection the parent
        uses.
        """
        self._hub = None
