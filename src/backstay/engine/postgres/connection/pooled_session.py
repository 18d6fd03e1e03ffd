"""A session on a connection from the caller's pool. The connection goes back to the pool unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import pq
from psycopg.rows import tuple_row

from backstay.engine.postgres.connection.arrays import register_dumpers
from backstay.engine.postgres.connection.session import SETTINGS, Session

if TYPE_CHECKING:
    from psycopg_pool.base import BasePool

#: Settings that a batch depends on. They are set for its transaction only, so that the caller's settings stay.
LOCAL = ("idle_in_transaction_session_timeout", "lock_timeout", "enable_seqscan")
_SET = ", ".join(f"set_config('{name}', '{SETTINGS[name]}', true)" for name in LOCAL)
SET_LOCAL = f"SELECT {_SET}, set_config('search_path', %(path)s, true)".encode()
#: Reads the default search_path of the session, not one that the caller has SET. With a SET value, two sessions could
#: find Backstay's tables in different schemas, and both would be granted the same lock.
SEARCH_PATH = b"SELECT reset_val FROM pg_settings WHERE name = 'search_path'"


class PooledSession(Session):
    """A second psycopg connection object on the libpq connection of the caller's object `owner`. The settings for rows,
    cursors, autocommit and prepared statements belong to `owner`, so using this object does not change them. This
    session prepares no statements, because their names could collide with the caller's.
    """

    prepares = False
    #: psycopg's destructor reads this attribute; without it, psycopg would warn about an unclosed connection.
    _pool: BasePool | None = None

    def __init__(self, owner: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
        pgconn = owner.pgconn
        notify_handler = pgconn.notify_handler
        self._owner_notice_handler = pgconn.notice_handler
        super().__init__(pgconn, tuple_row)
        pgconn.notify_handler = notify_handler  # the constructor replaced the caller's handler
        self.owner = owner
        self.search_path = ""
        self._autocommit = True  # not by the setter, which raises if the pool's `check` has left a transaction open
        self.prepare_threshold = None
        register_dumpers(self)

    def begin_statements(self) -> list[tuple[bytes, Mapping[str, Any]]]:
        return [(b"BEGIN ISOLATION LEVEL READ COMMITTED", {}), (SET_LOCAL, {"path": self.search_path})]

    def is_alive(self) -> bool:
        """Whether the connection is still open. Reads only what has already arrived, without a round trip."""
        try:
            for _ in ("final message", "end of stream"):  # the second read detects the closed socket
                self.pgconn.consume_input()
        except psycopg.Error:
            self.pgconn.finish()
        return not self.closed

    def restore(self) -> None:
        """Restore the connection's state, or close it if that is impossible: the pool replaces closed connections."""
        pgconn = self.pgconn
        if self.closed:
            return
        if pgconn.transaction_status != pq.TransactionStatus.IDLE or pgconn.pipeline_status != pq.PipelineStatus.OFF:
            pgconn.finish()
            return
        pgconn.notice_handler = self._owner_notice_handler
