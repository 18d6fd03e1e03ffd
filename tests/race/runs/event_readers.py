"""Readers of server-sent events that are disconnected repeatedly and resume with Last-Event-ID."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import httpx

#: A paused server sends nothing for this long: then the reader switches to another.
SILENCE = 4.0
#: A reader leaves by itself, at one event in so many; one that reads the events of all runs has many more to read.
LEAVES, LEAVES_ALL = 60, 600
OK, AWAY = 200, 503


class Seen(NamedTuple):
    """An event as a reader got it."""

    id: str
    kind: str
    data: dict[str, Any]


class Readers:
    """`follow` one run, or `follow_all`. What a server must never answer is in `wrong`."""

    def __init__(self, client: httpx.AsyncClient, servers: list[str], dice: random.Random) -> None:
        self._client = client
        self._servers = servers
        self._dice = dice
        self.wrong: list[str] = []
        self.comebacks = 0
        #: What `follow_all` has seen so far.
        self.everything: list[Seen] = []

    async def follow(self, run: str) -> list[Seen]:
        """All events of a run, as they were told."""
        found: list[Seen] = []
        await self._gather(found, f"/api/runs/{run}/events/stream", {}, lambda seen: seen.kind == "end", LEAVES)
        return found

    async def follow_all(self, enough: Callable[[Seen], bool]) -> None:
        """Events of all runs, until there are enough."""
        await self._gather(self.everything, "/api/events", {"after": "0"}, enough, LEAVES_ALL)

    async def _gather(
        self, found: list[Seen], path: str, params: dict[str, str], enough: Callable[[Seen], bool], leaves: int
    ) -> None:
        last = ""
        while True:
            headers = {"last-event-id": last} if last else {}
            try:
                url = self._dice.choice(self._servers) + path
                async with self._client.stream("GET", url, params=params, headers=headers, timeout=SILENCE) as got:
                    if got.status_code == OK:
                        async for seen in _events(got.aiter_lines()):
                            if seen.kind != "end":
                                found.append(seen)
                                last = seen.id
                            if enough(seen):
                                return
                            if not self._dice.randrange(leaves):
                                break
                    elif got.status_code != AWAY:
                        self.wrong.append(f"{path}: {got.status_code} {(await got.aread())[:300]!r}")
            except httpx.HTTPError:
                pass
            self.comebacks += 1
            await asyncio.sleep(self._dice.uniform(0.02, 0.3))


async def _events(lines: AsyncIterator[str]) -> AsyncIterator[Seen]:
    fields: dict[str, str] = {}
    async for line in lines:
        if not line and "event" in fields:
            yield Seen(fields.get("id", ""), fields["event"], json.loads(fields["data"]))
        if not line:
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
