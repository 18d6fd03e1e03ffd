"""Readers of server-sent events that are disconnected repeatedly and resume with Last-Event-ID."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import httpx

#: Seconds without data after which a reader gives up on a server, which may be paused, and connects to a random one.
READ_TIMEOUT = 4.0
#: A reader disconnects after one in this many events, at random. A stream of all runs has many more events.
DISCONNECTS, DISCONNECTS_OF_ALL = 60, 600
OK, UNAVAILABLE = 200, 503


class Received(NamedTuple):
    """An event as a reader received it."""

    id: str
    kind: str
    data: dict[str, Any]


class Readers:
    """Reads the events of one run (`follow`) or of all runs (`follow_all`). `violations` has the responses that no
    server may send.
    """

    def __init__(self, client: httpx.AsyncClient, servers: list[str], dice: random.Random) -> None:
        self._client = client
        self._servers = servers
        self._dice = dice
        self.violations: list[str] = []
        self.reconnects = 0
        #: The events that `follow_all` has received so far.
        self.everything: list[Received] = []

    async def follow(self, run: str) -> list[Received]:
        """Return all events of a run in the order of their arrival."""
        found: list[Received] = []
        path = f"/api/runs/{run}/events/stream"
        await self._gather(found, path, {}, lambda event: event.kind == "end", DISCONNECTS)
        return found

    async def follow_all(self, is_last: Callable[[Received], bool]) -> None:
        """Collect the events of all runs in `everything` until `is_last(event)` is true."""
        await self._gather(self.everything, "/api/events", {"after": "0"}, is_last, DISCONNECTS_OF_ALL)

    async def _gather(
        self,
        found: list[Received],
        path: str,
        params: dict[str, str],
        is_last: Callable[[Received], bool],
        disconnects: int,
    ) -> None:
        last = ""
        while True:
            headers = {"last-event-id": last} if last else {}
            try:
                url = self._dice.choice(self._servers) + path
                async with self._client.stream("GET", url, params=params, headers=headers, timeout=READ_TIMEOUT) as got:
                    if got.status_code == OK:
                        async for event in _events(got.aiter_lines()):
                            if event.kind != "end":
                                found.append(event)
                                last = event.id
                            if is_last(event):
                                return
                            if not self._dice.randrange(disconnects):
                                break
                    elif got.status_code != UNAVAILABLE:
                        self.violations.append(f"{path}: {got.status_code} {(await got.aread())[:300]!r}")
            except httpx.HTTPError:
                pass
            self.reconnects += 1
            await asyncio.sleep(self._dice.uniform(0.02, 0.3))


async def _events(lines: AsyncIterator[str]) -> AsyncIterator[Received]:
    fields: dict[str, str] = {}
    async for line in lines:
        if not line and "event" in fields:
            yield Received(fields.get("id", ""), fields["event"], json.loads(fields["data"]))
        if not line:
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
