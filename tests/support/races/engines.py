"""Start an engine for a race, behind a proxy if it is a server, and create nemeses for it by kind."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backstay.testing.proxy import FaultProxy
from backstay.testing.servers import RedisServer
from backstay.testing.servers.ports import reserve_port
from backstay.testing.servers.postgres import PostgresServer
from support.nemeses.nemesis import Cut, Kill, Nemesis, Pause, Restart, Term
from support.nemeses.postgres import Crash, Standstill
from support.servers import running

#: URL options of processes behind a proxy: shorter timeouts than the default, so that a race of seconds has many lost
#: replies.
SHORT_TIMEOUTS = "?timeout=0.5&connect_timeout=1"
#: The names under which each kind of nemesis counts its faults.
COUNTED_AS = {
    "kill": ["kills"],
    "pause": ["pauses"],
    "term": ["terms"],
    "restart": ["restarts"],
    "faults": ["faults"],
    "crash": ["crashes", "terminations"],
    "standstill": ["standstills"],
}


@dataclass
class RaceEngine:
    """An engine of a race. Its processes use `url`, which may lead through a proxy; the checks use `direct`."""

    url: str
    direct: str
    server: Any = None
    proxy: FaultProxy | None = None

    def nemeses(self, kinds: list[str], lease: float) -> list[Nemesis]:
        makers = {
            "kill": Kill,
            "pause": lambda: Pause(lease),
            "term": Term,
            "restart": lambda: Restart(self.server),
            "faults": lambda: Cut(self.proxy),
            "crash": lambda: Crash(self.server),
            "standstill": lambda: Standstill(self.server),
        }
        return [makers[kind]() for kind in kinds]


@contextlib.contextmanager
def race_server(kind: str, *, aof: bool = True) -> Iterator[Any]:
    """Start a Redis or a PostgreSQL on a port that it keeps over restarts."""
    with running(RedisServer(port=reserve_port(), aof=aof) if kind == "redis" else PostgresServer()) as server:
        yield server


@contextlib.contextmanager
def race_engine(kind: str, folder: Path, seed: int, *, aof: bool = True) -> Iterator[RaceEngine]:
    """Yield a new SQLite file, or a new server behind a fault-injecting proxy."""
    if kind == "sqlite":
        url = f"sqlite:///{folder}/race.db"
        yield RaceEngine(url, url)
        return
    with race_server(kind, aof=aof) as server, FaultProxy(server.port, seed=seed) as proxy:
        yield RaceEngine(proxy.instead_of(server.url) + SHORT_TIMEOUTS, server.url, server, proxy)


def assert_faults_were_injected(faults: dict[str, int], kinds: list[str]) -> None:
    for kind in kinds:
        assert sum(faults[name] for name in COUNTED_AS[kind]) > 0, f"no {kind} was injected"
