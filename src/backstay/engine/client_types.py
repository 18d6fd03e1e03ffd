"""The clients and pools that users may pass instead of a URL. An object is recognised by the name of its class's
module, so that neither redis-py nor psycopg must be imported for the check.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

from backstay.errors import ConfigError

#: The accepted values, as a ConfigError lists them.
ACCEPTED = (
    "a URL, a redis-py client (Redis, RedisCluster, sentinel.master_for(…)) or ConnectionPool, asyncio or not,"
    " or psycopg_pool's ConnectionPool or AsyncConnectionPool"
)


class RedisClient(Protocol):
    """redis-py's Redis, blocking or asyncio, also the one that `Sentinel.master_for` returns."""

    @property
    def connection_pool(self) -> Any: ...


class RedisClusterClient(Protocol):
    """redis-py's RedisCluster, blocking or asyncio."""

    @property
    def nodes_manager(self) -> Any: ...


class RedisPool(Protocol):
    """redis-py's ConnectionPool, blocking or asyncio."""

    @property
    def connection_class(self) -> Any: ...

    @property
    def connection_kwargs(self) -> Any: ...


class PostgresPool(Protocol):
    """psycopg_pool's ConnectionPool or AsyncConnectionPool."""

    @property
    def conninfo(self) -> Any: ...

    def getconn(self, timeout: float | None = None) -> Any: ...

    def putconn(self, conn: Any) -> Any: ...


#: A client or pool that belongs to the caller: Backstay never closes it.
ClientObject = RedisClient | RedisClusterClient | RedisPool | PostgresPool


def client_kind(thing: object, what: str) -> Literal["redis", "postgres"]:
    """Return which engine a client or pool belongs to. For any other object, raise a ConfigError that lists the valid
    values; `what` begins its message and names the option.
    """
    libraries = {kind.__module__.partition(".")[0] for kind in type(thing).__mro__}
    if libraries & {"redis", "valkey"}:
        return "redis"
    if "psycopg_pool" in libraries:
        return "postgres"
    kind = f"{type(thing).__module__}.{type(thing).__qualname__}"
    hint = ""
    if "sqlalchemy" in libraries:
        hint = '; for an Engine, pass engine.url.set(drivername="postgresql").render_as_string(hide_password=False)'
    elif "psycopg" in libraries:
        hint = "; a single connection serves one caller at a time: pass a pool"
    raise ConfigError(f"{what} {ACCEPTED}; got {kind}{hint}")
