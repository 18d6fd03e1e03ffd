"""Guarded writes: the fence put to work, so that a holder who comes too late changes nothing.

A lease may end while its holder stands still between the last look and the write. The store that is written to keeps
the highest fence it has seen beside the data, and refuses an older one in the same step.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, overload

from backstay.errors import ConfigError, StaleFence
from backstay.gate.lease import Held
from backstay.guard.redis import AsyncRedisGuard, RedisGuard
from backstay.guard.sql import AsyncSqlGuard, SqlGuard
from backstay.runtime.flows import run
from backstay.runtime.maybe_await import settled

if TYPE_CHECKING:
    from redis import Redis
    from redis.asyncio import Redis as AsyncRedis

T = TypeVar("T")


class Connection(Protocol):
    """A caller's own connection: DB-API, Django, SQLAlchemy."""

    def commit(self) -> None: ...


class AsyncConnection(Protocol):
    """The same for async code: psycopg's AsyncConnection, SQLAlchemy's AsyncSession."""

    def commit(self) -> Awaitable[None]: ...


class Guard:
    """Writes under one exclusive lease. Each looks at the lease first; the fence in the store is what protects.

    Connections and clients are the caller's. A blocking one gives blocking methods, an async one methods to await.
    """

    __slots__ = ("_lease",)

    def __init__(self, lease: Held) -> None:
        given = cast("object", lease)
        if not isinstance(given, Held):
            raise ConfigError(f"guard takes the lease of a lock, as in stay.guard(lease); got {type(given).__name__}")
        if not lease.exclusive:
            raise ConfigError(
                f"{lease.name!r} is shared: another live permit or reader may bear a newer fence, so a fence cannot"
                " tell who is late; guard with stay.lock(…) or rwlock.write()"
            )
        if lease.wired is not None:
            raise ConfigError(
                f"{lease.name!r} is held over n8n's keys, which know no fence: n8n's holders could not be told apart."
                " Guard with a lock of Backstay's own wire"
            )
        self._lease = lease

    @property
    def name(self) -> str:
        return self._lease.name

    @property
    def fence(self) -> int:
        return self._lease.fence

    def check(self) -> None:
        """Raise LeaseLost unless the lease is certainly ours: cheap, local, and not enough by itself."""
        self._lease.check()

    def admit(self, stored: int | None) -> None:
        """Raise StaleFence when a store has seen a newer fence. None: it has seen none."""
        if stored is not None and stored > self.fence:
            raise StaleFence(name=self.name, fence=self.fence, newer=stored)

    @overload
    def redis(self, client: AsyncRedis) -> AsyncRedisGuard: ...
    @overload
    def redis(self, client: Redis) -> RedisGuard: ...
    def redis(self, client: Any) -> RedisGuard | AsyncRedisGuard:
        """Redis keys, through a client of redis-py: `stay.guard(lease).redis(client).set(key, value)`."""
        if inspect.iscoroutinefunction(client.execute_command):
            return AsyncRedisGuard(self, client)
        return RedisGuard(self, client)

    @overload
    def sql(self, connection: AsyncConnection, *, fence_column: str = "fence") -> AsyncSqlGuard: ...
    @overload
    def sql(self, connection: Connection, *, fence_column: str = "fence") -> SqlGuard: ...
    def sql(self, connection: Any, *, fence_column: str = "fence") -> SqlGuard | AsyncSqlGuard:
        """Rows, on the caller's own connection and inside its transaction."""
        if inspect.iscoroutinefunction(connection.commit):
            return AsyncSqlGuard(self, connection, fence_column)
        return SqlGuard(self, connection, fence_column)

    @overload
    def cas(
        self,
        read: Callable[[], Awaitable[tuple[int | None, T]]],
        swap: Callable[[T, int], Awaitable[bool]],
    ) -> Awaitable[None]: ...
    @overload
    def cas(self, read: Callable[[], tuple[int | None, T]], swap: Callable[[T, int], bool]) -> None: ...
    def cas(self, read: Any, swap: Any) -> Any:
        """Any store that can compare and set.

        read() answers the stored fence (None: none yet) and whatever tells this version from the next. swap(version,
        fence) writes the new value with its fence if the version is still that one, and says whether it was. Both may
        be called again. Two coroutine functions make it awaitable.
        """
        flow = self._cas(read, swap)
        return flow if inspect.iscoroutinefunction(read) else run(flow)

    async def _cas(self, read: Callable[[], Any], swap: Callable[[Any, int], Any]) -> None:
        while True:
            self.check()  # this also ends the loop: nobody swaps for ever
            stored, version = await settled(read())
            self.admit(stored)
            if await settled(swap(version, self.fence)):
                return

    def __repr__(self) -> str:
        return f"<Guard {self.name!r} fence={self.fence}>"
