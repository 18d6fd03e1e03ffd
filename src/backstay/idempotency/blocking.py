"""The blocking API of idempotency: the twin of `api.py`. Thread-safe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from backstay.idempotency import admin
from backstay.idempotency.codec import codec_for
from backstay.idempotency.execution import run_blocking
from backstay.idempotency.options import BaseIdempotency, OnError, OnUnavailable
from backstay.idempotency.transaction import Transaction
from backstay.idempotency.view import KeyInspection
from backstay.runtime import validation
from backstay.runtime.flows import run
from backstay.runtime.serialization import Codec
from backstay.runtime.validation import Duration

T = TypeVar("T")


class BlockingIdempotency(BaseIdempotency):
    """Runs a function once per key; later calls with the key get the outcome of the first."""

    __slots__ = ()

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
        """Run `fn()` once for this key and return its outcome; a later call returns the stored outcome. The options are
        those of the async API.
        """
        wanted = self._options(key, fingerprint, ttl, lease, wait, on_error, on_unavailable)
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
        """Run a block once per key inside your own SQL transaction, on SQLite or PostgreSQL: the effect and the record
        of the key are committed together or not at all. The record is stored in your database, not in the engine.

        connection: Your connection, of sqlite3, psycopg, SQLAlchemy or Django. Its database must have the table that
            the statement of `stay.idempotency.schema()` creates. You commit.
        """
        return self._transaction(Transaction, connection, key, fingerprint, ttl, codec)

    def inspect(self, key: str) -> KeyInspection:
        """Return the state of a key: running or done, since when, by which process, and how many calls wait."""
        return run(admin.inspect(self._core, validation.check_name(key, "key"), self._room))

    def forget(self, key: str) -> bool:
        """Delete the state and the outcome of a key, so that the next call runs. Returns whether there was anything to
        delete. A running call continues, but its outcome is refused.
        """
        return run(admin.forget(self._core, validation.check_name(key, "key"), self._room))
