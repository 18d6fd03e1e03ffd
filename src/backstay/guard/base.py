"""Guarded writes: reject the write of a holder whose lease has ended, by comparing fences in the store.

A lease may end while its holder is paused between its last check and its write (GC, swap, SIGSTOP). Beside the data,
the store keeps the highest fence that has written them. Each write compares its own fence with that one atomically, and
an older one is rejected.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, overload

from backstay.errors import ConfigError, StaleFence
from backstay.gate.lease import GateLease
from backstay.guard.redis import AsyncRedisGuard, RedisGuard
from backstay.guard.sql import AsyncSqlGuard, SqlGuard
from backstay.runtime.flows import maybe_await, run

if TYPE_CHECKING:
    from redis import Redis
    from redis.asyncio import Redis as AsyncRedis

T = TypeVar("T")


class Connection(Protocol):
    """A caller's own blocking connection: DB-API, Django, SQLAlchemy."""

    def commit(self) -> None: ...


class AsyncConnection(Protocol):
    """A caller's own async connection: psycopg's AsyncConnection, SQLAlchemy's AsyncSession."""

    def commit(self) -> Awaitable[None]: ...


class Guard:
    """Writes under one exclusive lease. Each write first checks, without a request, whether this process still
    considers the lease held. That saves a useless write, but only the comparison with the stored fence protects the
    data.

    Connections and clients are the caller's own. A blocking one gives blocking methods, an async one async methods.
    """

    __slots__ = ("_lease",)

    def __init__(self, lease: GateLease) -> None:
        given = cast("object", lease)
        if not isinstance(given, GateLease):
            raise ConfigError(f"guard takes the lease of a lock, as in stay.guard(lease); got {type(given).__name__}")
        if not lease.exclusive:
            raise ConfigError(
                f"{lease.name!r} is shared: another valid permit or reader may have a newer fence, so a fence does not"
                " show which write is late; guard with stay.lock(…) or rwlock.write()"
            )
        if lease.wire is not None:
            raise ConfigError(
                f"{lease.name!r} is held over n8n's keys, which carry no fence, so writes of n8n's holders cannot be"
                " ordered. Guard with a lock of Backstay's own wire"
            )
        self._lease = lease

    @property
    def name(self) -> str:
        return self._lease.name

    @property
    def fence(self) -> int:
        return self._lease.fence

    def check(self) -> None:
        """Raise LeaseLost unless the lease is still held by this process's clock. It sends no request. The lease may
        end right after this check, so a write still needs the fence.
        """
        self._lease.check()

    def admit(self, stored: int | None) -> None:
        """Raise StaleFence if a holder with a newer fence has already written the data. `stored`: the fence beside the
        data; None if there is none yet.
        """
        if stored is not None and stored > self.fence:
            raise StaleFence(name=self.name, fence=self.fence, newer=stored)

    @overload
    def redis(self, client: AsyncRedis) -> AsyncRedisGuard: ...
    @overload
    def redis(self, client: Redis) -> RedisGuard: ...
    def redis(self, client: Any) -> RedisGuard | AsyncRedisGuard:
        """Guard Redis keys, through a client of redis-py: `stay.guard(lease).redis(client).set(key, value)`."""
        if inspect.iscoroutinefunction(client.execute_command):
            return AsyncRedisGuard(self, client)
        return RedisGuard(self, client)

    @overload
    def sql(self, connection: AsyncConnection, *, fence_column: str = "fence") -> AsyncSqlGuard: ...
    @overload
    def sql(self, connection: Connection, *, fence_column: str = "fence") -> SqlGuard: ...
    def sql(self, connection: Any, *, fence_column: str = "fence") -> SqlGuard | AsyncSqlGuard:
        """Guard rows, on the caller's own connection and inside its transaction.

        fence_column: The table's BIGINT column for the fence; it may be NULL.
        """
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
        """Guard a write to any store with compare-and-set. Awaitable if `read` and `swap` are coroutine functions.

        read: Returns the stored fence (None: none yet) and the stored version.
        swap: Gets that version and this lease's fence. If the version is unchanged, it writes the new value with the
            fence and returns True. After False, `read` and `swap` are called again.
        """
        operation = self._cas(read, swap)
        return operation if inspect.iscoroutinefunction(read) else run(operation)

    async def _cas(self, read: Callable[[], Any], swap: Callable[[Any, int], Any]) -> None:
        while True:
            self.check()  # raises LeaseLost, and so ends the loop, once the lease is over
            stored, version = await maybe_await(read())
            self.admit(stored)
            if await maybe_await(swap(version, self.fence)):
                return

    def __repr__(self) -> str:
        return f"<Guard {self.name!r} fence={self.fence}>"
