"""What users may hand over instead of a URL: told apart by the library it comes from, which nobody has to import."""

from __future__ import annotations

from typing import Any, Literal, Protocol

from backstay.errors import ConfigError

#: What a ConfigError lists.
ACCEPTED = (
    "a URL, a redis-py client (Redis, RedisCluster, sentinel.master_for(…)) or ConnectionPool, asyncio or not,"
    " or psycopg_pool's ConnectionPool or AsyncConnectionPool"
)


class RedisClient(Protocol):
    """redis-py's Redis, asyncio or not, also that of `Sentinel.master_for`."""

    @property
    def connection_pool(self) -> Any: ...


class RedisClusterClient(Protocol):
    """redis-py's RedisCluster, asyncio or not."""

    @property
    def nodes_manager(self) -> Any: ...


class RedisPool(Protocol):
    """redis-py's ConnectionPool, asyncio or not."""

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


#: Somebody else's, and it stays theirs: it is never closed here.
Owned = RedisClient | RedisClusterClient | RedisPool | PostgresPool


def family(thing: object, what: str) -> Literal["redis", "postgres"]:
    """Which engine a user's object belongs to. Raises ConfigError for any other; `what` is how its list begins."""
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
