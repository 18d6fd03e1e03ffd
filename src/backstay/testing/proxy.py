"""A TCP proxy that injects network faults: it drops, delays and holds requests and replies, and cuts connections.

Faults are rules that match requests; a test can change them while the proxy runs. A connection on which a reply was
dropped forwards no later reply either, because the client would take it for the dropped one. After `heal()`, new
connections work.
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

#: What the proxy does with a request that matches a rule, and with its connection.
#: drop: the request is forwarded; the connection stays open, but its client receives no further reply.
#: delay: the request is forwarded after `seconds`.
#: late: the request is forwarded; from then on, each reply on this connection is forwarded after `seconds`.
#: cut-before: the connection is closed before the request is forwarded.
#: cut-after: the request is forwarded, and the connection is closed when the reply arrives.
#: hold: the request is held back until `deliver_held()`, even if its client disconnects.
#: blackhole: the connection stays open, but forwards nothing in either direction.
Action = Literal["drop", "delay", "late", "cut-before", "cut-after", "hold", "blackhole"]

CHUNK = 65536
#: Seconds after which the proxy's own operations, such as `cut_all`, time out.
STEP = 5.0


@dataclass
class FaultRule:
    """A fault for requests that contain `match`: applied with probability `chance`, at most `times` times."""

    action: Action
    match: bytes = b""
    chance: float = 1.0
    times: int | None = None
    seconds: float = 0.0
    #: Set when the rule is applied for the first time.
    applied: threading.Event = field(default_factory=threading.Event)


class ProxiedConnection:
    """A client's connection to the proxy, together with the proxy's connection to the server."""

    def __init__(
        self, client: asyncio.StreamWriter, server: asyncio.StreamWriter, replies: asyncio.StreamReader
    ) -> None:
        self.client = client
        self.server = server
        self.replies = replies
        self.silent = False
        self.blackholed = False
        self.cut_at_reply = False
        self.late = 0.0
        self.held: list[bytes] = []
        #: Set by `deliver_held`, which waits on it for the server's reply to the held requests.
        self.reply: asyncio.Future[bytes] | None = None

    def abort(self) -> None:
        self.client.transport.abort()
        self.server.transport.abort()


class FaultProxy:
    """A proxy in front of a server on loopback. It forwards everything unless a rule applies. Closing twice is safe."""

    def __init__(self, port: int, *, host: str = "127.0.0.1", seed: int = 0) -> None:
        self.upstream = (host, port)
        self.port = 0
        #: How often a rule was applied, by its action ("drop", "delay", …).
        self.applied: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._rules: tuple[FaultRule, ...] = ()
        self._muted = False
        self._refusing = False
        self._pairs: set[ProxiedConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._listener: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def instead_of(self, url: str) -> str:
        """Return the URL with this proxy's host and port; user, password, database and options are kept."""
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
    ) -> FaultRule:
        """Add a rule for later requests. If several rules match a request, the first one is applied."""
        rule = FaultRule(action, match, chance, times, seconds)
        self._rules = (*self._rules, rule)
        return rule

    def once(self, action: Action, match: bytes = b"", *, seconds: float = 0.0) -> FaultRule:
        """Add a rule for the next matching request only. `rule.applied.wait()` waits until that request arrives."""
        return self.rule(action, match, times=1, seconds=seconds)

    def drop_replies(self) -> None:
        """Drop every later message from the server (replies and pushes). Connections stay open."""
        self._muted = True

    def refuse(self) -> None:
        """Cut every connection, and close each new one at once, as if the server were down."""
        self._refusing = True
        self.cut_all()

    def heal(self) -> None:
        """Remove all rules and faults. A connection on which a reply was dropped still forwards none, and held requests
        are still held.
        """
        self._rules = ()
        self._muted = self._refusing = False

    def cut_all(self) -> None:
        """Reset every connection, as a rebooting router does. Held requests are lost."""

        async def cut() -> None:
            for pair in list(self._pairs):
                pair.abort()

        self._call(cut())

    def deliver_held(self, timeout: float = STEP) -> list[bytes]:
        """Forward the held requests to the server. Returns its reply for each connection that had held requests."""
        # `_deliver` handles one connection after another, and waits up to `timeout` for each reply.
        return self._call(self._deliver(timeout), timeout * (self.held + 2))

    async def _deliver(self, timeout: float) -> list[bytes]:
        answers: list[bytes] = []
        for pair in list(self._pairs):
            held, pair.held = pair.held, []
            if not held or pair.server.is_closing():
                continue
            pair.silent = True  # the client no longer waits: return the reply to the test, but do not forward it
            pair.reply = self._loop.create_future()
            pair.server.write(b"".join(held))
            with contextlib.suppress(TimeoutError):
                answers.append(await asyncio.wait_for(pair.reply, timeout))
            pair.server.close()
        return answers

    @property
    def held(self) -> int:
        """The number of connections whose requests the proxy holds until `deliver_held()`."""
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
        pair = ProxiedConnection(client, server, replies)
        self._pairs.add(pair)
        back = asyncio.create_task(self._forward_replies(pair))
        try:
            await self._forward_requests(requests, pair)
            if pair.held:  # the client has disconnected: keep the server's connection for the held requests
                await back
        except OSError:
            pass
        finally:
            pair.abort()
            back.cancel()
            await asyncio.wait([back])
            self._pairs.discard(pair)

    async def _forward_requests(self, requests: asyncio.StreamReader, pair: ProxiedConnection) -> None:
        while data := await requests.read(CHUNK):
            rule = self._find_rule(data) if not (pair.blackholed or pair.held) else None
            if rule is not None:
                match rule.action:
                    case "drop":
                        pair.silent = True
                    case "delay":
                        await asyncio.sleep(rule.seconds)
                    case "late":
                        pair.late = rule.seconds
                    case "cut-before":
                        rule.applied.set()
                        return
                    case "cut-after":
                        pair.cut_at_reply = True
                    case "hold":
                        pair.held.append(data)
                        rule.applied.set()
                        continue
                    case "blackhole":
                        pair.blackholed = pair.silent = True
            if pair.held:
                pair.held.append(data)
            elif not pair.blackholed:
                pair.server.write(data)
                await pair.server.drain()
            if rule is not None:
                rule.applied.set()

    async def _forward_replies(self, pair: ProxiedConnection) -> None:
        with contextlib.suppress(OSError):
            while data := await pair.replies.read(CHUNK):
                if pair.reply is not None and not pair.reply.done():
                    pair.reply.set_result(data)
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

    def _find_rule(self, data: bytes) -> FaultRule | None:
        for rule in self._rules:
            if rule.times == 0 or rule.match not in data or self._random.random() >= rule.chance:
                continue
            if rule.times is not None:
                rule.times -= 1
            self.applied[rule.action] += 1
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
            self._call(self._close_connections())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    async def _close_connections(self) -> None:
        if self._listener is not None:
            self._listener.close()
        # Abort the connections, so that their handlers end by themselves: asyncio logs an error for a cancelled
        # handler.
        while self._tasks:
            for pair in list(self._pairs):
                pair.abort()
            await asyncio.wait(list(self._tasks), timeout=0.01)
        await asyncio.sleep(0)  # aborted transports call connection_lost in the next loop iteration

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()
