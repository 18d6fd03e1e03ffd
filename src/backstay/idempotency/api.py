"""The async API of idempotency: `stay.idempotency`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

from backstay.idempotency import admin
from backstay.idempotency.codec import codec_for
from backstay.idempotency.execution import run_async
from backstay.idempotency.options import BaseIdempotency, OnError, OnUnavailable
from backstay.idempotency.transaction import AsyncTransaction
from backstay.idempotency.view import KeyInspection
from backstay.runtime import validation
from backstay.runtime.serialization import Codec
from backstay.runtime.validation import Duration

T = TypeVar("T")


class Idempotency(BaseIdempotency):
    """Runs a function once per key; later calls with the key get the outcome of the first."""

    __slots__ = ()

    @overload
    async def run(
        self,
        key: str,
        fn: Callable[[], Awaitable[T]],
        *,
        fingerprint: Any = None,
        ttl: Duration | None = None,
        lease: Duration | None = None,
        wait: Duration | None = None,
        on_error: OnError = "forget",
        on_unavailable: OnUnavailable | None = None,
        codec: Codec | None = None,
    ) -> T: ...
    @overload
    async def run(
        self,
        key: str,
        fn: Callable[[], T],
        *,
        fingerprint: Any = None,
        ttl: Duration | None = None,
        lease: Duration | None = None,
        wait: Duration | None = None,
        on_error: OnError = "forget",
        on_unavailable: OnUnavailable | None = None,
        codec: Codec | None = None,
    ) -> T: ...
    async def run(
        self,
        key: str,
        fn: Callable[[], Any],
        *,
        fingerprint: Any = None,
        ttl: Duration | None = None,
        lease: Duration | None = None,
        wait: Duration | None = None,
        on_error: OnError = "forget",
        on_unavailable: OnUnavailable | None = None,
        codec: Codec | None = None,
    ) -> Any:
        """Run `fn()` once for this key and return its outcome; a later call returns the stored outcome.

        fingerprint: Plain data that identifies the request. The same key with other data raises FingerprintMismatch.
        ttl: Seconds for which the outcome is stored. Default: the policy's, one day.
        lease: Seconds until another process may take over a running call that no longer renews its lease. Backstay
            renews the lease in the background. Default: the policy's, 30.
        wait: Seconds to wait for a running call with this key, then InProgress. 0: do not wait. None, the default: no
            limit.
        on_error: "forget", the default, lets the next call run after an exception. "replay" stores the exception, and
            later calls raise ReplayedFailure.
        on_unavailable: "raise", or "allow" to run unprotected while the engine is unavailable. Default: the policy's.
        codec: Encodes the outcome. Default: msgpack, decoded to `fn`'s return annotation.
        """
        wanted = self._options(key, fingerprint, ttl, lease, wait, on_error, on_unavailable)
        return await run_async(self._core, wanted, fn, codec_for(codec, fn))

    def transaction(
        self,
        connection: Any,
        key: str,
        *,
        fingerprint: Any = None,
        ttl: Duration | None = None,
        codec: Codec | None = None,
    ) -> AsyncTransaction:
        """Run a block once per key inside your own SQL transaction, on SQLite or PostgreSQL: the effect and the record
        of the key are committed together or not at all. The record is stored in your database, not in the engine.

        connection: Your connection, of sqlite3, psycopg, SQLAlchemy or Django. Its database must have the table that
            the statement of `stay.idempotency.schema()` creates. You commit.
        """
        return self._transaction(AsyncTransaction, connection, key, fingerprint, ttl, codec)

    async def inspect(self, key: str) -> KeyInspection:
        """Return the state of a key: running or done, since when, by which process, and how many calls wait."""
        return await admin.inspect(self._core, validation.check_name(key, "key"), self._room)

    async def forget(self, key: str) -> bool:
        """Delete the state and the outcome of a key, so that the next call runs. Returns whether there was anything to
        delete. A running call continues, but its outcome is refused.
        """
        return await admin.forget(self._core, validation.check_name(key, "key"), self._room)
