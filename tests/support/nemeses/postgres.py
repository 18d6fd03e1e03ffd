"""Trouble that only PostgreSQL knows: one backend's crash ends all of them, and a server can stop as a whole."""

from __future__ import annotations

import contextlib
import os
import random
import signal

import psycopg

from backstay.engine.base import steady
from backstay.testing.servers.postgres import PostgresServer
from support.nemeses.nemesis import Nemesis, Ring

OURS = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'backstay%' ORDER BY random() LIMIT 3"


class Crash(Nemesis):
    """kill -9 for one backend, after which the server ends all the others and recovers; or terminate a few backends."""

    kind = "crash"

    def __init__(self, server: PostgresServer) -> None:
        super().__init__()
        self._server = server

    def strike(self, ring: Ring, dice: random.Random) -> None:
        with contextlib.suppress(psycopg.Error, ProcessLookupError):  # it recovers from the last one
            with psycopg.connect(self._server.admin_url, autocommit=True, connect_timeout=2) as admin:
                pids = [pid for (pid,) in admin.execute(OURS).fetchall()]
            if not pids:  # no client has reconnected yet
                return
            if dice.random() < 0.5:
                os.kill(pids[0], signal.SIGKILL)
                self.done["crashes"] += 1
            else:
                for pid in pids:
                    os.kill(pid, signal.SIGTERM)
                self.done["ended"] += 1


class Standstill(Nemesis):
    """Pause the whole server for a moment: connections stay open, no reply comes."""

    kind = "standstill"

    def __init__(self, server: PostgresServer) -> None:
        super().__init__()
        self._server = server
        self._until = 0.0

    def strike(self, ring: Ring, dice: random.Random) -> None:
        if not self._until:
            self._server.pause()
            self._until = steady() + dice.uniform(0.1, 1.2)
            self.done["standstills"] += 1

    def tick(self) -> None:
        if self._until and steady() >= self._until:
            self.settle()

    def settle(self) -> None:
        if self._until:
            self._until = 0.0
            self._server.resume()
