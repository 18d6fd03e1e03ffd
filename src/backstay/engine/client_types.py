"""The client objects that users may pass instead of a URL, recognised by their module without importing a library."""

from __future__ import annotations

from typing import Any, Literal, Protocol

from backstay.errors import ConfigError

#: The list of accepted values in a ConfigError.
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
    """Return the kind of engine for a client object. Raises ConfigError for other objects; its text begins with
    `what`.
    """
    libraries = {kind.__module__.partition(".")[0] for kind in type(thing).__mro__}
    if libraries & {"redis", "valkey"}:
        return "redis"
    if "psycopg_pool" in libraries:
        return "postgres"
    kind = f"{type(thing).__module__}.{type(thing).__qualname__}"
    hint = ""
    if "sqlalchemy" in libraries:
        hint = '; of an Engine, pass engine.url.set(drivername="postgresql").render_as_string(hide_password=False)'
    elif "psycopg" in libraries:
        hint = "; one connection serves one caller at a time"
    raise ConfigError(f"{what} {ACCEPTED}; got {kind}{hint}")
