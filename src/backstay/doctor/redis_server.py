"""One Redis or Valkey server as a doctor sees it: what it says of itself, its settings, its clock."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, cast

from backstay.engine.redis.address import Address, Place
from backstay.engine.redis.engine import RedisEngine
from backstay.engine.redis.link.blocking_link import BlockingLink
from backstay.engine.redis.link.protocol import Hello, Refusal, pack
from backstay.errors import EngineRefused

#: Of several looks at a clock the quickest is the most exact.
LOOKS = 5

#: Seconds since the epoch as this host sees them.
Clock = Callable[[], float]


class Server:
    """INFO, the settings where they may be read, and a link to ask more. `address`: not where the engine would go."""

    def __init__(self, engine: RedisEngine, clock: Clock, address: Address | None = None) -> None:
        self.engine = engine
        self.clock = clock
        if address is None:
            self.link = engine.dial_blocking(engine.client_name)
        else:
            self.link = BlockingLink(address, engine.client_name, engine.tls)
        self.place = Place(self.link.address.host, self.link.address.port)
        self.hello = self.link.hello or Hello("redis", (), 0)
        #: Between the braces of the key that is written to try things out: on a Cluster, it says who may.
        self.tag = "probe"
        info = self.ask("INFO")
        text = info.decode(errors="replace") if isinstance(info, bytes) else ""
        self.info: dict[str, str] = dict(re.findall(r"(?m)^([^:#\s]+):(.*?)\r?$", text))

    def ask(self, *command: str) -> Any:
        """A reply; a refusal is one, too."""
        return self.link.call_many([pack(*command)])[0]

    def setting(self, name: str) -> str | None:
        """A setting, or None where CONFIG is not for us."""
        found = self.ask("CONFIG", "GET", name)
        if isinstance(found, dict):  # RESP3; RESP2 makes a list of the same
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
        """What the server says of each: ip, port, state, offset, lag."""
        lines = [value for name, value in self.info.items() if re.fullmatch(r"slave\d+", name)]
        return [dict(part.split("=", 1) for part in line.split(",") if "=" in part) for line in lines]

    def skew(self) -> float:
        return skew(self.link, self.clock)


def skew(link: BlockingLink, clock: Clock) -> float:
    """Seconds by which a server's clock is ahead of this host's, from the quickest of some looks."""
    looks: list[tuple[float, float]] = []
    for _ in range(LOOKS):
        before = clock()
        reply = link.call_many([pack("TIME")])[0]
        after = clock()
        if isinstance(reply, Refusal):
            raise EngineRefused("TIME is not for this user")
        seconds, micros = reply
        looks.append((after - before, int(seconds) + int(micros) / 1_000_000 - (before + after) / 2))
    return min(looks)[1]
