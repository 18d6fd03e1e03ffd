"""Read the server's address from a psycopg pool, for the connections that Backstay opens itself (hub, keeper)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, cast

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from backstay.engine.postgres.address import Address
from backstay.engine.postgres.connection.pool_adapter import AsyncPoolAdapter, BlockingPoolAdapter, Pool
from backstay.engine.postgres.engine import PostgresEngine
from backstay.engine.postgres.pooled_engine import PooledEngine
from backstay.errors import ConfigError, EngineError, EngineRefused, EngineUnavailable

#: psycopg's connection arguments that configure Python objects, not the server.
OBJECT_ARGUMENTS = ("autocommit", "context", "cursor_factory", "prepare_threshold", "row_factory")
#: Seconds that an async function may take that the user passed to the pool as its `conninfo` or `kwargs`.
PATIENCE = 5.0


def open_pool(pool: Any, namespace: str, *, blocking: bool) -> PostgresEngine:
    """Return the engine for a pool. If the pool is async and `blocking` is set, the engine opens connections of its own
    to the pool's server, because blocking code cannot use an async pool.
    """
    # Only for the type checker: after `isinstance`, it would take a value of type Any for a pool of an unknown type.
    given = cast("object", pool)
    if isinstance(given, ConnectionPool):
        blocking_pool: ConnectionPool[Any] = pool
        return PooledEngine(_address(blocking_pool, None), BlockingPoolAdapter(blocking_pool), namespace=namespace)
    if not isinstance(given, AsyncConnectionPool):
        raise ConfigError(f"a pool is a ConnectionPool or an AsyncConnectionPool; got {type(given).__name__}")
    async_pool: AsyncConnectionPool[Any] = pool
    if blocking:
        return PostgresEngine(_address(async_pool, None), namespace=namespace)
    pool_adapter = AsyncPoolAdapter(async_pool)
    return PooledEngine(_address(async_pool, pool_adapter), pool_adapter, namespace=namespace)


def _address(pool: Pool, pool_adapter: AsyncPoolAdapter | None) -> Address:
    if pool.closed and getattr(pool, "_opened", False):
        raise ConfigError(f"the pool {pool.name!r} is closed; pass an open one, or one that will be opened")
    kind: Any = pool.connection_class
    plain: Any = psycopg.AsyncConnection if isinstance(pool, AsyncConnectionPool) else psycopg.Connection
    if kind.connect.__func__ is not plain.connect.__func__:
        raise ConfigError(
            f"the pool's connection_class {kind.__name__} overrides connect(), which Backstay's own connections"
            " (for hints) do not use: pass a function as conninfo= or kwargs= instead"
        )
    conninfo, kwargs = pool.conninfo, pool.kwargs
    if not callable(conninfo) and not callable(kwargs):
        return Address(_read(pool, conninfo, kwargs))
    if pool_adapter is None and any(map(inspect.iscoroutinefunction, (conninfo, kwargs))):
        raise ConfigError("this pool's conninfo or kwargs is an async function, which blocking code cannot await")

    def fetch() -> dict[str, Any]:
        try:
            return _read(pool, _call(conninfo, pool_adapter), _call(kwargs, pool_adapter))
        except EngineError:
            raise
        except ConfigError as error:
            raise EngineRefused(str(error)) from None
        except Exception as error:
            what = f"the conninfo or kwargs of pool {pool.name!r}"
            raise EngineUnavailable(f"{what} raised {type(error).__name__}") from error

    return Address({}, fetch=fetch, name=f"the server of pool {pool.name!r}")


def _read(pool: Pool, conninfo: str | None, kwargs: dict[str, Any] | None) -> dict[str, Any]:
    parameters = {name: value for name, value in (kwargs or {}).items() if name not in OBJECT_ARGUMENTS}
    try:
        return conninfo_to_dict(conninfo or "", **parameters)
    except psycopg.ProgrammingError:  # its message repeats the unreadable part, which may be a password
        raise ConfigError(f"the conninfo or kwargs of pool {pool.name!r} cannot be parsed") from None


def _call(source: Any | Callable[[], Any], pool_adapter: AsyncPoolAdapter | None) -> Any:
    """Return the pool's `conninfo` or `kwargs`. If `source` is a function, call it; if its result is awaitable, await
    it on the pool's event loop.
    """
    value = source() if callable(source) else source
    if not inspect.isawaitable(value):
        return value
    if pool_adapter is None or pool_adapter.loop is None:
        if inspect.iscoroutine(value):
            value.close()
        raise EngineUnavailable("the pool's parameters come from an async function, and there is no event loop yet")

    async def await_value() -> Any:
        return await value

    try:
        return asyncio.run_coroutine_threadsafe(await_value(), pool_adapter.loop).result(PATIENCE)
    except TimeoutError:
        raise EngineUnavailable(f"the pool's parameters did not arrive within {PATIENCE:g} s") from None
