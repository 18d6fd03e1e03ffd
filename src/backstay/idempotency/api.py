"""`stay.idempotency`, for async and for blocking code."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

from backstay.idempotency import admin
from backstay.idempotency.codec import codec_for
from backstay.idempotency.execution import run_async, run_blocking
from backstay.idempotency.fingerprint import fingerprint as fingerprint_of
from backstay.idempotency.options import OnError, OnUnavailable, spec
from backstay.idempotency.transaction import AsyncTransaction, Transaction, schema
from backstay.idempotency.view import KeyInspection
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.flows import run
from backstay.runtime.serialization import Codec
from backstay.runtime.validation import Duration

T = TypeVar("T")


class Idempotency:
    """One key, one run, one outcome: whoever comes later gets what the first call answered."""

    __slots__ = ("_core",)

    def __init__(self, core: Core) -> None:
        self._core = core

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
        """Run `fn()` once for this key, or answer what it answered.

        fingerprint: plain data that the call is about; the same key with another one is a FingerprintMismatch.
        ttl: seconds the outcome is kept (a day). lease: seconds a call lives without renewal (30); it is renewed.
        wait: for a call that runs: seconds, 0 not at all, None until it ends; then InProgress.
        on_error: "forget" lets the next call run after an exception; "replay" keeps it, as ReplayedFailure.
        on_unavailable: "raise", or "allow" it to run unprotected while the engine is away.
        codec: how the outcome is kept; else as plain data, rebuilt as `fn`'s return annotation says.
        """
        wanted = spec(self._core, key, fingerprint_of(fingerprint), ttl, lease, wait, on_error, on_unavailable)
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
        """The same inside your own SQL transaction, on SQLite or PostgreSQL: effect and record are both committed, or
        neither is. The engine has no part in it.

        connection: of sqlite3, psycopg, SQLAlchemy or Django, with the table that `schema()` shows. You commit.
        """
        wanted = spec(self._core, key, fingerprint_of(fingerprint), ttl, None, None, "forget", None)
        return AsyncTransaction(
            connection,
            self._core.engine.namespace,
            wanted.name,
            wanted.fingerprint,
            wanted.ttl,
            codec_for(codec),
        )

    @staticmethod
    def schema(database: str) -> str:
        """The CREATE TABLE that `transaction` needs: "postgresql" or "sqlite"."""
        return schema(database)

    async def inspect(self, key: str) -> KeyInspection:
        """Whether it runs or has run, since when, by whom, and how many wait."""
        return await admin.inspect(self._core, validation.name(key, "key"))

    async def forget(self, key: str) -> bool:
        """Let the next call run, whatever came of earlier ones. True: there was something to forget. A call that runs
        goes on, and its outcome will be refused.
        """
        return await admin.forget(self._core, validation.name(key, "key"))


class BlockingIdempotency:
    """One key, one run, one outcome: whoever comes later gets what the first call answered."""

    __slots__ = ("_core",)

    def __init__(self, core: Core) -> None:
        self._core = core

    def run(
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
    ) -> T:
        """Run `fn()` once for this key, or answer what it answered. The options are those of the async API."""
        wanted = spec(self._core, key, fingerprint_of(fingerprint), ttl, lease, wait, on_error, on_unavailable)
        outcome: T = run_blocking(self._core, wanted, fn, codec_for(codec, fn))
        return outcome

    def transaction(
        self,
        connection: Any,
        key: str,
        *,
        fingerprint: Any = None,
        ttl: Duration | None = None,
        codec: Codec | None = None,
    ) -> Transaction:
        """The same inside your own SQL transaction, on SQLite or PostgreSQL: effect and record are both committed, or
        neither is. The engine has no part in it.

        connection: of sqlite3, psycopg, SQLAlchemy or Django, with the table that `schema()` shows. You commit.
        """
        wanted = spec(self._core, key, fingerprint_of(fingerprint), ttl, None, None, "forget", None)
        return Transaction(
            connection,
            self._core.engine.namespace,
            wanted.name,
            wanted.fingerprint,
            wanted.ttl,
            codec_for(codec),
        )

    @staticmethod
    def schema(database: str) -> str:
        """The CREATE TABLE that `transaction` needs: "postgresql" or "sqlite"."""
        return schema(database)

    def inspect(self, key: str) -> KeyInspection:
        """Whether it runs or has run, since when, by whom, and how many wait."""
        return run(admin.inspect(self._core, validation.name(key, "key")))

    def forget(self, key: str) -> bool:
        """Let the next call run, whatever came of earlier ones. True: there was something to forget. A call that runs
        goes on, and its outcome will be refused.
        """
        return run(admin.forget(self._core, validation.name(key, "key")))
