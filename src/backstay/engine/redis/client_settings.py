"""Read the servers and settings of a redis-py (or valkey-py) client, for connections that Backstay opens itself.

The client itself is never used for I/O and never closed. The engine sends the commands of many tasks over one
connection, and must still read the reply to a command whose task was cancelled; the client's pool cannot do this. If
the client has a setting that Backstay's connections cannot reproduce, ConfigError is raised.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from backstay.engine.redis.address import LONGEST_TIMEOUT, Address, HostPort
from backstay.engine.redis.engine import RedisEngine
from backstay.engine.redis.link.client_tls import TLS_SETTINGS, build_context
from backstay.engine.redis.link.credentials import Credentials
from backstay.engine.redis.topology.open import Seeds
from backstay.errors import ConfigError

DEFAULT = Address()
LIBRARIES = ("redis", "valkey")

#: Settings that Backstay's own connections adopt.
TAKEN = {
    "host",
    "port",
    "path",
    "db",
    "username",
    "password",
    "credential_provider",
    "socket_timeout",
    "socket_connect_timeout",
    "client_name",
    "connection_class",
    "ssl",
}
#: Settings that are ignored: they concern only how redis-py itself connects, sends commands and parses replies.
IGNORED = {
    "cache",
    "cache_config",
    "command_packer",
    "connection_pool",  # redis-py sets it on its clients for Sentinels
    "connection_pool_class",
    "decode_responses",
    "driver_info",
    "encoder_class",
    "encoding",
    "encoding_errors",
    "event_dispatcher",
    "health_check_interval",
    "himport_registry",
    "legacy_responses",
    "lib_name",
    "lib_version",
    "max_connections",
    "nodes_flag",
    "orig_host_address",
    "orig_socket_connect_timeout",
    "orig_socket_timeout",
    "parser_class",
    "protocol",
    "queue_class",
    "response_callbacks",
    "retry",
    "retry_on_error",
    "retry_on_timeout",
    "socket_keepalive",
    "socket_keepalive_options",
    "socket_read_size",
    "timeout",  # an argument of redis-py's BlockingConnectionPool
}


def open_client(client: Any, namespace: str) -> RedisEngine:
    """Return the engine for the servers of a client or a connection pool."""
    what = type(client).__name__
    if hasattr(client, "discover_master"):
        raise ConfigError(f"a {what} may watch many services: pass sentinel.master_for('mymaster')")
    if hasattr(client, "nodes_manager"):
        return _cluster(client, namespace)
    pool = getattr(client, "connection_pool", client)
    if not isinstance(getattr(pool, "connection_kwargs", None), Mapping):
        raise ConfigError(
            f"this {what} has no server address: pass a Redis, a RedisCluster, a ConnectionPool,"
            " sentinel.master_for(…) or a URL"
        )
    if hasattr(pool, "sentinel_manager"):
        return _sentinel(pool, namespace)
    address, tls = _server(pool.connection_kwargs, pool.connection_class)
    return RedisEngine(address, namespace=namespace, client_name=_name(pool.connection_kwargs), tls=tls)


def _sentinel(pool: Any, namespace: str) -> RedisEngine:
    from backstay.engine.redis.topology.sentinel import SentinelEngine

    manager = pool.sentinel_manager
    if not pool.is_master:
        raise ConfigError("this client connects to replicas, which accept no writes: pass sentinel.master_for(…)")
    for name in ("min_other_sentinels", "_force_master_ip"):
        if getattr(manager, name, None):
            raise _unsupported(name.lstrip("_"))
    if not manager.sentinels:
        raise ConfigError("this client has no Sentinels; pass a URL with at least one")
    address, tls = _server(pool.connection_kwargs, pool.connection_class)
    read = [
        _server(sentinel.connection_pool.connection_kwargs, sentinel.connection_pool.connection_class)
        for sentinel in manager.sentinels
    ]
    # redis-py creates all Sentinel clients with the same arguments, so the settings of the first apply to all.
    sentinels, sentinel_tls = read[0]
    nodes = tuple(HostPort(each.host, each.port) for each, _ in read)
    scheme = f"redis{'s' if address.tls else ''}+sentinel"
    seeds = Seeds(
        f"{scheme}://{','.join(map(str, nodes))}",
        address,
        nodes,
        service=str(pool.service_name),
        sentinels=replace(sentinels, db=0),
    )
    name = _name(pool.connection_kwargs)
    return SentinelEngine(seeds, namespace=namespace, client_name=name, tls=tls, sentinel_tls=sentinel_tls)


def _cluster(client: Any, namespace: str) -> RedisEngine:
    from backstay.engine.redis.topology.cluster import ClusterEngine

    manager = client.nodes_manager
    if getattr(manager, "address_remap", None):
        raise _unsupported("address_remap")
    if getattr(client, "user_on_connect_func", None):
        raise _unsupported("redis_connect_func")
    options = dict(manager.connection_kwargs)
    options.pop("redis_connect_func", None)  # redis-py sets its own, which lets replicas serve reads
    address, tls = _server(options, options.get("connection_class"))
    if address.db:
        raise ConfigError("a Cluster has one database, 0")
    nodes = tuple(HostPort(str(node.host), int(node.port)) for node in manager.startup_nodes.values())
    if not nodes:
        raise ConfigError("this client has no startup nodes; pass a URL with at least one")
    url = f"redis{'s' if address.tls else ''}+cluster://{','.join(map(str, nodes))}"
    return ClusterEngine(Seeds(url, address, nodes), namespace=namespace, client_name=_name(options), tls=tls)


def _server(options: Mapping[str, Any], connection: Any) -> tuple[Address, ssl.SSLContext | None]:
    """Return the address of a client's server and the TLS context for it, from the client's connection arguments
    (`options`) and its connection class.
    """
    kind = connection.__name__ if isinstance(connection, type) else ""
    if kind and connection.__module__.partition(".")[0] not in LIBRARIES:
        raise ConfigError(
            f"this client's connection_class {kind} is not one of redis-py's, and Backstay's own connections do not use"
            " it: pass a client with a connection class of redis-py, or a URL"
        )
    tls = "SSL" in kind or bool(options.get("ssl"))
    known = TAKEN | IGNORED | (TLS_SETTINGS if tls else set[str]())
    for name, value in options.items():
        if name not in known and not _is_default(value):
            raise _unsupported(name)
    given = options.get("credential_provider")
    address = Address(
        host=str(options.get("host") or DEFAULT.host),
        port=_number(options, "port", DEFAULT.port),
        db=_number(options, "db", 0),
        username=_text(options, "username"),
        password=_text(options, "password"),
        tls=tls,
        timeout=_seconds(options, "socket_timeout", DEFAULT.timeout),
        connect_timeout=_seconds(options, "socket_connect_timeout", DEFAULT.connect_timeout),
        path=str(options.get("path") or ""),
        credentials=None if given is None else Credentials(given),
    )
    return address, build_context(options) if tls else None


def _is_default(value: Any) -> bool:
    """Whether a setting has its default value: empty, a sentinel object, or an object of redis-py itself."""
    if not value:
        return True
    kind = cast("type[object]", type(value))
    return kind is object or kind.__module__.partition(".")[0] in LIBRARIES


def _unsupported(name: str) -> ConfigError:
    return ConfigError(f"this client uses {name}, which Backstay does not support; pass a client without it, or a URL")


def _name(options: Mapping[str, Any]) -> str:
    return str(options.get("client_name") or "backstay")


def _text(options: Mapping[str, Any], name: str) -> str:
    value = options.get(name)
    try:
        return value.decode() if isinstance(value, bytes) else str(value or "")
    except UnicodeDecodeError:
        raise ConfigError(f"this client's {name} is not UTF-8") from None


def _number(options: Mapping[str, Any], name: str, default: int) -> int:
    value = options.get(name) or default
    try:
        return int(value)
    except (TypeError, ValueError):
        raise ConfigError(f"this client's {name} must be a number; got {value!r}") from None


def _seconds(options: Mapping[str, Any], name: str, default: float) -> float:
    """Return a time-out. redis-py allows None (no time-out); Backstay then uses its default, because a lock must notice
    a dead server.
    """
    value = options.get(name)
    if value is None:
        return default
    if not isinstance(value, (int, float)) or not 0 < value <= LONGEST_TIMEOUT:
        raise ConfigError(f"this client's {name} must be above 0 and at most an hour, or None; got {value!r}")
    return float(value)
