"""Read the state of one Redis or Valkey server: INFO, settings, replicas and clock."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, cast

from backstay.engine.redis.address import Address, HostPort
from backstay.engine.redis.engine import RedisEngine
from backstay.engine.redis.link.blocking_link import BlockingLink
from backstay.engine.redis.link.protocol import ErrorReply, Hello, pack
from backstay.errors import EngineRefused

#: How often a server's clock is read. The reading with the shortest round trip is the most exact one.
CLOCK_READINGS = 5

#: Returns this host's time in seconds since the epoch.
Clock = Callable[[], float]


class Server:
    """A connection to one Redis server, and that server's reply to INFO. `address` is the server; None: the server that
    the engine itself connects to.
    """

    def __init__(self, engine: RedisEngine, clock: Clock, address: Address | None = None) -> None:
        self.engine = engine
        self.clock = clock
        if address is None:
            self.link = engine.connect_blocking(engine.client_name)
        else:
            self.link = BlockingLink(address, engine.client_name, engine.tls)
        self.place = HostPort(self.link.address.host, self.link.address.port)
        self.hello = self.link.hello or Hello("redis", (), 0)
        #: The hash tag of the key that `check_scripts` writes. On a Cluster it is replaced by a tag whose slot this
        #: server serves, because a server rejects keys of other slots.
        self.tag = "probe"
        info = self.call("INFO")
        text = info.decode(errors="replace") if isinstance(info, bytes) else ""
        self.info: dict[str, str] = dict(re.findall(r"(?m)^([^:#\s]+):(.*?)\r?$", text))

    def call(self, *command: str) -> Any:
        """Send a command and return its reply; an error reply is returned, not raised."""
        return self.link.call_many([pack(*command)])[0]

    def call_many(self, *commands: tuple[str, ...]) -> list[Any]:
        """Send commands in one round trip and return their replies; error replies are returned, not raised."""
        return self.link.call_many([pack(*command) for command in commands])

    def setting(self, name: str) -> str | None:
        """Return a setting of the server; None if this user may not run CONFIG."""
        found = self.call("CONFIG", "GET", name)
        if isinstance(found, dict):  # a map in RESP3, a flat list in RESP2
            found = [part for pair in cast("dict[bytes, bytes]", found).items() for part in pair]
        match found:
            case [_, bytes() as value]:
                return value.decode()
            case _:
                return None

    def number(self, name: str) -> int:
        found = self.info.get(name) or self.setting(name) or ""
        return int(found) if found.isdigit() else 0

    def replicas(self) -> list[dict[str, str]]:
        """Return what the server reports about each replica: ip, port, state, offset, lag."""
        lines = [value for name, value in self.info.items() if re.fullmatch(r"slave\d+", name)]
        return [dict(part.split("=", 1) for part in line.split(",") if "=" in part) for line in lines]

    def measure_skew(self) -> float:
        return measure_skew(self.link, self.clock)


def measure_skew(link: BlockingLink, clock: Clock) -> float:
    """Return the seconds by which a server's clock is ahead of this host's, from the reading with the shortest round
    trip.
    """
    readings: list[tuple[float, float]] = []
    for _ in range(CLOCK_READINGS):
        before = clock()
        reply = link.call_many([pack("TIME")])[0]
        after = clock()
        if isinstance(reply, ErrorReply):
            raise EngineRefused("this user may not run TIME")
        seconds, micros = reply
        readings.append((after - before, int(seconds) + int(micros) / 1_000_000 - (before + after) / 2))
    return min(readings)[1]
