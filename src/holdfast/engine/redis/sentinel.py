"""Redis behind Sentinels: they are asked who the master is, and the master is asked whether it is one."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

from holdfast.engine.base import Micros, steady
from holdfast.engine.redis import RedisEngine
from holdfast.engine.redis.address import Address, Place
from holdfast.engine.redis.async_link import AsyncLink
from holdfast.engine.redis.blocking_link import BlockingLink
from holdfast.engine.redis.link import Hello, Refusal, SignIn, pack, refused, sign_in
from holdfast.engine.redis.topology import Seeds
from holdfast.errors import EngineError, EngineRefused, EngineUnavailable

#: Between two looks for a master while there is none; at random from half of it.
PAUSE = 0.1


class Visit(NamedTuple):
    """A server to connect to, and what to say there. `last`: that is the connection we came for."""

    address: Address
    talk: SignIn
    last: bool


#: Yields visits, is sent what each came to or thrown what went wrong. Raises when all was in vain.
Hunt = Generator[Visit, Any, None]


class SentinelEngine(RedisEngine):
    """A RedisEngine whose server may be another after each reconnect. Once connected it costs nothing more."""

    def __init__(
        self,
        seeds: Seeds,
        *,
        namespace: str = "holdfast",
        client_name: str = "holdfast",
        clock: Callable[[], Micros] | None = None,
    ) -> None:
        super().__init__(seeds.address, namespace=namespace, client_name=client_name, clock=clock)
        self.seeds = seeds
        #: The Sentinel that answered last comes first.
        self._sentinels = list(seeds.places)
        #: Before the first master was found, waiting would only hide a mistake in the URL.
        self._met = False

    async def dial(self, client_name: str) -> AsyncLink:
        hunt = self._hunt(client_name)
        visit = next(hunt)
        while True:
            try:
                link = await AsyncLink.connect(visit.address, client_name, self.tls, visit.talk)
            except EngineError as error:
                visit = hunt.throw(error)
                continue
            if visit.last:
                self._met = True
                return link
            link.abort()
            visit = hunt.send(link.told)

    def dial_blocking(self, client_name: str, patience: float | None = None) -> BlockingLink:
        hunt = self._hunt(client_name)
        visit = next(hunt)
        while True:
            try:
                link = BlockingLink(visit.address, client_name, self.tls, patience, visit.talk)
            except EngineError as error:
                visit = hunt.throw(error)
                continue
            if visit.last:
                self._met = True
                return link
            link.close()
            visit = hunt.send(link.told)

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

    def _hunt(self, client_name: str) -> Hunt:
        """From Sentinel to Sentinel, and to whatever master each names, until one is a master indeed."""
        seeds = self.seeds
        troubles: list[EngineError] = []
        tried: set[Place] = set()
        for sentinel in self._sentinels:
            address = seeds.sentinel(sentinel)
            try:
                place = yield Visit(address, _where(address, seeds.service), last=False)
                if place in tried:
                    continue
                tried.add(place)
                self._sentinels = [sentinel, *(other for other in self._sentinels if other != sentinel)]
                master = seeds.at(place)
                yield Visit(master, _as_master(master, client_name), last=True)
            except EngineError as error:
                troubles.append(error)
        kind = EngineRefused if all(isinstance(error, EngineRefused) for error in troubles) else EngineUnavailable
        raise kind(f"{seeds}: no master found: {'; '.join(dict.fromkeys(map(str, troubles)))}")


def ask_sentinel(address: Address, *commands: Sequence[str]) -> Generator[list[bytes], list[Any], list[Any]]:
    """Sign in at a Sentinel and ask. A Sentinel is no Redis: it has no TIME and needs no name of ours."""
    auth = [pack("AUTH", address.username or "default", address.password)] if address.password else []
    replies = yield [*auth, *(pack(*command) for command in commands)]
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
    """Ask a Sentinel where the master is."""
    (reply,) = yield from ask_sentinel(address, ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", service])
    match reply:
        case Refusal():
            raise refused(reply, address)
        case None:
            raise EngineRefused(f"the Sentinel at {Place(address.host, address.port)} knows no master {service!r}")
        case [bytes() as host, bytes() as port] if port.isdigit():
            return Place(host.decode(), int(port))
        case _:
            raise EngineRefused(f"{Place(address.host, address.port)} does not answer as a Sentinel does")


def _as_master(address: Address, client_name: str) -> SignIn:
    """Sign in, and go no further if this is no master: a Sentinel may be behind the times."""
    hello: Hello = yield from sign_in(address, client_name)
    (role,) = yield [pack("ROLE")]
    if isinstance(role, Refusal):
        raise refused(role, address)
    if role[0] != b"master":
        raise EngineUnavailable(f"{address} is not the master any more")
    return hello
