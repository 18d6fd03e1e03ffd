"""What a pool of psycopg_pool's says about its server, for the connections that Backstay makes by itself."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, cast

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from backstay.engine.postgres.address import Address
from backstay.engine.postgres.connection.pool_adapter import AsyncLender, BlockingLender, Pool
from backstay.engine.postgres.engine import PostgresEngine
from backstay.engine.postgres.pooled_engine import PooledEngine
from backstay.errors import ConfigError, EngineError, EngineRefused, EngineUnavailable

#: Arguments of psycopg's that are about its objects, not about the server.
OBJECTS = ("autocommit", "context", "cursor_factory", "prepare_threshold", "row_factory")
#: Seconds that an async function of the user's may take to tell the parameters.
PATIENCE = 5.0


def open_pool(pool: Any, namespace: str, *, blocking: bool) -> PostgresEngine:
    """The engine for a pool. An async pool serves the async API; for the blocking one it is read for its address."""
    anything = cast("object", pool)  # what is known of it then would be half of its type
    if isinstance(anything, ConnectionPool):
        theirs: ConnectionPool[Any] = pool
        return PooledEngine(_address(theirs, None), BlockingLender(theirs), namespace=namespace)
    if not isinstance(anything, AsyncConnectionPool):
        raise ConfigError(f"a pool is a ConnectionPool or an AsyncConnectionPool; got {type(anything).__name__}")
    awaited: AsyncConnectionPool[Any] = pool
    if blocking:
        return PostgresEngine(_address(awaited, None), namespace=namespace)
    lender = AsyncLender(awaited)
    return PooledEngine(_address(awaited, lender), lender, namespace=namespace)


def _address(pool: Pool, lender: AsyncLender | None) -> Address:
    if pool.closed and getattr(pool, "_opened", False):
        raise ConfigError(f"the pool {pool.name!r} is closed; pass an open one, or one that will be opened")
    kind: Any = pool.connection_class
    plain: Any = psycopg.AsyncConnection if isinstance(pool, AsyncConnectionPool) else psycopg.Connection
    if kind.connect.__func__ is not plain.connect.__func__:
        raise ConfigError(
            f"the pool's connection_class {kind.__name__} has a connect() of its own, which Backstay's"
            " own connections (for hints) would not go through: let conninfo= or kwargs= be a function instead"
        )
    conninfo, kwargs = pool.conninfo, pool.kwargs
    if not callable(conninfo) and not callable(kwargs):
        return Address(_read(pool, conninfo, kwargs))
    if lender is None and any(map(inspect.iscoroutinefunction, (conninfo, kwargs))):
        raise ConfigError("this pool's conninfo or kwargs is an async function, which blocking code cannot await")

    def fetch() -> dict[str, Any]:
        try:
            return _read(pool, _now(conninfo, lender), _now(kwargs, lender))
        except EngineError:
            raise
        except ConfigError as error:
            raise EngineRefused(str(error)) from None
        except Exception as error:
            what = f"the conninfo or kwargs of pool {pool.name!r}"
            raise EngineUnavailable(f"{what} could not be had ({type(error).__name__})") from error

    return Address({}, fetch=fetch, name=f"the server of pool {pool.name!r}")


def _read(pool: Pool, conninfo: str | None, kwargs: dict[str, Any] | None) -> dict[str, Any]:
    theirs = {name: value for name, value in (kwargs or {}).items() if name not in OBJECTS}
    try:
        return conninfo_to_dict(conninfo or "", **theirs)
    except psycopg.ProgrammingError:  # it repeats what it could not read, and that may be a password
        raise ConfigError(f"the conninfo or kwargs of pool {pool.name!r} cannot be read") from None


def _now(source: Any | Callable[[], Any], lender: AsyncLender | None) -> Any:
    value = source() if callable(source) else source
    if not inspect.isawaitable(value):
        return value
    if lender is None or lender.loop is None:
        if inspect.iscoroutine(value):
            value.close()
        raise EngineUnavailable("the pool's parameters come from an async function, and there is no event loop yet")

    async def told() -> Any:
        return await value

    try:
        return asyncio.run_coroutine_threadsafe(told(), lender.loop).result(PATIENCE)
    except TimeoutError:
        raise EngineUnavailable("the pool's parameters did not come in time") from None
