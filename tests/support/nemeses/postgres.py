"""Faults of a PostgreSQL server: killed backends, and a pause of the whole server."""

from __future__ import annotations

import contextlib
import os
import random
import signal

import psycopg

from backstay.engine.base import steady
from backstay.testing.servers.postgres import PostgresServer
from support.nemeses.nemesis import Nemesis, ProcessPool

#: Selects up to three backends that serve Backstay.
ENGINE_BACKENDS = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'backstay%' ORDER BY random() LIMIT 3"


class Crash(Nemesis):
    """Kills one backend with SIGKILL, so that the server ends all backends and recovers; or terminates a few."""

    kind = "crash"

    def __init__(self, server: PostgresServer) -> None:
        super().__init__()
        self._server = server

    def inject(self, pool: ProcessPool, dice: random.Random) -> None:
        # The server may still be recovering from the previous crash.
        with contextlib.suppress(psycopg.Error, ProcessLookupError):
            with psycopg.connect(self._server.admin_url, autocommit=True, connect_timeout=2) as admin:
                pids = [pid for (pid,) in admin.execute(ENGINE_BACKENDS).fetchall()]
            if not pids:  # no client has reconnected yet
                return
            if dice.random() < 0.5:
                os.kill(pids[0], signal.SIGKILL)
                self.counts["crashes"] += 1
            else:
                for pid in pids:
                    os.kill(pid, signal.SIGTERM)
                self.counts["terminations"] += 1


class Standstill(Nemesis):
    """Pauses the whole server for about a second: connections stay open, and no reply comes."""

    kind = "standstill"

    def __init__(self, server: PostgresServer) -> None:
        super().__init__()
        self._server = server
        self._until = 0.0

    def inject(self, pool: ProcessPool, dice: random.Random) -> None:
        if not self._until:
            self._server.pause()
            self._until = steady() + dice.uniform(0.1, 1.2)
            self.counts["standstills"] += 1

    def tick(self) -> None:
        if self._until and steady() >= self._until:
            self.stop()

    def stop(self) -> None:
        if self._until:
            self._until = 0.0
            self._server.resume()
