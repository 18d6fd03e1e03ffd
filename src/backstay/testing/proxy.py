"""A TCP proxy that loses, delays, cuts and hoards what passes: every way in which a network lies to a client.

Faults are rules over requests, switched at run time. A connection whose reply was swallowed stays silent for good,
since what follows would be read as the answer to another question; new connections work once `heal()` was called.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeVar
from urllib.parse import urlsplit

T = TypeVar("T")

#: drop: forwarded, but no reply ever comes back on this connection, which stays open.
#: delay: forwarded after `seconds`.    late: the replies come `seconds` late.
#: cut-before: closed, nothing was forwarded.    cut-after: forwarded and carried out, closed instead of answered.
#: hold: kept until `deliver_held()`, however long the client has been gone by then.
#: blackhole: nothing passes any more, in either direction, on an open connection.
Action = Literal["drop", "delay", "late", "cut-before", "cut-after", "hold", "blackhole"]

CHUNK = 65536
#: Nothing inside the proxy takes longer, unless a fault says so.
STEP = 5.0


@dataclass
class Rule:
    """What happens to requests that contain `match`: to each with probability `chance`, `times` times at most."""

    action: Action
    match: bytes = b""
    chance: float = 1.0
    times: int | None = None
    seconds: float = 0.0
    #: Set when it has struck.
    struck: threading.Event = field(default_factory=threading.Event)


class Pair:
    """One client's connection and the one to the server that stands behind it."""

    def __init__(
        self, client: asyncio.StreamWriter, server: asyncio.StreamWriter, replies: asyncio.StreamReader
    ) -> None:
        self.client = client
        self.server = server
        self.replies = replies
        self.silent = False
        self.deaf = False
        self.cut_at_reply = False
        self.late = 0.0
        self.held: list[bytes] = []
        #: Set while held requests are delivered: what the server said to them.
        self.heard: asyncio.Future[bytes] | None = None

    def abort(self) -> None:
        self.client.transport.abort()
        self.server.transport.abort()


class FaultProxy:
    """Stands before a server on the loopback. Passes everything on until told otherwise. Closing twice is safe."""

    def __init__(self, port: int, *, host: str = "127.0.0.1", seed: int = 0) -> None:
        self.upstream = (host, port)
        self.port = 0
        #: How often each fault has struck.
        self.struck: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._rules: tuple[Rule, ...] = ()
        self._muted = False
        self._refusing = False
        self._pairs: set[Pair] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._listener: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def instead_of(self, url: str) -> str:
        """The same URL, by way of this proxy: user, password, database and options stay."""
        parts = urlsplit(url)
        user, at, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{user}{at}127.0.0.1:{self.port}").geturl()

    # ── faults ──

    def rule(
        self,
        action: Action,
        match: bytes = b"",
        *,
        chance: float = 1.0,
        times: int | None = None,
        seconds: float = 0.0,
    ) -> Rule:
        """From now on this happens to matching requests. The first rule that strikes wins."""
        rule = Rule(action, match, chance, times, seconds)
        self._rules = (*self._rules, rule)
        return rule

    def once(self, action: Action, match: bytes = b"", *, seconds: float = 0.0) -> Rule:
        """The next matching request only; `rule.struck.wait()` tells when."""
        return self.rule(action, match, times=1, seconds=seconds)

    def drop_replies(self) -> None:
        """Every reply and push from now on is swallowed; connections stay open."""
        self._muted = True

    def refuse(self) -> None:
        """Cut every connection and close new ones at once: nobody is there."""
        self._refusing = True
        self.cut_all()

    def heal(self) -> None:
        """No more faults. Connections that were silenced stay silent; what is held stays held."""
        self._rules = ()
        self._muted = self._refusing = False

    def cut_all(self) -> None:
        """Reset every connection, as a rebooting router does. What is held is lost."""

        async def cut() -> None:
            for pair in list(self._pairs):
                pair.abort()

        self._call(cut())

    def deliver_held(self, timeout: float = STEP) -> list[bytes]:
        """Let the hoarded requests through now; answers what the server said to each connection's."""
        return self._call(self._deliver(timeout), timeout * (self.held + 2))  # one connection after another

    async def _deliver(self, timeout: float) -> list[bytes]:
        answers: list[bytes] = []
        for pair in list(self._pairs):
            held, pair.held = pair.held, []
            if not held or pair.server.is_closing():
                continue
            pair.silent = True  # the client has long stopped to expect this answer
            pair.heard = self._loop.create_future()
            pair.server.write(b"".join(held))
            with contextlib.suppress(TimeoutError):
                answers.append(await asyncio.wait_for(pair.heard, timeout))
            pair.server.close()
        return answers

    @property
    def held(self) -> int:
        """Connections with requests that wait for `deliver_held()`."""
        return sum(bool(pair.held) for pair in list(self._pairs))

    @property
    def connections(self) -> int:
        return len(self._pairs)

    # ── traffic ──

    async def _serve(self, requests: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._refusing:
            client.transport.abort()
            return
        try:
            replies, server = await asyncio.open_connection(*self.upstream)
        except OSError:
            client.transport.abort()
            return
        pair = Pair(client, server, replies)
        self._pairs.add(pair)
        back = asyncio.create_task(self._back(pair))
        try:
            await self._forth(requests, pair)
            if pair.held:  # the client is gone, its words are not
                await back
        except OSError:
            pass
        finally:
            pair.abort()
            back.cancel()
            await asyncio.wait([back])
            self._pairs.discard(pair)

    async def _forth(self, requests: asyncio.StreamReader, pair: Pair) -> None:
        while data := await requests.read(CHUNK):
            rule = self._strike(data) if not (pair.deaf or pair.held) else None
            if rule is not None:
                match rule.action:
                    case "drop":
                        pair.silent = True
                    case "delay":
                        await asyncio.sleep(rule.seconds)
                    case "late":
                        pair.late = rule.seconds
                    case "cut-before":
                        rule.struck.set()
                        return
                    case "cut-after":
                        pair.cut_at_reply = True
                    case "hold":
                        pair.held.append(data)
                        rule.struck.set()
                        continue
                    case "blackhole":
                        pair.deaf = pair.silent = True
            if pair.held:
                pair.held.append(data)
            elif not pair.deaf:
                pair.server.write(data)
                await pair.server.drain()
            if rule is not None:
                rule.struck.set()

    async def _back(self, pair: Pair) -> None:
        with contextlib.suppress(OSError):
            while data := await pair.replies.read(CHUNK):
                if pair.heard is not None and not pair.heard.done():
                    pair.heard.set_result(data)
                if pair.cut_at_reply:
                    break
                if self._muted:
                    pair.silent = True
                if pair.silent:
                    continue
                if pair.late:
                    await asyncio.sleep(pair.late)
                pair.client.write(data)
                await pair.client.drain()
        pair.abort()

    def _strike(self, data: bytes) -> Rule | None:
        for rule in self._rules:
            if rule.times == 0 or rule.match not in data or self._random.random() >= rule.chance:
                continue
            if rule.times is not None:
                rule.times -= 1
            self.struck[rule.action] += 1
            return rule
        return None

    # ── life ──

    def _call(self, coro: Coroutine[Any, Any, T], timeout: float = STEP) -> T:
        return asyncio.run_coroutine_threadsafe(coro, self._loop).result(timeout)

    def start(self) -> Self:
        self._thread.start()

        async def listen() -> asyncio.Server:
            return await asyncio.start_server(self._serve, "127.0.0.1", 0)

        self._listener = self._call(listen())
        self.port = int(self._listener.sockets[0].getsockname()[1])
        return self

    def close(self) -> None:
        if self._loop.is_closed():
            return
        if self._thread.is_alive():
            self._call(self._shut())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    async def _shut(self) -> None:
        if self._listener is not None:
            self._listener.close()
        while self._tasks:  # ended by their connections, since a cancelled handler upsets asyncio's streams
            for pair in list(self._pairs):
                pair.abort()
            await asyncio.wait(list(self._tasks), timeout=0.01)
        await asyncio.sleep(0)  # aborted transports say goodbye in the next turn

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()
