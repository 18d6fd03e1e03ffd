"""The Redis engine behind Sentinels: ask a Sentinel for the master, then verify the role on that server."""

from __future__ import annotations

import asyncio
import ssl
import time
import weakref
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, cast

from backstay.engine.base import Micros, steady
from backstay.engine.jitter import RANDOM
from backstay.engine.redis.address import Address, HostPort
from backstay.engine.redis.engine import RedisEngine
from backstay.engine.redis.link.async_link import AsyncLink
from backstay.engine.redis.link.blocking_link import BlockingLink
from backstay.engine.redis.link.credentials import Credentials
from backstay.engine.redis.link.protocol import (
    ErrorReply,
    Handshake,
    Hello,
    auth_command,
    pack,
    sign_in,
    translate_error,
)
from backstay.engine.redis.link.tls import context
from backstay.engine.redis.topology.open import Seeds
from backstay.engine.redis.topology.sentinel_watch import SentinelWatch
from backstay.errors import EngineError, EngineRefused, EngineUnavailable

#: The longest pause (seconds) between two searches while there is no master. The shortest is half of it.
PAUSE = 0.1


class MasterReport(NamedTuple):
    """The master that a Sentinel reports. The epoch is a number that grows with each failover. It is None if
    the ACL of our user does not allow the command that returns it.
    """

    node: HostPort
    epoch: int | None


class ConnectAttempt(NamedTuple):
    """One step of the search for the master: a server to connect to, and the handshake to run there. Without a `report`
    the server is a Sentinel, which is asked for the master. With a `report` it is the master that a Sentinel has
    reported. If that connection succeeds, the search is over.
    """

    address: Address
    handshake: Handshake
    report: MasterReport | None = None


#: A search for the master. It yields one attempt after another. The caller connects, then resumes the generator with
#: the handshake's result (`send`) or with the error (`throw`). Raises if no master is found.
MasterSearch = Generator[ConnectAttempt, Any, None]


class SentinelEngine(RedisEngine):
    """A RedisEngine that looks up the master for each new connection. Commands on an open connection have no extra
    cost.
    """

    def __init__(
        self,
        seeds: Seeds,
        *,
        namespace: str = "backstay",
        client_name: str = "backstay",
        tls: ssl.SSLContext | None = None,
        sentinel_tls: ssl.SSLContext | None = None,
        clock: Callable[[], Micros] | None = None,
    ) -> None:
        super().__init__(seeds.address, namespace=namespace, client_name=client_name, tls=tls, clock=clock)
        self.seeds = seeds
        same = seeds.sentinels.tls == seeds.address.tls
        self.sentinel_tls = sentinel_tls or (self.tls if same else context(seeds.sentinels))
        #: The Sentinels to query; the one that responded last comes first.
        self.sentinels = list(seeds.hosts)
        #: The epoch of the last known failover. A report with an older epoch is ignored.
        self._epoch = 0
        self._watch = SentinelWatch(self)
        #: All connections to the master, including the subscription connection of the hub. They are closed when another
        #: server becomes the master.
        self._master_links: weakref.WeakSet[AsyncLink | BlockingLink] = weakref.WeakSet()
        #: Whether a master was ever found. Before that, callers do not wait for a failover to end: if the first
        #: search fails, the URL may be wrong, and the user should see the error at once.
        self._has_connected = False

    async def connect(self, client_name: str) -> AsyncLink:
        search = self._search_master(client_name)
        attempt = next(search)
        while True:
            try:
                link = await AsyncLink.connect(attempt.address, client_name, self._tls_for(attempt), attempt.handshake)
                if attempt.report is not None:
                    self._accept(link, attempt.report)
                    return link
            except EngineError as error:
                attempt = search.throw(error)
                continue
            link.abort()
            attempt = search.send(link.handshake_result)

    def connect_blocking(self, client_name: str, patience: float | None = None) -> BlockingLink:
        search = self._search_master(client_name)
        attempt = next(search)
        while True:
            try:
                link = BlockingLink(attempt.address, client_name, self._tls_for(attempt), patience, attempt.handshake)
                if attempt.report is not None:
                    self._accept(link, attempt.report)
                    return link
            except EngineError as error:
                attempt = search.throw(error)
                continue
            link.close()
            attempt = search.send(link.handshake_result)

    def _tls_for(self, attempt: ConnectAttempt) -> ssl.SSLContext | None:
        return self.sentinel_tls if attempt.report is None else self.tls

    def _accept(self, link: AsyncLink | BlockingLink, report: MasterReport) -> None:
        """Accept a connection to the reported master. Raises EngineUnavailable if a report with a newer epoch has
        arrived from the watch thread in the meantime. This method adds the link to `_master_links` and then reads the
        epoch; `on_master_report`, on the watch thread, sets the epoch and then reads `_master_links`. So in any
        interleaving at least one of the two methods closes a link to a replaced master.
        """
        with self._links_lock:
            self._master_links.add(link)
            if not self._watch.is_running and not self._closed:
                self._watch.start()
        if self._is_outdated(report):
            link.close()
            raise EngineUnavailable(f"{link.address} is not the master any more")
        self._has_connected = True

    def _is_outdated(self, report: MasterReport) -> bool:
        return report.epoch is not None and report.epoch < self._epoch

    def call_sentinel(self, sentinel: HostPort, client_name: str, patience: float | None = None) -> BlockingLink:
        """Connect to a Sentinel and ask for the master; the link's handshake result is a MasterReport."""
        address = self.seeds.sentinel_address(sentinel)
        return BlockingLink(
            address, client_name, self.sentinel_tls, patience, _ask_for_master(address, self.seeds.service)
        )

    def on_master_report(self, sentinel: HostPort, report: MasterReport) -> None:
        """Handle a report of the SentinelWatch: close the links to all servers except the reported master, even if
        these servers still respond.
        """
        if self._is_outdated(report):
            return
        self._epoch = max(self._epoch, report.epoch or 0)
        self._prefer(sentinel)
        with self._links_lock:
            old_links = [
                link for link in self._master_links if HostPort(link.address.host, link.address.port) != report.node
            ]
        for link in old_links:
            link.interrupt()

    def _prefer(self, sentinel: HostPort) -> None:
        self.sentinels = [sentinel, *(other for other in self.sentinels if other != sentinel)]

    def _error(self, reply: ErrorReply, link: AsyncLink | BlockingLink) -> EngineError:
        # NOREPLICAS: too few replicas follow this server. Perhaps they follow a new master, so close the link: the next
        # command searches for the master.
        if reply.code == "NOREPLICAS":
            link.close()
        return super()._error(reply, link)

    async def _connect_shared(self) -> AsyncLink:
        until = steady() + self.seeds.failover if self._has_connected else 0.0
        while True:
            try:
                return await super()._connect_shared()
            except EngineUnavailable:
                if steady() > until:
                    raise
            await asyncio.sleep(RANDOM.uniform(PAUSE / 2, PAUSE))

    def _connect_thread(self, timeout: float | None) -> BlockingLink:
        # A caller with a time-out (the keeper thread) retries by itself, so it does not wait here for a new master.
        until = steady() + self.seeds.failover if self._has_connected and timeout is None else 0.0
        while True:
            try:
                return super()._connect_thread(timeout)
            except EngineUnavailable:
                if steady() > until or self._closed:
                    raise
            time.sleep(RANDOM.uniform(PAUSE / 2, PAUSE))

    async def close(self) -> None:
        self._closed = True
        try:
            await asyncio.to_thread(self._watch.stop)
        except RuntimeError:  # the interpreter shuts down and starts no threads
            self._watch.stop()
        await super().close()

    def close_blocking(self) -> None:
        self._closed = True
        self._watch.stop()
        super().close_blocking()

    def after_fork(self) -> None:
        super().after_fork()
        self._watch.after_fork()
        self._master_links = weakref.WeakSet()

    def _search_master(self, client_name: str) -> MasterSearch:
        """Ask the Sentinels one by one and try each reported master, until one has the role of a master."""
        seeds = self.seeds
        errors: list[EngineError] = []
        tried: set[HostPort] = set()
        outdated: list[MasterReport] = []
        for sentinel in self.sentinels:
            address = seeds.sentinel_address(sentinel)
            try:
                report: MasterReport = yield ConnectAttempt(address, _ask_for_master(address, seeds.service))
                if self._is_outdated(report):
                    outdated.append(report)
                    raise EngineUnavailable(f"the Sentinel at {sentinel} does not know of the last failover")
                if report.node in tried:
                    continue
                tried.add(report.node)
                self._epoch = max(self._epoch, report.epoch or 0)
                self._prefer(sentinel)
                master = seeds.node_address(report.node)
                yield ConnectAttempt(master, _sign_in_as_master(master, client_name), report)
            except EngineError as error:
                errors.append(error)
        if len(outdated) > len(self.sentinels) // 2:
            # Most Sentinels report lower epochs than the last known one. They were set up anew and count failovers from
            # the beginning, so continue with their epoch.
            self._epoch = max(report.epoch or 0 for report in outdated)
        kind = EngineRefused if all(isinstance(error, EngineRefused) for error in errors) else EngineUnavailable
        raise kind(f"{seeds}: no master found: {'; '.join(dict.fromkeys(map(str, errors)))}")


def ask_sentinel(address: Address, *commands: Sequence[str]) -> Generator[list[bytes] | Credentials, Any, list[Any]]:
    """Sign in to a Sentinel, send commands and return their replies. Unlike the handshake with a Redis server, this one
    does not read the clock (a Sentinel has no TIME command) and sets no client name.
    """
    words = yield from auth_command(address)
    auth = [pack(*words)] if words else []
    replies: list[Any] = yield [*auth, *(pack(*command) for command in commands)]
    for reply in replies[: len(auth) + 1]:  # without AUTH, the first command shows whether signing in is required
        if isinstance(reply, ErrorReply) and reply.code in ("NOAUTH", "WRONGPASS", "NOPERM"):
            raise EngineRefused(
                f"the Sentinel at {HostPort(address.host, address.port)} refused the sign-in; "
                "add ?sentinel_password=… and, for an ACL user, sentinel_username=…"
            )
    for reply in replies[: len(auth)]:
        if isinstance(reply, ErrorReply):
            raise translate_error(reply, address)
    return replies[len(auth) :]


def _ask_for_master(address: Address, service: str) -> Handshake:
    """Ask a Sentinel for the master and its failover epoch."""
    node, known = yield from ask_sentinel(
        address, ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", service], ["SENTINEL", "MASTER", service]
    )
    match node:
        case ErrorReply():
            raise translate_error(node, address)
        case None:
            raise EngineRefused(f"the Sentinel at {HostPort(address.host, address.port)} knows no master {service!r}")
        case [bytes() as host, bytes() as port] if port.isdigit():
            return MasterReport(HostPort(host.decode(), int(port)), _epoch(known))
        case _:
            raise EngineRefused(f"{HostPort(address.host, address.port)} does not answer as a Sentinel does")


def parse_fields(flat: list[bytes]) -> dict[str, str]:
    """Decode a Sentinel's description of a server: alternating names and values."""
    words = [word.decode(errors="replace") for word in flat]
    return dict(zip(words[::2], words[1::2], strict=False))


def _epoch(known: Any) -> int | None:
    found = parse_fields(cast("list[bytes]", known)).get("config-epoch", "") if isinstance(known, list) else ""
    return int(found) if found.isdigit() else None


def _sign_in_as_master(address: Address, client_name: str) -> Handshake:
    """Sign in and verify that the server is a master: a Sentinel's report may be outdated."""
    hello: Hello = yield from sign_in(address, client_name)
    (role,) = yield [pack("ROLE")]
    if isinstance(role, ErrorReply):
        raise translate_error(role, address)
    if role[0] != b"master":
        raise EngineUnavailable(f"{address} is not the master any more")
    return hello
