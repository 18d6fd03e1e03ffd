"""Open the engine for a Redis URL: a single server, a master behind Sentinels, or a Cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from backstay.engine.base import Micros
from backstay.engine.redis.address import SCHEMES, Address, HostPort, build, parse, seconds, split
from backstay.engine.redis.engine import RedisEngine
from backstay.errors import ConfigError

#: The default port of a Sentinel.
SENTINEL_PORT = 26379
#: Seconds that callers wait for a new master before they fail.
FAILOVER = 10.0
SENTINEL_OPTIONS = ("failover", "sentinel_username", "sentinel_password")


@dataclass(frozen=True, slots=True)
class Seeds:
    """The servers that a URL names, and their settings. Sentinel or Cluster nodes report all other servers. `str()` of
    a Seeds contains no secret.
    """

    url: str
    #: The settings that all Redis servers share: credentials, TLS, time-outs. `node_address` fills in host and port.
    address: Address
    hosts: tuple[HostPort, ...]
    failover: float = FAILOVER
    #: Sentinel only: the master's service name, and the settings of the Sentinels themselves.
    service: str = ""
    sentinels: Address = field(default_factory=Address)

    def __str__(self) -> str:
        return f"{self.url}/{self.service}" if self.service else self.url

    def node_address(self, place: HostPort) -> Address:
        return replace(self.address, host=place.host, port=place.port)

    def sentinel_address(self, place: HostPort) -> Address:
        return replace(self.sentinels, host=place.host, port=place.port)


def parse_sentinel(url: str) -> Seeds:
    """Parse `redis+sentinel://[user:password@]host1:26379,host2:26379/service[/db]?…`."""
    found = split(url, port=SENTINEL_PORT)
    if len(found.path) not in (1, 2):
        raise ConfigError(f"{found.safe}: name the service that the Sentinels watch, as in {found.safe}/mymaster/0")
    service, *db = found.path
    address = build(found, db="".join(db), tls=_tls(found.scheme), more=SENTINEL_OPTIONS)
    username, password = (found.options.get(f"sentinel_{name}", "") for name in ("username", "password"))
    return Seeds(
        found.safe,
        address,
        found.hosts,
        seconds(found.options, "failover", FAILOVER),
        service,
        replace(address, username=username, password=password, db=0),
    )


def parse_cluster(url: str) -> Seeds:
    """Parse `redis+cluster://[user:password@]host1:6379,host2:6379?…`."""
    found = split(url)
    address = build(found, db="".join(found.path), tls=_tls(found.scheme), more=("failover",))
    if address.db:
        raise ConfigError(f"{found.safe}: a Cluster has one database, 0")
    return Seeds(found.safe, address, found.hosts, seconds(found.options, "failover", FAILOVER))


def _tls(scheme: str) -> bool:
    return SCHEMES[scheme.partition("+")[0]]


def open_redis(url: str, namespace: str, clock: Callable[[], Micros] | None = None) -> RedisEngine:
    """Return the engine for a URL. The Sentinel and Cluster modules are imported only if they are needed."""
    base, _, kind = url.partition(":")[0].partition("+")
    if base in SCHEMES and kind == "sentinel":
        from backstay.engine.redis.topology.sentinel import SentinelEngine

        return SentinelEngine(parse_sentinel(url), namespace=namespace, clock=clock)
    if base in SCHEMES and kind == "cluster":
        from backstay.engine.redis.topology.cluster import ClusterEngine

        return ClusterEngine(parse_cluster(url), namespace=namespace, clock=clock)
    return RedisEngine(parse(url), namespace=namespace, clock=clock)
