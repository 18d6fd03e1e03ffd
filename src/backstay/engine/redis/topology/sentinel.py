"""Redis behind Sentinels: they are asked who the master is, and the master is asked whether it is one."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
import weakref
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, cast

from backstay.engine.base import Micros, steady
from backstay.engine.redis.address import Address, Place
from backstay.engine.redis.engine import RedisEngine
from backstay.engine.redis.link.async_link import AsyncLink
from backstay.engine.redis.link.blocking_link import BlockingLink
from backstay.engine.redis.link.credentials import Credentials
from backstay.engine.redis.link.protocol import Hello, Refusal, SignIn, auth_of, pack, refused, sign_in
from backstay.engine.redis.link.tls import context
from backstay.engine.redis.topology.open import Seeds
from backstay.engine.redis.topology.sentinel_watch import SentinelWatch
from backstay.errors import EngineError, EngineRefused, EngineUnavailable

#: Between two looks for a master while there is none; at random from half of it.
PAUSE = 0.1


class Named(NamedTuple):
    """The master in a Sentinel's eyes. The epoch grows with each failover; None: not for us to know."""

    place: Place
    epoch: int | None


class Visit(NamedTuple):
    """A server to connect to, and what to say there. `named`: that is the connection we came for."""

    address: Address
    talk: SignIn
    named: Named | None = None


#: Yields visits, is sent what each came to or thrown what went wrong. Raises when all was in vain.
Hunt = Generator[Visit, Any, None]


class SentinelEngine(RedisEngine):
    """A RedisEngine whose server may be another after each reconnect. Once connected it costs nothing more."""

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
        #: The Sentinel that answered last comes first.
        self.sentinels = list(seeds.places)
        #: Of the last failover that we have heard of. A Sentinel that knows an earlier one only is not believed.
        self._epoch = 0
        self._watch = SentinelWatch(self)
        #: All connections to masters, the hub's too: those to a master that was replaced are given up.
        self._dialled: weakref.WeakSet[AsyncLink | BlockingLink] = weakref.WeakSet()
        #: Before the first master was found, waiting would only hide a mistake in the URL.
        self._met = False

    async def dial(self, client_name: str) -> AsyncLink:
        hunt = self._hunt(client_name)
        visit = next(hunt)
        while True:
            try:
                link = await AsyncLink.connect(visit.address, client_name, self._trust(visit), visit.talk)
                if visit.named is not None:
                    self._arrived(link, visit.named)
                    return link
            except EngineError as error:
                visit = hunt.throw(error)
                continue
            link.abort()
            visit = hunt.send(link.told)

    def dial_blocking(self, client_name: str, patience: float | None = None) -> BlockingLink:
        hunt = self._hunt(client_name)
        visit = next(hunt)
        while True:
            try:
                link = BlockingLink(visit.address, client_name, self._trust(visit), patience, visit.talk)
                if visit.named is not None:
                    self._arrived(link, visit.named)
                    return link
            except EngineError as error:
                visit = hunt.throw(error)
                continue
            link.close()
            visit = hunt.send(link.told)

    def _trust(self, visit: Visit) -> ssl.SSLContext | None:
        return self.sentinel_tls if visit.named is None else self.tls

    def _arrived(self, link: AsyncLink | BlockingLink, named: Named) -> None:
        """Raises EngineUnavailable when another was named while we were on our way. Remembered first, looked at
        second; `told_of_master` does it the other way round, so one of the two sees the other.
        """
        with self._links_lock:
            self._dialled.add(link)
            if not self._watch.running and not self._closed:
                self._watch.start()
        if self._behind(named):
            link.close()
            raise EngineUnavailable(f"{link.address} is not the master any more")
        self._met = True

    def _behind(self, named: Named) -> bool:
        return named.epoch is not None and named.epoch < self._epoch

    def call_sentinel(self, sentinel: Place, client_name: str, patience: float | None = None) -> BlockingLink:
        """A connection to a Sentinel, which has told who the master is."""
        address = self.seeds.sentinel(sentinel)
        return BlockingLink(address, client_name, self.sentinel_tls, patience, _where(address, self.seeds.service))

    def told_of_master(self, sentinel: Place, named: Named) -> None:
        """From the watch: leave every other server, whether or not it still answers."""
        if self._behind(named):
            return
        self._epoch = max(self._epoch, named.epoch or 0)
        self._believe(sentinel)
        with self._links_lock:
            left = [link for link in self._dialled if Place(link.address.host, link.address.port) != named.place]
        for link in left:
            link.interrupt()

    def _believe(self, sentinel: Place) -> None:
        self.sentinels = [sentinel, *(other for other in self.sentinels if other != sentinel)]

    def _refused(self, refusal: Refusal, link: AsyncLink | BlockingLink) -> EngineError:
        if refusal.code == "NOREPLICAS":  # they may have left for a new master
            link.close()
        return super()._refused(refusal, link)

    async def _reach(self) -> AsyncLink:
        until = steady() + self.seeds.failover if self._met else 0.0
        while True:
            try:
                return await super()._reach()
            except EngineUnavailable:
                if steady() > until:
                    raise
            await asyncio.sleep(random.uniform(PAUSE / 2, PAUSE))

    def _reach_blocking(self, timeout: float | None) -> BlockingLink:
        # Who brings a time-out of its own comes again by itself, and has other things to do meanwhile.
        until = steady() + self.seeds.failover if self._met and timeout is None else 0.0
        while True:
            try:
                return super()._reach_blocking(timeout)
            except EngineUnavailable:
                if steady() > until or self._closed:
                    raise
            time.sleep(random.uniform(PAUSE / 2, PAUSE))

    async def close(self) -> None:
        self._closed = True
        try:
            await asyncio.to_thread(self._watch.stop)
        except RuntimeError:  # the interpreter ends: no more threads
            self._watch.stop()
        await super().close()

    def close_blocking(self) -> None:
        self._closed = True
        self._watch.stop()
        super().close_blocking()

    def after_fork(self) -> None:
        super().after_fork()
        self._watch.after_fork()
        self._dialled = weakref.WeakSet()

    def _hunt(self, client_name: str) -> Hunt:
        """From Sentinel to Sentinel, and to whatever master each names, until one is a master indeed."""
        seeds = self.seeds
        troubles: list[EngineError] = []
        tried: set[Place] = set()
        behind: list[Named] = []
        for sentinel in self.sentinels:
            address = seeds.sentinel(sentinel)
            try:
                named: Named = yield Visit(address, _where(address, seeds.service))
                if self._behind(named):
                    behind.append(named)
                    raise EngineUnavailable(f"the Sentinel at {sentinel} does not know of the last failover")
                if named.place in tried:
                    continue
                tried.add(named.place)
                self._epoch = max(self._epoch, named.epoch or 0)
                self._believe(sentinel)
                master = seeds.at(named.place)
                yield Visit(master, _as_master(master, client_name), named)
            except EngineError as error:
                troubles.append(error)
        if len(behind) > len(self.sentinels) // 2:
            # Most of them count from the beginning again: whoever runs them has set them up anew.
            self._epoch = max(named.epoch or 0 for named in behind)
        kind = EngineRefused if all(isinstance(error, EngineRefused) for error in troubles) else EngineUnavailable
        raise kind(f"{seeds}: no master found: {'; '.join(dict.fromkeys(map(str, troubles)))}")


def ask_sentinel(address: Address, *commands: Sequence[str]) -> Generator[list[bytes] | Credentials, Any, list[Any]]:
    """Sign in at a Sentinel and ask. A Sentinel is no Redis: it has no TIME and needs no name of ours."""
    words = yield from auth_of(address)
    auth = [pack(*words)] if words else []
    replies: list[Any] = yield [*auth, *(pack(*command) for command in commands)]
    for reply in replies[: len(auth) + 1]:  # who may ask the first thing has signed in
        if isinstance(reply, Refusal) and reply.code in ("NOAUTH", "WRONGPASS", "NOPERM"):
            raise EngineRefused(
                f"the Sentinel at {Place(address.host, address.port)} refused the sign-in; "
                "add ?sentinel_password=… and, for an ACL user, sentinel_username=…"
            )
    for reply in replies[: len(auth)]:
        if isinstance(reply, Refusal):
            raise refused(reply, address)
    return replies[len(auth) :]


def _where(address: Address, service: str) -> SignIn:
    """Ask a Sentinel where the master is, and since which failover."""
    place, known = yield from ask_sentinel(
        address, ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", service], ["SENTINEL", "MASTER", service]
    )
    match place:
        case Refusal():
            raise refused(place, address)
        case None:
            raise EngineRefused(f"the Sentinel at {Place(address.host, address.port)} knows no master {service!r}")
        case [bytes() as host, bytes() as port] if port.isdigit():
            return Named(Place(host.decode(), int(port)), _epoch(known))
        case _:
            raise EngineRefused(f"{Place(address.host, address.port)} does not answer as a Sentinel does")


def fields_of(flat: list[bytes]) -> dict[str, str]:
    """What a Sentinel says of a server: names and values in turn."""
    words = [word.decode(errors="replace") for word in flat]
    return dict(zip(words[::2], words[1::2], strict=False))


def _epoch(known: Any) -> int | None:
    found = fields_of(cast("list[bytes]", known)).get("config-epoch", "") if isinstance(known, list) else ""
    return int(found) if found.isdigit() else None


def _as_master(address: Address, client_name: str) -> SignIn:
    """Sign in, and go no further if this is no master: a Sentinel may be behind the times."""
    hello: Hello = yield from sign_in(address, client_name)
    (role,) = yield [pack("ROLE")]
    if isinstance(role, Refusal):
        raise refused(role, address)
    if role[0] != b"master":
        raise EngineUnavailable(f"{address} is not the master any more")
    return hello
